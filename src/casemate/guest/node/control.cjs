'use strict';
// Frames: four bytes of length and JSON, out on descriptor 3 and in on descriptor 6.

const { Buffer } = require('node:buffer');
const fs = require('node:fs');
const net = require('node:net');
const process = require('node:process');

const CONTROL = 3;
const REQUESTS = 6;
const LONGEST = 16 * 2 ** 20;

const { writeSync } = fs;
const { alloc, allocUnsafe, byteLength, concat } = Buffer;
const pause = new Int32Array(new SharedArrayBuffer(4));

/** Write all of `data`, also where the pipe is full and does not block. */
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

/** The frame as it is sent, or null where it is too long. */
function encode(frame) {
  const text = JSON.stringify(frame);
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

/** Call `take` with every request; the end of the pipe is the end of the process. */
function listen(take) {
  let data = alloc(0);
  const socket = new net.Socket({ fd: REQUESTS, readable: true, writable: false });
  socket.on('data', (chunk) => {
    data = data.length === 0 ? chunk : concat([data, chunk]);
    while (data.length >= 4 && data.length >= 4 + data.readUInt32BE(0)) {
      const end = 4 + data.readUInt32BE(0);
      const request = JSON.parse(data.toString('utf8', 4, end));
      data = data.subarray(end);
      take(request);
    }
  });
  socket.on('end', () => process.exit(0));
  socket.on('error', () => process.exit(0));
}

Object.assign(exports, { LONGEST, encode, listen, send, writeAll });
