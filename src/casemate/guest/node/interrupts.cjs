'use strict';
// SIGINT. node:vm itself ends the code that it runs. This file handles the rest: a step that waits, and code that
// node:vm did not start (callbacks, and code after an `await`). A thread waits for the signal and stops such code
// through the inspector. Node 24 survives that if started with --no-force-async-hooks-checks; older versions do not.

const path = require('node:path');
const process = require('node:process');
const { clearInterval, setInterval } = require('node:timers');
const { Worker } = require('node:worker_threads');

const FLAG = '--no-force-async-hooks-checks';
const NEWEST_WITHOUT = 23;
const LOOKS_EVERY = 20; // milliseconds
// Indexes of the memory shared with the thread: the number of its messages seen, the running step (0: none), and the
// step whose remaining code must be stopped (0: none).
const SEEN = 0;
const STEP = 1;
const CALL = 2;

const shared = new Int32Array(new SharedArrayBuffer(12));
let canStop = Number(process.versions.node.split('.')[0]) > NEWEST_WITHOUT && process.execArgv.includes(FLAG);
const binding = bindingOf() ?? listening();

let interrupted = null;
let watcher = null;
let looking = null;

/** Call `take(number)` when a step is interrupted while it waits. */
function install(take) {
  interrupted = take;
  // From now on the signal ends nothing and stays pending until it is read. Started twice, so that stop and start,
  // which drop a signal, never restore the default action.
  binding.startSigintWatchdog();
  binding.startSigintWatchdog();
  if (binding.listens) return;
  for (const event of ['newListener', 'removeListener']) leaveSignalAlone(event);
}

function bindingOf() {
  try {
    return process.binding('contextify');
  } catch {
    return null;
  }
}

// For a Node without that binding. It misses signals at times.
function listening() {
  let pending = false;
  process.on('SIGINT', () => (pending = true));
  return {
    listens: true,
    startSigintWatchdog: () => (pending = false),
    stopSigintWatchdog: () => undefined,
    watchdogHasPendingSigint: () => pending,
  };
}

// A listener for SIGINT would make Node take over the signal.
function leaveSignalAlone(event) {
  for (const listener of process.listeners(event)) {
    process.off(event, listener);
    process.on(event, (name, ...rest) => (name === 'SIGINT' ? undefined : listener.call(process, name, ...rest)));
  }
}

/** Begin a step. A signal that came between steps is dropped. */
function begin(number) {
  Atomics.store(shared, STEP, number);
  if (binding.watchdogHasPendingSigint()) {
    binding.stopSigintWatchdog();
    binding.startSigintWatchdog();
  }
}

/** Start the thread before the first code that may await; it costs some 9 MB. */
function watch() {
  if (!canStop || binding.listens || watcher !== null) return;
  const options = { workerData: shared, env: {}, execArgv: [], stdin: false, trackUnmanagedFds: false };
  try {
    watcher = new Worker(path.join(folder, 'watcher.cjs'), options);
  } catch {
    return goWithout();
  }
  watcher.unref();
  watcher.on('error', goWithout);
  watcher.on('message', (number) => {
    Atomics.add(shared, SEEN, 1);
    Atomics.notify(shared, SEEN);
    interrupted(number);
  });
}

// When limits do not allow the thread.
function goWithout() {
  canStop = false;
  watcher = null;
  if (Atomics.load(shared, STEP) !== 0) look(Atomics.load(shared, STEP));
}

/** Poll for the signal while a step waits, if there is no thread. */
function look(number) {
  if (watcher === null) looking ??= setInterval(() => isPending() && interrupted(number), LOOKS_EVERY);
}

function stopLooking() {
  clearInterval(looking);
  looking = null;
}

/** Make the thread stop an interrupted step's remaining code, which may be endless. */
function stopRest(number) {
  if (watcher === null) return;
  Atomics.store(shared, CALL, number);
  Atomics.notify(shared, CALL);
}

function end() {
  Atomics.store(shared, STEP, 0);
  Atomics.notify(shared, STEP);
}

/** Whether a signal is pending that node:vm missed and no thread handles. */
function isPending() {
  return watcher === null && binding.watchdogHasPendingSigint();
}

Object.assign(exports, { begin, end, install, isPending, look, stopLooking, stopRest, watch });
