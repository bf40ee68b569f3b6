'use strict';
// Frames: four bytes of length and JSON, out on descriptor 3 and in on descriptor 6.

const { Buffer } = require('node:buffer');
const { randomUUID } = require('node:crypto');
const fs = require('node:fs');
const net = require('node:net');
const process = require('node:process');

const CONTROL = 3;
const REQUESTS = 6;
const LONGEST = 16 * 2 ** 20;

const { writeSync } = fs;
const { alloc, allocUnsafe, byteLength, concat } = Buffer;
const TAG = `${randomUUID()}:`;
const INTEGER = new RegExp(`"${TAG}(-?\\d+)"`, 'g');
const STRING_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g;
const pause = new Int32Array(new SharedArrayBuffer(4));

/** Write all of `data`, even if the pipe is full and non-blocking. */
function writeAll(descriptor, data) {
  for (let sent = 0; sent < data.length; ) {
    try {
      sent += writeSync(descriptor, data, sent, data.length - sent);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(pause, 0, 0, 1);
    }
  }
}

// Integers that a number would round become bigints, in every version of Node. Tagged strings carry them in between.

/** Encode a value that may hold bigints as JSON, or with them as tagged strings. */
function write(value, isTagged = false) {
  const text = JSON.stringify(value, (_, one) => (typeof one === 'bigint' ? TAG + one : one));
  return isTagged ? text : text.replace(INTEGER, '$1');
}

/** Decode what `write` has tagged, with bigints. */
function readTagged(text, parse) {
  return parse(text, (_, one) => (typeof one === 'string' && one.startsWith(TAG) ? BigInt(one.slice(TAG.length)) : one));
}

function read(text) {
  if (!text.startsWith('{"op": "set"') || !/\d{16}/.test(text)) return JSON.parse(text);
  const tagged = text.replace(STRING_OR_NUMBER, (found) =>
    /^-?\d+$/.test(found) && !Number.isSafeInteger(Number(found)) ? `"${TAG}${found}"` : found,
  );
  return readTagged(tagged, JSON.parse);
}

/** Encode the frame; null if it is too long. */
function encode(frame) {
  const text = frame.type === 'reply' ? write(frame) : JSON.stringify(frame);
  const size = byteLength(text);
  if (size > LONGEST) return null;
  const data = allocUnsafe(4 + size);
  data.writeUInt32BE(size, 0);
  data.utf8Write(text, 4, size);
  return data;
}

function send(frame) {
  const data = encode(frame);
  if (data === null) return false;
  writeAll(CONTROL, data);
  return true;
}

/** Call `take` with every request. The process ends when the pipe does. */
function listen(take) {
  let data = alloc(0);
  const socket = new net.Socket({ fd: REQUESTS, readable: true, writable: false });
  socket.on('data', (chunk) => {
    data = data.length === 0 ? chunk : concat([data, chunk]);
    while (data.length >= 4 && data.length >= 4 + data.readUInt32BE(0)) {
      const end = 4 + data.readUInt32BE(0);
      const request = read(data.toString('utf8', 4, end));
      data = data.subarray(end);
      take(request);
    }
  });
  socket.on('end', () => process.exit(0));
  socket.on('error', () => process.exit(0));
}

Object.assign(exports, { LONGEST, encode, listen, readTagged, send, write, writeAll });
