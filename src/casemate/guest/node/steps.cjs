'use strict';
// Steps and their pipes: which step code belongs to, and where its output goes.

const { AsyncLocalStorage } = require('node:async_hooks');
const { Buffer } = require('node:buffer');
const fs = require('node:fs');
const os = require('node:os');
const process = require('node:process');
const { Readable } = require('node:stream');
const { clearImmediate, clearTimeout, setImmediate, setTimeout } = require('node:timers');
const { inspect } = require('node:util');
const { send, writeAll } = require('./control.cjs');

const { closeSync, fstatSync, openSync, unlinkSync, writeFileSync, writeSync } = fs;
const { O_RDONLY, O_WRONLY } = fs.constants;
const bufferFrom = Buffer.from;

const NOTHING = '/dev/null';
const TEMPORARY = os.tmpdir();
const KEPT = 16;
const SHORT = 1365; // characters; at most 4096 bytes, which a pipe takes whole or not at all
const CHUNK = 2 ** 17;

const storage = new AsyncLocalStorage();
const kept = [];
let latest = null;

class Step {
  constructor({ step, out, err, stdin }) {
    this.number = step;
    this.paths = [out, err];
    this.descriptors = [-1, -1];
    this.written = [0, 0];
    this.stream = -1; // the one written to last
    this.running = true;
    this.input = bufferFrom(stdin ?? '', 'base64');
    this.stdin = null;
    this.failed = false;
  }

  [inspect.custom]() {
    return `step ${this.number}`;
  }

  get at() {
    return [this.written[0], this.written[1]];
  }

  wrote(stream, bytes) {
    const changes = this.stream !== -1 && this.stream !== stream;
    if (changes && this.running) send({ type: 'mark', step: this.number, at: this.at });
    this.stream = stream;
    this.written[stream] += bytes;
  }

  write(stream, data) {
    const descriptor = this.descriptors[stream];
    if (descriptor === -1) return;
    this.wrote(stream, 0);
    try {
      if (typeof data !== 'string') this.writeBytes(stream, descriptor, data);
      else if (data.length <= SHORT) this.writeShort(stream, descriptor, data);
      else this.writeLong(stream, descriptor, data);
    } catch (error) {
      if (error.code !== 'EPIPE' && error.code !== 'EBADF') throw error;
      if (error.code === 'EPIPE') this.close(stream);
      this.descriptors[stream] = -1; // it has no reader, or the user's code closed it
    }
  }

  writeShort(stream, descriptor, text) {
    let size;
    try {
      size = writeSync(descriptor, text);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      return this.writeBytes(stream, descriptor, bufferFrom(text));
    }
    this.written[stream] += size;
  }

  writeLong(stream, descriptor, text) {
    for (let start = 0; start < text.length; ) {
      let end = start + CHUNK;
      if (end < text.length && (text.charCodeAt(end) & 0xfc00) === 0xdc00) end -= 1; // do not split a surrogate pair
      this.writeBytes(stream, descriptor, bufferFrom(text.slice(start, end)));
      start = end;
    }
  }

  writeBytes(stream, descriptor, bytes) {
    writeAll(descriptor, bytes);
    this.written[stream] += bytes.length;
  }

  close(stream) {
    if (this.descriptors[stream] !== -1) closeSync(this.descriptors[stream]);
    this.descriptors[stream] = -1;
  }
}

/** The step that the running code belongs to; null before the first. */
function currentStep() {
  return storage.getStore() ?? latest;
}

/** Hide the fields in which Node before 24 stores a promise's or timer's context, so that inspect omits them. */
function hideMarks() {
  const promise = storage.run(null, () => new main.Promise(() => {}));
  const timers = [setTimeout(() => undefined, 0), setImmediate(() => undefined)];
  const marks = Object.getOwnPropertySymbols(promise);
  for (const { constructor } of [promise, ...timers]) {
    if (marks.length === 0) break;
    const property = { value: hiding(marks), configurable: true, writable: true };
    Object.defineProperty(constructor.prototype, inspect.custom, property);
  }
  clearTimeout(timers[0]);
  clearImmediate(timers[1]);
}

function hiding(marks) {
  return function () {
    for (const mark of marks) if (Object.hasOwn(this, mark)) Object.defineProperty(this, mark, { enumerable: false });
    return this;
  };
}

/** Open the step's pipes as descriptors 1 and 2. */
function begin(request) {
  const step = new Step(request);
  step.descriptors = [openSync(step.paths[0], O_WRONLY), openSync(step.paths[1], O_WRONLY)];
  kept.push(step);
  if (kept.length > KEPT) {
    const old = kept.shift();
    old.close(0);
    old.close(1);
  }
  place(1, step.paths[0], O_WRONLY);
  place(2, step.paths[1], O_WRONLY);
  if (step.input.length || latest === null || latest.input.length) placeInput(step.input);
  latest = step;
  return step;
}

const placed = new Map();

// Node has no dup2, but a file opened after a close gets the lowest free number. If another file has taken the number
// meanwhile, it is left alone.
function place(descriptor, path, flags) {
  if (placed.has(descriptor) && placed.get(descriptor) !== identity(descriptor)) return;
  closeSync(descriptor);
  const opened = openedOrNothing(path, flags);
  if (opened !== descriptor) closeSync(opened);
  else placed.set(descriptor, identity(descriptor));
}

// A free number would go to the next file that is opened.
function openedOrNothing(path, flags) {
  try {
    return openSync(path, flags);
  } catch {
    return openSync(NOTHING, flags);
  }
}

function identity(descriptor) {
  try {
    const { dev, ino } = fstatSync(descriptor);
    return `${dev}:${ino}`;
  } catch {
    return null;
  }
}

function placeInput(data) {
  if (!data.length) return place(0, NOTHING, O_RDONLY);
  const path = `${TEMPORARY}/.casemate-${process.pid}-${Date.now()}`;
  writeFileSync(path, data, { mode: 0o600, flag: 'wx' });
  place(0, path, O_RDONLY);
  unlinkSync(path);
}

function stdinOf(step) {
  if (step === null) return readable(bufferFrom(''));
  step.stdin ??= readable(step.input);
  return step.stdin;
}

function readable(data) {
  const stream = new Readable({ read() {} });
  stream.fd = 0;
  if (data.length) stream.push(data);
  stream.push(null);
  return stream;
}

let sink = -1;

/** Where `step` writes. Output after its pipes were closed is discarded. */
function descriptorOf(step, stream) {
  if (step.descriptors[stream] !== -1) return step.descriptors[stream];
  if (sink === -1) sink = openSync(NOTHING, O_WRONLY);
  return sink;
}

/** Open the pipe again for a child, so that making it non-blocking affects only the child. */
function descriptorForChild(step, stream) {
  return openSync(`/proc/self/fd/${descriptorOf(step, stream)}`, O_WRONLY);
}

Object.assign(exports, { begin, currentStep, descriptorForChild, descriptorOf, hideMarks, stdinOf, storage });
