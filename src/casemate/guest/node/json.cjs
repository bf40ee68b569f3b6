'use strict';
// Converts the user's values to JSON strictly. The error says what JSON cannot hold, and where.

const { types } = require('node:util');
const { readTagged, write } = require('./control.cjs');
const { Object: ObjectOfUsers, JSON: JsonOfUsers } = main;

const DEEPEST = 500;
const LONGEST_INTEGER = 4300; // digits; the host reads no more
const plainPrototypes = new Set([ObjectOfUsers.prototype, null]);
const parseOfUsers = JsonOfUsers.parse;

const NAMES = { bigint: 'a BigInt', undefined: 'undefined' };

class NotJson extends Error {}

/** Copy `value` into this realm. Throws `NotJson`. `bigints` allows integers of any size. */
function strictJson(value, most = Infinity, bigints = false) {
  const state = { path: [], open: new Set(), left: most, bigints };
  return copied(value, state);
}

function copied(value, state) {
  if ((state.left -= 1) < 0) throw new NotJson('the value is too large');
  switch (typeof value) {
    case 'boolean':
      return value;
    case 'string':
      state.left -= value.length;
      return value;
    case 'number':
      if (!Number.isFinite(value)) fail(String(value), state);
      return value;
    case 'bigint':
      if (!state.bigints) fail(NAMES.bigint, state);
      if (`${value}`.length > LONGEST_INTEGER) fail(`a BigInt of more than ${LONGEST_INTEGER} digits`, state);
      return value;
    case 'object':
      return value === null ? null : copiedObject(value, state);
    default:
      return fail(NAMES[typeof value] ?? `a ${typeof value}`, state);
  }
}

function copiedObject(value, state) {
  if (types.isProxy(value)) fail('a Proxy', state);
  const list = Array.isArray(value);
  if (!list && !isPlain(value)) fail(named(value), state);
  if (state.open.has(value)) fail('a reference to itself', state);
  if (state.open.size >= DEEPEST) throw new NotJson(`the value is more than ${DEEPEST} levels deep`);
  state.open.add(value);
  const copy = list ? copiedList(value, state) : copiedFields(value, state);
  state.open.delete(value);
  return copy;
}

function copiedList(value, state) {
  const copy = [];
  for (let index = 0; index < value.length; index++) copy.push(copiedField(value, index, state));
  return copy;
}

function copiedFields(value, state) {
  const copy = Object.create(null);
  for (const name of Object.keys(value)) copy[name] = copiedField(value, name, state);
  return copy;
}

function copiedField(value, name, state) {
  const property = Object.getOwnPropertyDescriptor(value, name);
  state.path.push(name);
  if (property?.get || property?.set) fail('a getter', state);
  const copy = copied(property?.value, state);
  state.path.pop();
  return copy;
}

function isPlain(value) {
  const prototype = Object.getPrototypeOf(value);
  return plainPrototypes.has(prototype) && !types.isModuleNamespaceObject(value);
}

function named(value) {
  const prototype = Object.getPrototypeOf(value);
  const maker = Object.getOwnPropertyDescriptor(prototype ?? value, 'constructor')?.value;
  const name = typeof maker === 'function' ? Object.getOwnPropertyDescriptor(maker, 'name')?.value : null;
  return typeof name === 'string' && name !== '' ? `a ${name}` : 'an object of a class';
}

function fail(what, { path }) {
  const place = path.map((name) => (/^[A-Za-z_$][\w$]*$/.test(name) ? `.${name}` : `[${JSON.stringify(name)}]`));
  throw new NotJson(`${what}${place.length > 0 ? ` at ${place.join('')}` : ''} is not JSON`);
}

/** Convert parsed JSON to objects of the user's realm. */
function forUsers(value) {
  return readTagged(write(value, true), parseOfUsers);
}

Object.assign(exports, { NotJson, forUsers, strictJson });
