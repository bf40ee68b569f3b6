'use strict';
// Describes thrown values for frames and as text.

const { inspect, types } = require('node:util');

const LONGEST = 2 ** 20;
const { Error: ErrorOfUsers } = main;
const { toString: toStringOfUsers } = ErrorOfUsers.prototype;

/** Name, value, traceback and errno of a thrown value. It may be anything, and reading it may throw. */
function described(thrown) {
  const isError = isErrorLike(thrown);
  return {
    name: cut(ask(() => (isError ? thrown.name : typeof thrown), 'Error'), 1000),
    value: cut(ask(() => (isError ? thrown.message : inspect(thrown)), ''), LONGEST),
    traceback: textOf(thrown),
    errno: ask(() => (isError && Number.isInteger(thrown.errno) ? Math.abs(thrown.errno) : null), null),
  };
}

function textOf(thrown) {
  const stack = isErrorLike(thrown) ? ask(() => thrown.stack, null) : null;
  const text = ask(() => inspect(thrown), null) ?? stack ?? '[an error that cannot be shown]';
  // inspect shows an error without frames in brackets, as a value.
  return `${cut(typeof stack === 'string' ? text.replace(`[${stack}]`, () => stack) : text, LONGEST)}\n`;
}

function isErrorLike(value) {
  return types.isNativeError(value) || ask(() => value instanceof ErrorOfUsers, false);
}

function ask(question, otherwise) {
  try {
    return question();
  } catch {
    return otherwise;
  }
}

/** Cut its text to `length`. The ellipsis tells the host to hide a partial secret there. */
function cut(value, length) {
  const text = String(value);
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

// --- stacks ------------------------------------------------------------------------------------------------------

const CALLERS = /^node:(?:vm|inspector|async_hooks|internal\/async_local_storage|internal\/vm)/;

/** Make stacks end with the user's code, without its callers. */
function hideOwnFrames() {
  ErrorOfUsers.prepareStackTrace = function prepareStackTrace(error, frames) {
    return [heading(error), ...framesOfUsers(frames)].join('\n    at ');
  };
}

function framesOfUsers(frames) {
  const shown = [];
  for (let at = 0; at < frames.length; at++) {
    if (!fileOf(frames[at]).startsWith(folder)) shown.push(frames[at]);
    else if (shown.length > 0) break;
  }
  while (shown.length > 0 && CALLERS.test(fileOf(shown[shown.length - 1]))) shown.pop();
  return shown;
}

function fileOf(frame) {
  return String(frame.getFileName() ?? '');
}

// As in Node: with the code of Node's own errors.
function heading(error) {
  const text = ask(() => toStringOfUsers.call(error), '[an error that cannot be shown]');
  const code = ask(() => error.code, null);
  const isNodes = typeof code === 'string' && code.startsWith('ERR_') && text.startsWith(error.name);
  return isNodes ? `${error.name} [${code}]${text.slice(error.name.length)}` : text;
}

Object.assign(exports, { cut, described, hideOwnFrames, textOf });
