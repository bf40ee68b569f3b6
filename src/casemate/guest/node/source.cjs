'use strict';
// Changes a step's text before it runs, so that steps behave like one continued module: top-level names can be declared
// again (`var`), and `import` works as a statement and as a call. Line numbers stay the same.

const { tokensOf } = require('./tokens.cjs');

const NAMELESS = new Set(['in', 'instanceof']);

/** Return the text to run, and whether it may await. */
function prepared(code) {
  const changed = /\b(?:import|let|const|class)\b/.test(code) ? rewritten(code) : code;
  return { text: changed, waits: /\bawait\b/.test(changed) };
}

function rewritten(code) {
  const tokens = tokensOf(code);
  const edits = [];
  for (let at = 0; at < tokens.length; at++) {
    const token = tokens[at];
    if (token.kind !== 'word' || token.property) continue;
    if (token.text === 'import') at = editImport(code, tokens, at, edits);
    else if (token.depth === 0) editDeclaration(tokens, at, edits);
  }
  return applied(code, edits);
}

function applied(code, edits) {
  const parts = [];
  let done = 0;
  for (const { start, end, text } of edits.sort((a, b) => a.start - b.start)) {
    parts.push(code.slice(done, start), text);
    done = end;
  }
  return parts.join('') + code.slice(done);
}

// --- declarations ------------------------------------------------------------------------------------------------

function editDeclaration(tokens, at, edits) {
  const token = tokens[at];
  const next = tokens[at + 1];
  if (next === undefined) return;
  if (token.text === 'const') edits.push({ start: token.start, end: token.end, text: 'var' });
  else if (token.text === 'let' && token.first && startsBinding(next)) editLet(tokens, at, edits);
  else if (token.text === 'class' && token.first && next.kind === 'word') editClass(tokens, at, edits);
}

function startsBinding(token) {
  return token.kind === 'word' ? !NAMELESS.has(token.text) : token.text === '[' || token.text === '{';
}

// A `let x` without a value must reset the variable of an earlier step.
function editLet(tokens, at, edits) {
  edits.push({ start: tokens[at].start, end: tokens[at].end, text: 'var' });
  for (let name = at + 1; tokens[name]?.kind === 'word'; name += 2) {
    const after = tokens[name + 1]?.text;
    if (after === '=') return;
    edits.push({ start: tokens[name].end, end: tokens[name].end, text: ' = void 0' });
    if (after !== ',') return;
  }
}

function editClass(tokens, at, edits) {
  const name = tokens[at + 1].text;
  let body = at + 2;
  while (body < tokens.length && (tokens[body].depth > 0 || tokens[body].text !== '{')) body++;
  const inherits = tokens[at + 2]?.text === 'extends';
  while (inherits && tokens[tokens[body]?.closer + 1]?.text === '{') body = tokens[body].closer + 1; // of a class {}
  const end = tokens[tokens[body]?.closer];
  if (end === undefined) return;
  edits.push({ start: tokens[at].start, end: tokens[at].start, text: `var ${name} = ` });
  edits.push({ start: end.end, end: end.end, text: ';' });
}

// --- imports -----------------------------------------------------------------------------------------------------

/** Edit an import. Returns the index of its last token. */
function editImport(code, tokens, at, edits) {
  const token = tokens[at];
  const next = tokens[at + 1];
  if (next?.text === '(' && !isMethod(tokens, at)) replace(token, token, '__casemate__.import', edits);
  else if (isMeta(tokens, at)) replace(token, tokens[at + 2], '__casemate__.meta', edits);
  else if (token.first && token.depth === 0) return editStatement(code, tokens, at, edits);
  return at;
}

function replace(first, last, text, edits) {
  edits.push({ start: first.start, end: last.end, text });
}

function isMeta(tokens, at) {
  return tokens[at + 1]?.text === '.' && tokens[at + 2]?.text === 'meta';
}

// `{ import(x) {} }`
function isMethod(tokens, at) {
  const after = tokens[tokens[at + 1].closer + 1];
  return tokens[at].depth > 0 && after?.text === '{' && !after.newline;
}

function editStatement(code, tokens, at, edits) {
  const found = importAt(code, tokens, at);
  if (found === null) return at;
  const first = tokens[at];
  const last = tokens[found.last];
  const breaks = code.slice(first.start, last.end).split('\n').length - 1;
  replace(first, last, statementOf(found) + '\n'.repeat(breaks), edits);
  return found.last;
}

function statementOf({ names, namespace, from, attributes }) {
  const options = attributes === null ? 'undefined' : `{ with: ${attributes}, assert: ${attributes} }`;
  const load = `await __casemate__.named(${from}, ${options}, [${names.map(({ name }) => name).join(', ')}])`;
  const pattern = `{ ${names.map(({ name, local }) => `[${name}]: ${local}`).join(', ')} }`;
  if (namespace !== null) return `var ${namespace} = ${load}${names.length > 0 ? `, ${pattern} = ${namespace}` : ''};`;
  return names.length > 0 ? `var ${pattern} = ${load};` : `${load};`;
}

/** Parse `import a, * as b from 'c'` and the like; null if it is not an import. */
function importAt(code, tokens, at) {
  let index = at + 1;
  const is = (text) => tokens[index]?.text === text;
  const take = (kind) => (tokens[index]?.kind === kind ? tokens[index++].text : null);
  const found = { names: [], namespace: null, from: null, attributes: null, last: -1 };
  if (tokens[index]?.kind !== 'string') {
    if (tokens[index]?.kind === 'word') found.names.push({ name: '"default"', local: take('word') });
    if (is(',')) index++;
    if (is('*')) {
      index += 2;
      found.namespace = take('word');
    } else if (is('{')) {
      for (index++; !is('}'); ) {
        const imported = take('string') ?? take('word');
        if (imported === null) return null;
        const renamed = is('as') && index++ > 0;
        const name = /^["']/.test(imported) ? imported : `"${imported}"`;
        found.names.push({ name, local: renamed ? take('word') : imported });
        if (is(',')) index++;
      }
      index++;
    }
    if (!is('from')) return null;
    index++;
  }
  found.from = take('string');
  if (found.from === null) return null;
  if ((is('with') || is('assert')) && tokens[index + 1]?.text === '{') {
    const close = tokens[index + 1].closer;
    if (close < 0) return null;
    found.attributes = code.slice(tokens[index + 1].start, tokens[close].end);
    index = close + 1;
  }
  found.last = is(';') ? index : index - 1;
  return found;
}

Object.assign(exports, { prepared });
