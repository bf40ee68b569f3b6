'use strict';
// Checks a Node program in a cell without running it. Standard input is a line of JSON, then the program; the report is
// one JSON document on standard output.

const fs = require('node:fs');
const path = require('node:path');
const vm = require('node:vm');
const { spawnSync } = require('node:child_process');

const PARAMETERS = ['exports', 'require', 'module', '__filename', '__dirname'];
const NAME = 'main.js';
const WRAPPER = '(async () => {\n';
// By these errors of a CommonJS program, Node recognizes a module.
const SAYS_MODULE = /import statement outside a module|Unexpected token 'export'|import\.meta|await is only valid|Unexpected reserved word/;
const WITHIN = 8000;

const input = fs.readFileSync(0);
const end = input.indexOf(10);
const { session } = JSON.parse(input.subarray(0, end).toString());
const code = input.subarray(end + 1).toString();
const issues = [];
const found = session ? ofStep() : ofProgram();
if (found !== null) issues.push(found);
fs.writeSync(1, `${JSON.stringify({ issues, fixes: [], notes: [] })}\n`);

function ofProgram() {
  const text = code.startsWith('#!') ? `//${code}` : code;
  const asScript = attempt(() => vm.compileFunction(text, PARAMETERS, { filename: NAME }));
  if (asScript === null) return null;
  if (!SAYS_MODULE.test(asScript.message)) return asScript;
  const asModule = ofModule();
  if (asModule !== null) return asModule;
  return detectsModules() ? null : asScript;
}

// Node detects modules by itself from 20.19 and 22.7 on.
function detectsModules() {
  const [major, minor] = process.versions.node.split('.').map(Number);
  return major > 22 || (major === 22 && minor >= 7) || (major === 20 && minor >= 19);
}

function ofModule() {
  const file = path.join(require('node:os').tmpdir(), 'program.mjs');
  fs.writeFileSync(file, code);
  const options = { encoding: 'utf8', timeout: WITHIN, maxBuffer: 2 ** 20, env: { ...process.env, NODE_OPTIONS: '' } };
  const done = spawnSync(process.execPath, ['--check', file], options);
  if (done.status === 0) return null;
  return issueOf(done.stderr ?? '', `${file}:`);
}

// As in node/evaluate.cjs.
function ofStep() {
  const { prepared } = require(path.join(__dirname, 'node', 'source.cjs'));
  let changed = { text: code, waits: /\bawait\b/.test(code) };
  const given = changed;
  try {
    changed = prepared(code);
  } catch {
    return attempt(() => compiled(given));
  }
  if (attempt(() => compiled(changed)) === null) return null;
  return attempt(() => compiled(given));
}

function compiled({ text, waits }) {
  if (!waits) return new vm.Script(text, { filename: NAME });
  return new vm.Script(`${WRAPPER}${text}\n})`, { filename: NAME, lineOffset: -1 });
}

function attempt(compile) {
  try {
    compile();
    return null;
  } catch (error) {
    return issueOf(String(error?.stack), `${NAME}:`, error);
  }
}

// Parses "main.js:3\n<the line>\n   ^^^\n\nSyntaxError: what".
function issueOf(text, begins, error) {
  const lines = text.split('\n');
  const at = lines.findIndex((line) => line.startsWith(begins));
  const line = at < 0 ? 0 : Number.parseInt(lines[at].slice(begins.length), 10);
  const column = at < 0 ? 0 : (lines[at + 2] ?? '').indexOf('^') + 1;
  const named = lines.find((one) => /^\w*Error: /.test(one)) ?? String(error ?? 'it could not be read');
  const message = named.replace(/^SyntaxError: /, '').slice(0, 300);
  const kind = error?.name === 'RangeError' ? 'too-deep' : 'syntax';
  return { line: Number.isInteger(line) ? line : 0, column, message, severity: 'error', code: kind };
}
