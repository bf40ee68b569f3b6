'use strict';
// The tools that this program may call: `const { files } = require('mcptools')`, then `await files.list_directory({...})`.
// Servers and tools are looked up when called, by their names on the wire or those of their Python modules.

const net = require('node:net');

const HOST = 'tools.casemate.internal';
const PORT = 7;
const NO_TOOLS = 'this program has none: casemate run --tool-server NAME gives it some, casemate tools add does in a session, Sandbox(tools=...) in Python';
const MOST_KEPT = 8;
const LONGEST = 64 * 2 ** 20;
// Properties that promises, `JSON` and consoles read from any object. No server or tool has such a name.
const ASKED_OF_ALL = new Set(['then', 'toJSON', 'constructor', 'prototype', 'inspect', '__esModule', '__proto__']);
const kept = [];
const contents = new WeakMap();
let rows = null;

class ToolError extends Error {
  constructor(message, kind = 'tool', content = []) {
    super(message);
    this.name = 'ToolError';
    this.kind = kind;
    this.content = content;
  }
}

class Output {
  constructor(content) {
    this.text = content.filter((block) => block?.type === 'text').map((block) => block.text).join('\n');
    this.content = content;
  }

  toString() {
    return this.text;
  }
}

// --- connections -----------------------------------------------------------------------------------------------

// Each connection's current call. A connection that gets data without one is closed.
const calls = new WeakMap();

function connection() {
  const open = kept.pop();
  if (open) return open.ref();
  const [, host, port] = /^(.*):(\d+)$/.exec(process.env.CASEMATE_TOOLS ?? '') ?? [null, HOST, PORT];
  const socket = net.connect({ host, port: Number(port), noDelay: true });
  socket.on('data', (data) => (calls.get(socket)?.heard ?? drop)(data));
  socket.on('error', (error) => calls.get(socket)?.broken(error.code === 'ENOTFOUND' ? NO_TOOLS : error.message));
  socket.on('close', () => (calls.get(socket)?.broken ?? drop)('the connection was closed'));
  const drop = () => {
    const at = kept.indexOf(socket);
    if (at >= 0) kept.splice(at, 1);
    socket.destroy();
  };
  return socket;
}

// Send one request and return its answer. Its connection is kept for the next; closing it cancels the call. `tell` is
// called with the lines before the answer.
function ask(request, signal, tell) {
  const line = `${JSON.stringify(request, finite)}\n`;
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const socket = connection();
    let parts = [];
    let size = 0;
    const end = (settle, value, keep) => {
      signal?.removeEventListener('abort', abort);
      calls.delete(socket);
      if (keep && kept.length < MOST_KEPT) kept.push(socket.unref());
      else socket.destroy();
      settle(value);
    };
    const broken = (why) => end(reject, new ToolError(`the host's tools cannot be reached: ${why}`, 'unavailable'), false);
    const abort = () => end(reject, signal.reason, false);
    const heard = (data) => {
      parts.push(data);
      size += data.length;
      if (size > LONGEST) return broken('the answer is too long');
      if (!data.includes(10)) return undefined;
      const lines = Buffer.concat(parts).toString().split('\n');
      const rest = lines.pop();
      parts = [Buffer.from(rest)];
      size = parts[0].length;
      let said;
      try {
        said = lines.map(read);
      } catch {
        return broken('the answer is not JSON');
      }
      const answer = said.find((one) => !tell || 'ok' in Object(one));
      try {
        for (const one of said) if (one !== answer) tell(one);
      } catch (error) {
        return end(reject, error, false);
      }
      // After these errors the host closes the connection, because it cannot find the next request in it.
      const keep = !['invalid', 'limit'].includes(answer?.kind);
      return answer === undefined ? undefined : end(resolve, answer, keep);
    };
    signal?.addEventListener('abort', abort);
    calls.set(socket, { heard, broken });
    socket.write(line);
  });
}

function finite(key, value) {
  if (typeof value === 'number' && !Number.isFinite(value)) throw new ToolError(`${key}: ${value} is no number in JSON`, 'invalid');
  if (typeof value !== 'bigint') return value;
  if (!JSON.rawJSON) throw new ToolError(`${key}: Node ${process.version} cannot send a bigint; Node 22 can`, 'invalid');
  return JSON.rawJSON(value.toString());
}

// Parse JSON. From Node 22 on, integers that a number would round become bigints.
function read(line) {
  return /\d{16}/.test(line) ? JSON.parse(line, exact) : JSON.parse(line);
}

function exact(key, value, context) {
  const isRounded = typeof value === 'number' && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source);
  return isRounded ? BigInt(context.source) : value;
}

async function answered(request, signal, tell) {
  const answer = await ask(request, signal, tell);
  if (answer?.ok === true) return answer;
  throw new ToolError(String(answer?.message ?? 'the call failed'), String(answer?.kind ?? 'tool'), answer?.content ?? []);
}

// --- calls -----------------------------------------------------------------------------------------------------

async function call(server, tool, args, { signal, onProgress } = {}) {
  const line = lineOfProgram();
  const row = await find(server, tool);
  const request = { do: 'call', server: row.server, tool: row.tool, arguments: args, line };
  const tell = onProgress && (({ progress, total, message }) => onProgress({ progress, total, message }));
  const answer = await answered(tell ? { ...request, progress: true } : request, signal, tell);
  const content = answer.content ?? [];
  for (const block of content) {
    if (block?.type !== 'resource_link') continue;
    const request = { do: 'read', server: row.server, uri: block.uri };
    Object.defineProperty(block, 'read', { value: async () => (await answered(request)).content });
  }
  if (!('structured' in answer)) return new Output(content);
  if (typeof answer.structured === 'object' && answer.structured !== null) contents.set(answer.structured, content);
  return answer.structured;
}

// The innermost line of the submitted program, or of the step whose top level runs. Absent if the stack shows neither.
function lineOfProgram() {
  const stack = String(new Error().stack);
  const program = /\/program\/main\.\w+$/.exec(process.argv[1] ?? '') ? process.argv[1] : undefined;
  const file = /^ +at (?:async )?(step_\d+):/m.exec(stack)?.[1] ?? program;
  const at = file ? stack.indexOf(`${file}:`) : -1;
  return at < 0 ? undefined : Number.parseInt(stack.slice(at + file.length + 1), 10) || undefined;
}

async function find(server, tool) {
  const known = rows && named(server, tool);
  if (known) return known;
  rows = (await answered({ do: 'list' })).tools ?? [];
  const found = named(server, tool);
  if (found) return found;
  throw new ToolError(`there is no tool ${server}.${tool}; await search() lists what there is`, 'unknown');
}

function named(server, tool) {
  return (
    rows.find((row) => row.server === server && row.tool === tool) ??
    rows.find((row) => row.module === `mcptools.${server}.${tool}`) ??
    rows.find((row) => row.server === server && row.module.split('.')[2] === tool) ??
    rows.find((row) => row.tool === tool && row.module.split('.')[1] === server)
  );
}

async function search(query = '', detail = 'brief') {
  return (await answered({ do: 'search', query, detail })).text;
}

// Everything that came with a result: texts, images, audio, resources and links, as MCP has them. What a link leads to
// comes with `await link.read()`.
function contentOf(result) {
  return result instanceof Output ? result.content : (contents.get(result) ?? []);
}

// --- names -----------------------------------------------------------------------------------------------------

const isName = (name) => typeof name === 'string' && !ASKED_OF_ALL.has(name);

function lazily(target, make) {
  return new Proxy(target, {
    get(held, name, receiver) {
      if (name in held || !isName(name)) return Reflect.get(held, name, receiver);
      const made = make(name);
      Object.defineProperty(held, name, { value: made, enumerable: true, configurable: true });
      return made;
    },
    has: (held, name) => isName(name) || name in held,
  });
}

const server = (name) =>
  lazily(Object.create(null), (tool) => async (args = {}, options = undefined) => call(name, tool, args, options));

module.exports = lazily({ ToolError, contentOf, search }, server);
