'use strict';
// Values as MIME bundles, as in Jupyter, and `display`.

const { Buffer } = require('node:buffer');
const { inspect, types } = require('node:util');
const { LONGEST, encode, send } = require('./control.cjs');
const { strictJson } = require('./json.cjs');
const { reprOf, shortened } = require('./looks.cjs');
const { currentStep } = require('./steps.cjs');

const OWN = Symbol.for('Jupyter.display');
const LOOKS = { colors: false, depth: 4, maxArrayLength: 100, maxStringLength: 100000, breakLength: 100 };
const LONGEST_TEXT = 2 ** 20;
const LARGEST_JSON = 100000;
const bufferFrom = Buffer.from;
const base64 = Buffer.prototype.toString;
const { Object: ObjectOfUsers, Array: ArrayOfUsers } = main;

/** Collect every representation that `value` offers, always including text/plain. */
function bundleOf(value) {
  const bundle = isObject(value) ? richBundle(value) : {};
  bundle['text/plain'] ??= plainText(value);
  return bundle;
}

function richBundle(value) {
  const own = ask(value, OWN);
  const bundle = isObject(own) ? clean(value, own) : {};
  const html = bundle['text/html'] === undefined ? ask(value, 'toHtml') : undefined;
  if (typeof html === 'string') bundle['text/html'] = html;
  const picture = pictureType(value);
  if (picture !== null) bundle[picture] ??= base64Of(value);
  if (isPlain(value)) addJson(bundle, value);
  return bundle;
}

// A proxy has every property, so its methods mean nothing.
function ask(value, method) {
  if (types.isProxy(value)) return undefined;
  try {
    const found = value[method];
    return typeof found === 'function' && !isClass(found) ? found.call(value) : undefined;
  } catch (error) {
    complain(value, String(method.description ?? method), error);
    return undefined;
  }
}

function isClass(value) {
  return Object.getOwnPropertyDescriptor(value, 'prototype')?.writable === false;
}

/** Keep the entries of a user's bundle that can be sent: base64 for bytes, JSON for JSON types, else text. */
function clean(value, given) {
  const bundle = {};
  for (const [type, data] of Object.entries(given)) {
    if (data === undefined || data === null) continue;
    try {
      if (types.isUint8Array(data)) bundle[type] = base64Of(data);
      else if (typeof data === 'string') bundle[type] = data;
      else if (type === 'application/json' || type.endsWith('+json')) bundle[type] = strictJson(data, LONGEST);
      else bundle[type] = plainText(data);
    } catch (error) {
      complain(value, type, error);
    }
  }
  return bundle;
}

function pictureType(value) {
  if (!types.isUint8Array(value) || value.length < 8) return null;
  if (value[0] === 0x89 && value[1] === 0x50 && value[2] === 0x4e && value[3] === 0x47) return 'image/png';
  return value[0] === 0xff && value[1] === 0xd8 && value[2] === 0xff ? 'image/jpeg' : null;
}

function base64Of(bytes) {
  return base64.call(bufferFrom(bytes.buffer, bytes.byteOffset, bytes.byteLength), 'base64');
}

function isPlain(value) {
  const prototype = types.isProxy(value) ? undefined : Object.getPrototypeOf(value);
  return prototype === null || prototype === ObjectOfUsers.prototype || prototype === ArrayOfUsers.prototype;
}

function addJson(bundle, value) {
  try {
    bundle['application/json'] ??= strictJson(value, LARGEST_JSON);
  } catch {
    // It has no JSON form, or a large one; its text is enough.
  }
}

function plainText(value) {
  try {
    return limited(inspect(value, LOOKS));
  } catch {
    return limited(reprOf(value));
  }
}

function limited(text) {
  const more = text.length - LONGEST_TEXT;
  return more <= 0 ? text : `${text.slice(0, LONGEST_TEXT)}... ${more} more characters`;
}

function isObject(value) {
  return (typeof value === 'object' && value !== null) || typeof value === 'function';
}

function complain(value, what, error) {
  const step = currentStep();
  step?.write(1, `display: ${what} failed: ${plainText(error).split('\n')[0]}\n`);
}

/** Send `frame` with as much of its bundle as a frame can hold. */
function sendBundle(frame) {
  while (!send(frame)) {
    const size = (type) => encode({ '': frame.bundle[type] })?.length ?? Infinity;
    const largest = Object.keys(frame.bundle).reduce((a, b) => (size(b) > size(a) ? b : a));
    delete frame.bundle[largest];
    complain(null, largest, new Error(`more than ${LONGEST} bytes`));
  }
}

/** `display(value, { raw, id, update })`. `raw`: the value is already a bundle. */
function display(value, options = {}) {
  const { raw = false, id = null, update = false } = options ?? {};
  const step = currentStep();
  if (step === null) return;
  const bundle = raw && isObject(value) ? clean(value, value) : bundleOf(value);
  const name = id === null || id === undefined ? null : shortened(String(id));
  sendBundle({ type: 'display', step: step.number, at: step.at, bundle, id: name, update: update === true });
}

function clear({ wait = false } = {}) {
  const step = currentStep();
  if (step !== null) send({ type: 'clear', step: step.number, at: step.at, wait: wait === true });
}

function install() {
  const shown = (value, options) => display(value, options);
  shown.clear = (options) => clear(options);
  Object.defineProperty(shown, 'name', { value: 'display' });
  Object.defineProperty(main, 'display', { value: shown, writable: true, configurable: true, enumerable: false });
}

Object.assign(exports, { bundleOf, install, sendBundle });
