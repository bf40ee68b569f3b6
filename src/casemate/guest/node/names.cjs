'use strict';
// The names that steps have bound. All are properties of the global object, as with `var`.

const vm = require('node:vm');
const { NotJson, forUsers, strictJson } = require('./json.cjs');
const { lookOf, shortened } = require('./looks.cjs');

const MOST = 10000;
const LONGEST = 200;
const { Script } = vm;
// Node creates some globals on first access, and only in its own realm, not in this one.
const { getOwnPropertyDescriptor } = main.Object;
const propertyOf = (name) => getOwnPropertyDescriptor(main, name);

const IDENTIFIER = /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*$/u;
const given = new Set(); // names that existed at the beginning
const bound = new Set(); // in order of definition

/** Treat all current names as not the user's. */
function settle() {
  for (const name of Object.getOwnPropertyNames(main)) given.add(name);
}

/** Return the names bound and deleted since the last call. */
function changes() {
  const now = new Set(Object.getOwnPropertyNames(main).filter(isBound));
  const fresh = [...now].filter((name) => !bound.has(name));
  const gone = [...bound].filter((name) => !now.has(name));
  for (const name of gone) bound.delete(name);
  for (const name of fresh) bound.add(name);
  return { new: sent(fresh), gone: sent(gone) };
}

// Node's lazy modules (`fs`, `path`) become the user's when they are assigned.
function isBound(name) {
  if (!given.has(name)) return true;
  return replaceable.has(name) && propertyOf(name)?.get !== replaceable.get(name);
}

function sent(names) {
  return names.slice(0, MOST).map(shortened);
}

// --- globals of a REPL -------------------------------------------------------------------------------------------

const replaceable = new Map(); // name to getter

/** Make `name` a property that is computed on access and can be redeclared. */
function defineLazily(name, get) {
  const attributes = { writable: true, configurable: true, enumerable: true };
  const set = (value) => Object.defineProperty(main, name, { value, ...attributes });
  Object.defineProperty(main, name, { get, set, configurable: true, enumerable: false });
  replaceable.set(name, get);
}

/** Make `navigator` assignable: its getter would discard a user's `const navigator = 1`. */
function makeAssignable() {
  // By name, because reading every property would make Node load what is behind it.
  const navigator = propertyOf('navigator');
  if (navigator?.get !== undefined && navigator.set === undefined) defineLazily('navigator', navigator.get.bind(main));
}

// --- requests ----------------------------------------------------------------------------------------------------

function get(name) {
  const property = propertyOf(name);
  if (property === undefined) throw new NotJson(`there is no variable ${shortened(name)}`);
  return strictJson(property.get === undefined ? property.value : property.get.call(main), Infinity, true);
}

function set(name, value) {
  if (!isName(name)) throw new NotJson(`${shortened(JSON.stringify(name))} is not a name that a variable can have`);
  new Script(`var ${name};`, { filename: 'set' }).runInThisContext();
  main[name] = forUsers(value);
  changes();
}

function isName(name) {
  if (typeof name !== 'string' || name.length > LONGEST || !IDENTIFIER.test(name)) return false;
  if (given.has(name) && !replaceable.has(name)) return false;
  try {
    new Script(`"use strict"; var ${name};`);
    return true;
  } catch {
    return false;
  }
}

function variables() {
  changes();
  return [...bound].slice(0, MOST).map((name) => ({ name: shortened(name), ...lookOf(propertyOf(name)) }));
}

Object.assign(exports, { changes, defineLazily, get, makeAssignable, set, settle, variables });
