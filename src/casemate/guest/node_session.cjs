'use strict';
// The interpreter of a Node session (docs/internals/session-protocol.md). The files of node/ are loaded into a separate
// realm, so that user code that breaks Array.prototype or JSON does not break the interpreter. There `main` is the
// users' global object.

const fs = require('node:fs');
const path = require('node:path');
const vm = require('node:vm');

const folder = path.join(__dirname, 'node');

function realm() {
  const context = vm.createContext({ __proto__: null });
  const loaded = new Map();
  return function load(name) {
    if (!name.startsWith('./')) return name === 'realm' ? context : require(name);
    if (!loaded.has(name)) loaded.set(name, evaluate(path.join(folder, name), context, load));
    return loaded.get(name);
  };
}

function evaluate(filename, parsingContext, load) {
  const source = fs.readFileSync(filename, 'utf8');
  const body = vm.compileFunction(source, ['require', 'exports', 'main', 'Module', 'folder'], { filename, parsingContext });
  const exports = {};
  body(load, exports, globalThis, module.constructor, folder);
  return exports;
}

// A child or a worker that runs the session's program again has no such pipes, and ends at once.
function isPipe(descriptor) {
  try {
    return fs.fstatSync(descriptor).isFIFO();
  } catch {
    return false;
  }
}

if (require('node:worker_threads').isMainThread && isPipe(3) && isPipe(6)) realm()('./session.cjs').start();
