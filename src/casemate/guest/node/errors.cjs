'use strict';
// What was thrown, as a frame and as text.

const { inspect, types } = require('node:util');

const LONGEST = 2 ** 20;
const { Error: ErrorOfUsers } = main;
const { toString: toStringOfUsers } = ErrorOfUsers.prototype;

/** Name, value, traceback and errno of what was thrown; it may be anything, and may throw itself when it is asked. */
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
  // An error without any frame is shown in brackets, which is for values.
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

/** As much of its text as `length` allows. An ellipsis says so: the host hides half secrets there. */
function cut(value, length) {
  const text = String(value);
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

// --- stacks ------------------------------------------------------------------------------------------------------

const CALLERS = /^node:(?:vm|inspector|async_hooks|internal\/async_local_storage|internal\/vm)/;

/** From now on stacks end where the user's code does, and not with what called it. */
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

// As Node's own: with the code of its own errors.
function heading(error) {
  const text = ask(() => toStringOfUsers.call(error), '[an error that cannot be shown]');
  const code = ask(() => error.code, null);
  const isNodes = typeof code === 'string' && code.startsWith('ERR_') && text.startsWith(error.name);
  return isNodes ? `${error.name} [${code}]${text.slice(error.name.length)}` : text;
}

Object.assign(exports, { cut, described, hideOwnFrames, isErrorLike, textOf });
