'use strict';
// Runs a step's text: as a script, or in V8's REPL mode if it may await. SIGINT ends both.

const inspector = require('node:inspector');
const v8 = require('node:v8');
const vm = require('node:vm');
const realm = require('realm');
const { watch } = require('./interrupts.cjs');
const { prepared } = require('./source.cjs');

const { Script } = vm;
const { promiseHooks } = v8;
const thenOfUsers = main.Promise.prototype.then;
const { apply } = Reflect;

const WRAPPER = '(async () => {\n';
const AWAIT = /\bawait\b/;
const ENTRY = new Script('go()', { filename: `${folder}/entry` });

const REHEARSAL = 'rehearsal';

let session = null;

/** Run `code`, and call `done({ value })`, `done({ thrown })` or `done({ interrupted: true })`. */
function evaluate(code, filename, done) {
  let started;
  try {
    const { text, waits } = chosen(code, filename);
    if (!waits) return done(outcomeOf(() => runScript(text, filename)));
    if (filename !== REHEARSAL) watch();
    started = outcomeOf(() => guarded(() => runAwaiting(text, filename)));
  } catch (thrown) {
    return done({ thrown });
  }
  if (started.value === undefined || started.interrupted) return done(started);
  const settled = started.value;
  apply(thenOfUsers, settled, [(result) => done({ value: result?.['.repl_result'] }), (thrown) => done({ thrown })]);
}

// Use the changed text if it compiles; otherwise the given text, also for its error. Text with import statements never
// compiles as given.
function chosen(code, filename) {
  const given = { text: code, waits: AWAIT.test(code) };
  let changed = given;
  try {
    changed = prepared(code);
    if (changed.text !== code) compiled(changed.text, changed.waits, filename);
  } catch (error) {
    if (changed.text.includes('__casemate__.named')) throw error;
    changed = given;
  }
  if (changed.text === code) compiled(code, changed.waits, filename);
  return changed;
}

// Text that may await is compiled only for an error that shows its line.
function compiled(text, waits, filename) {
  if (!waits) return new Script(text, { filename });
  return new Script(`${WRAPPER}${text}\n})`, { filename, lineOffset: -1 });
}

function outcomeOf(run) {
  try {
    return { value: run() };
  } catch (thrown) {
    return isInterrupt(thrown) ? { interrupted: true } : { thrown };
  }
}

function isInterrupt(thrown) {
  return Object.getOwnPropertyDescriptor(Object(thrown), 'code')?.value === 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
}

function runScript(text, filename) {
  return new Script(text, { filename }).runInThisContext({ breakOnSigint: true, displayErrors: false });
}

function guarded(run) {
  realm.go = run;
  return ENTRY.runInContext(realm, { breakOnSigint: true, displayErrors: false });
}

// The first promise that the code makes is that of the whole step. It must be kept: V8 crashes if it collects an
// unsettled one.
const unsettled = new Set();

function runAwaiting(text, filename) {
  if (session === null) connect();
  let promise;
  const stop = promiseHooks.onInit((made) => {
    promise ??= made;
    stop();
  });
  let failure;
  const expression = `${text}\n//# sourceURL=${filename}`;
  session.post('Runtime.evaluate', { expression, replMode: true, objectGroup: 'step' }, (error, answer) => {
    failure ??= error ?? answer.exceptionDetails;
    session.post('Runtime.releaseObjectGroup', { objectGroup: 'step' });
  });
  stop();
  if (promise === undefined) throw new main.SyntaxError(messageOf(failure));
  hold(promise);
  return promise;
}

function hold(promise) {
  unsettled.add(promise);
  const release = () => unsettled.delete(promise);
  apply(thenOfUsers, promise, [release, release]);
}

function messageOf(failure) {
  const text = failure?.exception?.description ?? failure?.message ?? 'the code could not be run';
  return String(text).split('\n')[0].replace(/^SyntaxError: /, '');
}

function connect() {
  session = new inspector.Session();
  session.connect();
}

Object.assign(exports, { evaluate });
