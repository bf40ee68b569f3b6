'use strict';
// `require`, `import` and the modules that are globals in a REPL, resolved from the working directory at start.

const fs = require('node:fs');
const path = require('node:path');
const process = require('node:process');
const { pathToFileURL } = require('node:url');
const { defineLazily } = require('./names.cjs');

// Runs in the users' realm, so that its objects are theirs. A name that static analysis of a CommonJS module does not
// find may still be one of its properties.
const IMPORTS = `
exports.require = require;
const plain = (specifier, options) => import(specifier, options);
exports.load = (specifier, options) => (exports.loaderOf(specifier) ?? plain)(specifier, options);
exports.named = async (specifier, options, names) => {
  const space = await exports.load(specifier, options);
  const missing = names.filter((name) => !(name in space));
  if (missing.length === 0) return space;
  const found = Object(space.default);
  const lost = missing.find((name) => name === 'default' || !(name in found));
  const one = (name) => [name, name in space ? space[name] : found[name]];
  if (lost === undefined) return Object.fromEntries(names.map(one));
  throw new SyntaxError("The requested module '" + specifier + "' does not provide an export named '" + lost + "'");
};`;

function install() {
  const folder = process.cwd();
  const filename = path.join(folder, 'session.cjs');
  const module = new Module(filename, null);
  module.filename = filename;
  module.paths = Module._nodeModulePaths(folder);
  process.mainModule = module;
  module._compile(IMPORTS, filename);
  const { require: requireFromThere, load, named } = module.exports;
  lookAnew(module.exports, folder);
  module.exports = new main.Object();
  module.loaded = true;
  defineModule({ module, exports: module.exports, require: requireFromThere, __filename: filename, __dirname: folder });
  defineImports(load, named, filename);
  defineBuiltins(requireFromThere);
}

// Node does not repeat a failed lookup at the same path. So each installation gets a new path to the same files.
const LAYER = `${process.env.CASEMATE_CELL ?? ''}/packages/node`; // below the cell's folder on walls without mounts
const LAST = '/node_modules'; // the last place where Node looks; it does not exist
const { existsSync, readlinkSync } = fs;
const loaders = new Map();

function installed() {
  try {
    return path.resolve(LAYER, readlinkSync(`${LAYER}/current`));
  } catch {
    return LAYER; // nothing is installed; casemate's own packages are there
  }
}

function lookAnew(exported, folder) {
  const plain = Module._resolveLookupPaths;
  Module._resolveLookupPaths = function (request, parent) {
    const folders = plain.call(this, request, parent);
    return folders === null ? null : folders.map((one) => (one === LAST ? installed() + LAST : one));
  };
  exported.loaderOf = (specifier) => {
    const name = /^(?:@[^/@.]+\/)?[^/@.:][^/:]*(?=\/|$)/.exec(String(specifier))?.[0];
    if (name === undefined) return null;
    const now = installed();
    if (!existsSync(`${now + LAST}/${name}`) || existsSync(`${folder + LAST}/${name}`)) return null;
    return loaderIn(now);
  };
}

function loaderIn(folder) {
  if (!loaders.has(folder)) {
    const module = new Module(path.join(folder, 'session.cjs'), null);
    module.filename = module.id;
    module._compile('exports.load = (specifier, options) => import(specifier, options);', module.id);
    loaders.set(folder, module.exports.load);
  }
  return loaders.get(folder);
}

function defineModule(values) {
  for (const [name, value] of Object.entries(values)) {
    Object.defineProperty(main, name, { value, writable: true, configurable: true, enumerable: false });
  }
}

// Called by the changed text of a step; see source.cjs.
function defineImports(load, named, filename) {
  const meta = new main.Object();
  const url = pathToFileURL(filename).href;
  Object.assign(meta, { dirname: path.dirname(filename), filename, url });
  meta.resolve = (specifier) => new main.URL(specifier, url).href;
  const value = Object.freeze({ __proto__: null, import: load, named, meta });
  Object.defineProperty(main, '__casemate__', { value, writable: false, configurable: false, enumerable: false });
}

function defineBuiltins(requireFromThere) {
  for (const name of Module.builtinModules) {
    const shown = !name.startsWith('_') && !name.includes('/') && !name.includes(':');
    if (shown && (name === 'crypto' || !(name in main))) defineLazily(name, () => requireFromThere(name));
  }
}

Object.assign(exports, { install });
