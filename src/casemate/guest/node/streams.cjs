'use strict';
// Connects process.stdin, stdout and stderr, the console, and descriptors 0 to 2 in fs and child processes to the step
// whose code uses them.

const childProcess = require('node:child_process');
const fs = require('node:fs');
const process = require('node:process');
const { Writable } = require('node:stream');
const { currentStep, descriptorForChild, descriptorOf, stdinOf } = require('./steps.cjs');

const { closeSync } = fs;
const bufferFrom = require('node:buffer').Buffer.from;
const { nextTick } = process;
const { Array: ArrayOfUsers, TypeError: TypeErrorOfUsers } = main;

// --- process.stdout and process.stderr -------------------------------------------------------------------------

class Output extends Writable {
  constructor(descriptor) {
    super({ decodeStrings: false, autoDestroy: false, emitClose: false });
    this.fd = descriptor;
    this._type = 'pipe';
    this._isStdio = true;
  }

  write(chunk, encoding, callback) {
    const done = typeof encoding === 'function' ? encoding : callback;
    currentStep()?.write(this.fd - 1, dataOf(chunk, encoding));
    if (typeof done === 'function') nextTick(done, null);
    return true;
  }

  // It cannot be closed, as in Node.
  end(chunk, encoding, callback) {
    const done = [chunk, encoding, callback].find((argument) => typeof argument === 'function');
    if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') this.write(chunk, encoding);
    nextTick(() => {
      this.emit('finish');
      done?.();
    });
    return this;
  }

  destroy() {
    return this;
  }

  destroySoon() {}
}

function dataOf(chunk, encoding) {
  if (typeof chunk === 'string') return isUtf8(encoding) ? chunk : bufferFrom(chunk, encoding);
  if (ArrayBuffer.isView(chunk)) return bufferFrom(chunk.buffer, chunk.byteOffset, chunk.byteLength);
  const error = new TypeErrorOfUsers('The "chunk" argument must be a string, a Buffer, a TypedArray or a DataView.');
  error.code = 'ERR_INVALID_ARG_TYPE';
  throw error;
}

function isUtf8(encoding) {
  return typeof encoding !== 'string' || encoding === 'utf8' || encoding === 'utf-8';
}

// Node's console also reports every line to the inspector, which costs more than writing it.
function plainConsole(stdout, stderr) {
  const plain = new main.console.Console({ stdout, stderr, ignoreErrors: false });
  for (const name of Object.keys(plain)) {
    if (typeof plain[name] === 'function' && typeof main.console[name] === 'function' && name !== 'Console') {
      main.console[name] = plain[name];
    }
  }
}

function replaceStreams() {
  const stdout = new Output(1);
  const stderr = new Output(2);
  const getters = { stdout: () => stdout, stderr: () => stderr, stdin: () => stdinOf(currentStep()) };
  for (const [name, get] of Object.entries(getters)) {
    Object.defineProperty(process, name, { get, configurable: true, enumerable: true });
  }
  plainConsole(stdout, stderr);
}

// --- fs ----------------------------------------------------------------------------------------------------------

function replaceKeeping(object, name, replacement) {
  const original = object[name];
  const properties = Object.getOwnPropertyDescriptors(original);
  delete properties.prototype;
  Object.defineProperties(replacement, properties);
  object[name] = replacement;
}

function replaceWrites() {
  const { write, writeSync } = fs;
  replaceKeeping(fs, 'writeSync', function (descriptor, ...rest) {
    const step = stepAt(descriptor);
    if (step === null) return writeSync(descriptor, ...rest);
    step.wrote(descriptor - 1, 0);
    const size = writeSync(descriptorOf(step, descriptor - 1), ...rest);
    step.wrote(descriptor - 1, size);
    return size;
  });
  replaceKeeping(fs, 'write', function (descriptor, ...rest) {
    const step = stepAt(descriptor);
    const done = rest[rest.length - 1];
    if (step === null || typeof done !== 'function') return write(descriptor, ...rest);
    rest[rest.length - 1] = (error, size, data) => {
      if (!error) step.wrote(descriptor - 1, size);
      done(error, size, data);
    };
    return write(descriptorOf(step, descriptor - 1), ...rest);
  });
}

function stepAt(descriptor) {
  return descriptor === 1 || descriptor === 2 ? currentStep() : null;
}

// --- child processes ---------------------------------------------------------------------------------------------

/** Call `start` with this step's pipes for 1 and 2 in `stdio`, then close the descriptors opened for it. */
function withStepsOwn(stdio, start) {
  const step = currentStep();
  if (step === null || stdio === undefined || stdio === null) return start(stdio);
  const opened = [];
  const own = (entry, index) => {
    const stream = streamOf(entry, index);
    if (stream === -1) return entry;
    const descriptor = descriptorForChild(step, stream);
    opened.push(descriptor);
    return descriptor;
  };
  try {
    const list = stdio === 'inherit' ? [stdio, stdio, stdio] : stdio;
    return start(Array.isArray(list) ? listOfUsers(list.length, (index) => own(list[index], index)) : list);
  } finally {
    for (const descriptor of opened) closeSync(descriptor);
  }
}

function listOfUsers(length, item) {
  const list = new ArrayOfUsers();
  for (let index = 0; index < length; index++) list[index] = item(index);
  return list;
}

// 0 for stdout, 1 for stderr, else -1.
function streamOf(entry, index) {
  if (entry === 'inherit') return index === 1 || index === 2 ? index - 1 : -1;
  const descriptor = typeof entry === 'number' ? entry : entry?.fd;
  return descriptor === 1 || descriptor === 2 ? descriptor - 1 : -1;
}

function replaceSpawning() {
  const { spawn } = childProcess.ChildProcess.prototype;
  childProcess.ChildProcess.prototype.spawn = function (options) {
    const start = (stdio) => spawn.call(this, stdio === undefined ? options : { ...options, stdio });
    return withStepsOwn(options?.stdio, start);
  };
  for (const name of ['spawnSync', 'execFileSync', 'execSync']) {
    const original = childProcess[name];
    replaceKeeping(childProcess, name, function (...given) {
      const at = given.findIndex((argument, index) => index > 0 && isOptions(argument));
      if (at < 0) return original(...given);
      return withStepsOwn(given[at].stdio, (stdio) => {
        const options = stdio === undefined ? given[at] : { ...given[at], stdio };
        return original(...given.slice(0, at), options, ...given.slice(at + 1));
      });
    });
  }
}

function isOptions(argument) {
  return typeof argument === 'object' && argument !== null && !Array.isArray(argument);
}

function replaceAll() {
  replaceStreams();
  replaceWrites();
  replaceSpawning();
  Module.syncBuiltinESMExports();
}

Object.assign(exports, { replaceAll });
