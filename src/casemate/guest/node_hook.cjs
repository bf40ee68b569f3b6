'use strict';
// Prepares a one-shot Node program's process, loaded with --require before the program starts. Modules that are not
// next to the program are looked up in the working directory, and an uncaught error is reported to the host. Everything
// else stays as in plain Node. Expensive modules are loaded only when needed.
// With CASEMATE_WAIT in its environment the process was started before its program was known, and waits for an order.

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');

const CONTROL = 3;
const LONGEST = 2 ** 20;
const program = process.argv[1] ?? '';
const programFolder = path.dirname(program);
const workspace = process.cwd();

// --- modules ---------------------------------------------------------------------------------------------------

function requireFromWorkspaceToo() {
  const plain = Module._resolveLookupPaths;
  Module._resolveLookupPaths = function (request, parent) {
    const folders = plain.call(this, request, parent);
    if (folders === null || !parent?.filename || path.dirname(parent.filename) !== programFolder) return folders;
    const more = /^\.\.?(\/|$)/.test(request) ? [workspace] : Module._nodeModulePaths(workspace);
    return [...folders, ...more.filter((folder) => !folders.includes(folder))];
  };
}

// Hooks for `import` cost time and appear in stacks, so only a program that imports from the workspace gets them.
function importFromWorkspaceToo() {
  const source = fs.readFileSync(program, 'utf8');
  if (/\bimport\b[^;]*\bmcptools\b/.test(source)) importTools();
  if (!importsFromWorkspace(source)) return;
  const { pathToFileURL } = require('node:url');
  const urls = { program: pathToFileURL(program).href, workspace: pathToFileURL(`${workspace}/-`).href };
  if (Module.registerHooks) Module.registerHooks({ resolve: resolverFor(urls) });
  else Module.register(`data:text/javascript,${encodeURIComponent(asyncResolverFor(urls))}`);
}

function importTools() {
  const { pathToFileURL } = require('node:url');
  const hooks = path.join(__dirname, 'node_tools.cjs');
  if (Module.registerHooks) Module.registerHooks(require(hooks));
  else Module.register(pathToFileURL(hooks).href);
}

function importsFromWorkspace(source) {
  if (!/\bimport\b|\bexport\b/.test(source)) return false;
  if (fs.existsSync(path.join(workspace, 'node_modules'))) return true;
  const named = source.matchAll(/['"`](\.\.?\/[^'"`\n]+)['"`]/g);
  return [...named].some(([, name]) => !fs.existsSync(path.join(programFolder, name)) && fs.existsSync(path.join(workspace, name)));
}

function resolverFor(urls) {
  return (specifier, context, next) => {
    try {
      return next(specifier, context);
    } catch (error) {
      if (error.code !== 'ERR_MODULE_NOT_FOUND' || context.parentURL !== urls.program) throw error;
      return next(specifier, { ...context, parentURL: urls.workspace });
    }
  };
}

// Before Node 22.15 such hooks run in a separate thread, from source.
function asyncResolverFor(urls) {
  return `export async function resolve(specifier, context, next) {
    try { return await next(specifier, context); } catch (error) {
      if (error.code !== 'ERR_MODULE_NOT_FOUND' || context.parentURL !== ${JSON.stringify(urls.program)}) throw error;
      return next(specifier, { ...context, parentURL: ${JSON.stringify(urls.workspace)} });
    }
  }`;
}

// --- errors ----------------------------------------------------------------------------------------------------

function reportUncaught(pipe) {
  process.on('uncaughtExceptionMonitor', (error) => {
    try {
      const handled = process.listenerCount('uncaughtException') > 0 || process.hasUncaughtExceptionCaptureCallback();
      if (!handled && isSame(pipe, identity())) send(frameOf(error));
    } catch {
      // The program still fails as in plain Node.
    }
  });
}

function frameOf(error) {
  const { inspect, types } = require('node:util');
  const isError = error instanceof Error || types.isNativeError(error);
  return {
    type: 'error',
    name: cut(String(isError ? error.name : typeof error), 1000),
    value: cut(isError ? String(error.message) : inspect(error), LONGEST),
    traceback: cut(`${inspect(error)}\n`, LONGEST),
    errno: isError && Number.isInteger(error.errno) ? Math.abs(error.errno) : null,
  };
}

// The ellipsis at a cut tells the host to hide a partial secret there.
function cut(text, length) {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

function send(frame) {
  const body = Buffer.from(JSON.stringify(frame));
  const data = Buffer.concat([Buffer.alloc(4), body]);
  data.writeUInt32BE(body.length);
  for (let sent = 0; sent < data.length; ) sent += fs.writeSync(CONTROL, data, sent);
}

function identity() {
  try {
    return fs.fstatSync(CONTROL, { bigint: true });
  } catch {
    return null;
  }
}

function isSame(pipe, now) {
  return pipe !== null && now !== null && pipe.dev === now.dev && pipe.ino === now.ino;
}

// --- waiting ---------------------------------------------------------------------------------------------------

// The order is four bytes of length and JSON: {"env": the program's whole environment, "arguments": [...]}.
function waitForOrder(descriptor) {
  rehearse();
  const length = read(descriptor, 4);
  const body = length && read(descriptor, length.readUInt32BE());
  if (!body) process.exit(0);
  const order = JSON.parse(body.toString());
  if (!order.session) fs.closeSync(descriptor); // a session's requests follow on it
  // Leave unchanged variables alone: setting TZ, even to the same value, makes Node reload its time zone.
  const real = realWords(process.env.CASEMATE_PLACES ?? '');
  for (const name of Object.keys(process.env)) if (!Object.hasOwn(order.env, name)) delete process.env[name];
  for (const [name, given] of Object.entries(order.env)) {
    const value = real(given);
    if (process.env[name] !== value) process.env[name] = value;
  }
  process.argv.push(...order.arguments.map(real));
}

// Return a function that maps cell paths in a list such as PATH to real ones. Each line of the table is such a pair.
function realWords(table) {
  const places = table.split('\n').filter(Boolean).map((line) => line.split('\t'));
  if (places.length === 0) return (text) => text;
  const real = (word) => {
    const row = places.find(([inside]) => word === inside || word.startsWith(`${inside}/`));
    return row ? row[1] + word.slice(row[0].length) : word;
  };
  return (text) => text.split(':').map(real).join(':');
}

// Load and compile early what the first lines of every program need.
function rehearse() {
  for (const stream of [process.stdout, process.stderr]) void stream.writable;
  const { inspect } = require('node:util');
  inspect({ a: [1, 'b'] });
  JSON.parse('{"a": 1}');
  const module = new Module(`${programFolder}/rehearsal.js`, null);
  module.paths = [];
  module._compile('"use strict"; module.exports = [1].map((n) => `${n}`);', module.filename ?? module.id);
  fs.existsSync(program);
}

// Read exactly `size` bytes; null if the pipe ends first.
function read(descriptor, size) {
  const data = Buffer.alloc(size);
  for (let filled = 0; filled < size; ) {
    const count = fs.readSync(descriptor, data, filled, size - filled, null);
    if (count === 0) return null;
    filled += count;
  }
  return data;
}

// --- start -----------------------------------------------------------------------------------------------------

// Node marks descriptor 3 close-on-exec by itself. A worker thread runs this file again, without a program; a
// forked child must not: its descriptor 3 is something else.
if (program !== '') {
  if (process.env.CASEMATE_WAIT) waitForOrder(Number(process.env.CASEMATE_WAIT));
  process.execArgv.splice(0, process.execArgv.length, ...withoutThisFile(process.execArgv));
  requireFromWorkspaceToo();
  importFromWorkspaceToo();
  reportUncaught(identity());
}

function withoutThisFile(flags) {
  const at = flags.indexOf(__filename);
  return at > 0 ? [...flags.slice(0, at - 1), ...flags.slice(at + 1)] : flags;
}
