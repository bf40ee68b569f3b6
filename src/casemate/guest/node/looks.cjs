'use strict';
// Describes a value in a line by V8's previews, without running the user's code.

const { Buffer } = require('node:buffer');
const inspector = require('node:inspector');
const { types } = require('node:util');

const LONGEST = 200;
const LONGEST_LOOK = 10000;
const { byteLength } = Buffer;

/** Type, size in bytes and text of the value of a property. */
function lookOf(property) {
  if (property.get || property.set) return { type: 'getter', size: null, repr: '[Getter]' };
  const { value } = property;
  const remote = remoteOf(value);
  return { type: typeOf(value, remote), size: sizeOf(value), repr: shortened(reprOf(value, remote)) };
}

const holder = {};
let session = null;
let holderId = null;

function remoteOf(value) {
  try {
    return previewOf(value) ?? { type: typeof value };
  } catch {
    return { type: typeof value, description: `[${typeof value}]` }; // the user's code has broken node:inspector
  }
}

function previewOf(value) {
  if (session === null) connect();
  holder.value = value;
  const functionDeclaration = 'function () { return this.value; }';
  const answer = ask('Runtime.callFunctionOn', { functionDeclaration, objectId: holderId });
  holder.value = undefined;
  return answer?.result;
}

/** Ask V8, and release the objects of its answer. */
function ask(method, question) {
  let answer = null;
  const options = { generatePreview: true, objectGroup: 'looks' };
  session.post(method, { ...question, ...options }, (_, found) => (answer = ownCopy(found)));
  session.post('Runtime.releaseObjectGroup', { objectGroup: 'looks' });
  return answer;
}

/** The type and text of `name`, such as `a` or `a.b`; null if it is unknown, or its getter has side effects. */
function lookOfName(name) {
  if (!/^[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*$/.test(name)) return null;
  if (session === null) connect();
  const answer = ask('Runtime.evaluate', { expression: name, throwOnSideEffect: true });
  if (answer === null || answer.exceptionDetails) return null;
  const { type, subtype, className, value } = answer.result;
  const text = type === 'string' ? quoted(value) : value === undefined ? previewed(answer.result) : String(value);
  return `${name}: ${className ?? subtype ?? type}\n${text.slice(0, LONGEST_LOOK)}`;
}

// The inspector's answers consist of arrays and objects of the user's realm.
function ownCopy(answer) {
  return answer === undefined ? null : JSON.parse(JSON.stringify(answer));
}

function connect() {
  session = new inspector.Session();
  session.connect();
  const key = '__casemate_holder__';
  Object.defineProperty(main, key, { value: holder, configurable: true });
  session.post('Runtime.evaluate', { expression: key }, (_, answer) => (holderId = answer.result.objectId));
  delete main[key];
}

function typeOf(value, remote) {
  if (value === null) return 'null';
  if (typeof value === 'function') return remote.description?.startsWith('class') ? 'class' : 'function';
  if (typeof value !== 'object') return typeof value;
  return types.isProxy(value) ? 'Proxy' : shortened(String(remote.className ?? 'Object'));
}

function sizeOf(value) {
  if (typeof value === 'string') return byteLength(value);
  if (types.isAnyArrayBuffer(value) || ArrayBuffer.isView(value)) return byteSize(value);
  return null;
}

const ofUsers = (maker) => Object.getOwnPropertyDescriptor(maker.prototype, 'byteLength').get;
const makers = [Object.getPrototypeOf(main.Uint8Array), main.DataView, main.ArrayBuffer, main.SharedArrayBuffer];
const byteSizes = makers.map(ofUsers);

function byteSize(value) {
  for (const size of byteSizes) {
    try {
      return size.call(value);
    } catch {
      continue;
    }
  }
  return null;
}

function reprOf(value, remote = remoteOf(value)) {
  if (typeof value === 'string') return quoted(value.slice(0, LONGEST));
  if (typeof value === 'bigint') return `${value}n`;
  if (isTold(value)) return String(remote.description ?? value).split('\n')[0];
  return previewed(remote);
}

// Whether its description suffices.
function isTold(value) {
  if (typeof value !== 'object' || value === null) return true;
  return types.isNativeError(value) || types.isDate(value) || types.isRegExp(value);
}

function quoted(text) {
  return `'${JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`;
}

function previewed({ description = '', className = 'Object', preview }) {
  if (preview === undefined) return description;
  const list = preview.subtype === 'array' || preview.subtype === 'typedarray';
  const shown = preview.entries?.map(shownEntry) ?? preview.properties.map((property) => shownProperty(property, list));
  const inside = [...shown, ...(preview.overflow ? ['...'] : [])].join(', ');
  const name = className === 'Object' || className === 'Array' ? '' : `${description} `;
  if (list) return inside === '' ? `${name}[]` : `${name}[ ${inside} ]`;
  return inside === '' ? `${name}{}` : `${name}{ ${inside} }`;
}

function shownProperty(property, list) {
  return list && /^\d+$/.test(property.name) ? shownValue(property) : `${property.name}: ${shownValue(property)}`;
}

function shownEntry({ key, value }) {
  const shown = shownValue({ ...value, value: value.description });
  return key === undefined ? shown : `${shownValue({ ...key, value: key.description })} => ${shown}`;
}

function shownValue({ type, value = '' }) {
  if (type === 'string') return quoted(value);
  return type === 'accessor' ? '[Getter]' : value === '' ? `[${type}]` : value;
}

function shortened(text) {
  return text.length <= LONGEST ? text : `${text.slice(0, LONGEST - 3)}...`;
}

Object.assign(exports, { lookOf, lookOfName, reprOf, shortened });
