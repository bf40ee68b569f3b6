'use strict';
// A session: handles requests in order, one step at a time.

const process = require('node:process');
const { setImmediate } = require('node:timers');
const bundles = require('./bundles.cjs');
const { listen, send } = require('./control.cjs');
const errors = require('./errors.cjs');
const { evaluate } = require('./evaluate.cjs');
const interrupts = require('./interrupts.cjs');
const { lookOfName } = require('./looks.cjs');
const modules = require('./modules.cjs');
const names = require('./names.cjs');
const { begin, currentStep, hideMarks, storage } = require('./steps.cjs');
const streams = require('./streams.cjs');

const path = require('node:path');
const { chdir } = process;
const LONGEST_NAME = 1000; // characters on each side of the cursor
const ROOT = path.dirname(path.dirname(process.argv[1])).replace(/^\/$/, '');
const waiting = [];
let running = null;

function start() {
  try {
    prepare();
  } catch (error) {
    send({ type: 'ready', problem: errors.textOf(error).slice(0, 2000) });
    process.exit(1);
  }
  listen((request) => {
    waiting.push(request);
    if (running === null) next();
  });
  send({ type: 'ready' });
}

function prepare() {
  errors.hideOwnFrames();
  hideMarks();
  streams.replaceAll();
  modules.install();
  bundles.install();
  names.makeAssignable();
  defineLast();
  process.on('uncaughtException', onUncaught);
  process.on('unhandledRejection', onUncaught);
  process.on('removeListener', keepListening);
  interrupts.install((number) => running?.number === number && finish(running, { interrupted: true }));
  names.settle();
  rehearse();
}

// Load and compile now what the first step needs.
function rehearse() {
  const codes = ['(() => { const a = [1]; return a; })()', 'await (() => { let a; })()'];
  for (const code of codes) storage.run(null, () => evaluate(code, 'rehearsal', () => undefined));
  bundles.bundleOf({ a: ['b'] });
  errors.described(new main.Error('rehearsal'));
  names.variables();
}

// --- requests ----------------------------------------------------------------------------------------------------

function next() {
  while (running === null && waiting.length > 0) {
    const request = waiting.shift();
    if (request.op === 'run') run(request);
    else answer(request);
  }
}

const ANSWERS = {
  variables: () => names.variables(),
  get: ({ name }) => names.get(name),
  set: ({ name, value }) => names.set(name, value) ?? null,
};

function answer(request) {
  try {
    if (!Object.hasOwn(ANSWERS, request.op)) throw new Error(`${request.op} is not a request`);
    reply(request.id, { value: ANSWERS[request.op](request) });
  } catch (error) {
    reply(request.id, { error: errors.cut(errors.described(error).value, 2000) });
  }
}

function reply(id, fields) {
  if (!send({ type: 'reply', id, ...fields })) send({ type: 'reply', id, error: 'the value is too large' });
}

// --- steps -------------------------------------------------------------------------------------------------------

/** Return the real path of a cell path. On walls without mounts it is below the folder of the program's folder. */
function placeOf(place) {
  return /^\/(program\/|workspace)/.test(place) ? ROOT + place : place;
}

function run(request) {
  let step = null;
  try {
    step = running = begin({ ...request, out: placeOf(request.out), err: placeOf(request.err) });
    if (typeof request.cwd === 'string') chdir(placeOf(request.cwd));
  } catch (error) {
    const failed = step ?? { number: request.step, at: [0, 0] };
    running = null;
    send({ type: 'error', step: failed.number, at: failed.at, ...errors.described(error) });
    send({ type: 'done', step: failed.number, at: failed.at, exit: 1, ...names.changes() });
    return;
  }
  interrupts.begin(step.number);
  if (request.task === 'look_up') lookUp(step, JSON.parse(request.code));
  else storage.run(step, () => evaluate(request.code, `step_${step.number}`, (outcome) => finish(step, outcome)));
  if (interrupts.isPending()) finish(step, { interrupted: true });
  if (!step.ended) interrupts.look(step.number);
}

/** Answer an editor's question about the name at its cursor. `cursor` counts code points. */
function lookUp(step, { code, cursor }) {
  const characters = Array.from(code);
  const before = characters.slice(Math.max(cursor - LONGEST_NAME, 0), cursor).join('');
  const after = characters.slice(cursor, cursor + LONGEST_NAME).join('');
  let look = null;
  try {
    look = lookOfName(/([\w$.]*)\(?$/.exec(before)[1] + /^[\w$]*/.exec(after)[0]);
  } catch {
    // the user's code has broken node:inspector
  }
  const bundle = { 'application/json': look === null ? {} : { 'text/plain': look } };
  bundles.sendBundle({ type: 'result', step: step.number, at: step.at, bundle });
  finish(step, {});
}

/** Finish the step with the outcome of its code. Later outcomes, after an interrupt, are ignored. */
function finish(step, outcome) {
  if (step === null || step !== running || step.ended) return;
  step.ended = true;
  interrupts.stopLooking();
  try {
    if (outcome.interrupted) stop(step);
    else if (Object.hasOwn(outcome, 'thrown')) failWith(step, outcome.thrown);
    else if (outcome.value !== undefined) storage.run(step, () => show(step, outcome.value));
  } catch (error) {
    failWith(step, error);
  }
  // Work that the code left for this turn, such as an unhandled rejection, still belongs to the step.
  setImmediate(() => end(step));
}

function stop(step) {
  interrupts.stopRest(step.number);
  fail(step, INTERRUPTED);
}

const INTERRUPTED = {
  name: 'Interrupted',
  value: 'the step was interrupted',
  traceback: 'Interrupted: the step was interrupted by SIGINT\n',
  errno: null,
};

function show(step, value) {
  last.value = value;
  bundles.sendBundle({ type: 'result', step: step.number, at: step.at, bundle: bundles.bundleOf(value) });
}

function failWith(step, thrown) {
  last.error = thrown;
  fail(step, errors.described(thrown));
}

function fail(step, description) {
  step.failed = true;
  send({ type: 'error', step: step.number, at: step.at, ...description });
}

function end(step) {
  interrupts.end();
  step.running = false;
  running = null;
  send({ type: 'done', step: step.number, at: step.at, exit: step.failed ? 1 : 0, ...names.changes() });
  next();
}

// --- globals of a REPL ---------------------------------------------------------------------------------------------

const last = { value: undefined, error: undefined };

function defineLast() {
  names.defineLazily('_', () => last.value);
  names.defineLazily('_error', () => last.error);
}

// --- uncaught errors ---------------------------------------------------------------------------------------------

function onUncaught(thrown, origin) {
  const event = typeof origin === 'string' ? 'uncaughtException' : 'unhandledRejection';
  if (process.listenerCount(event) > 1) return;
  const step = currentStep();
  if (step?.running) failWith(step, thrown);
  else step?.write(1, `Uncaught ${errors.textOf(thrown)}`);
}

function keepListening(event, listener) {
  if (listener === onUncaught) process.on(event, onUncaught);
  if (listener === keepListening) process.on(event, keepListening);
}

Object.assign(exports, { start });
