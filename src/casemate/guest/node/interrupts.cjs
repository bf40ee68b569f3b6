'use strict';
// SIGINT. What node:vm runs it ends by itself; here is the rest: a step that waits, and code that node:vm did not start:
// what follows an `await`, and callbacks. Such code is stopped by a thread that waits for the signal, through the
// inspector. Node 24 survives that, where it was started with --no-force-async-hooks-checks; older ones do not.

const path = require('node:path');
const process = require('node:process');
const { clearInterval, setInterval } = require('node:timers');
const { Worker } = require('node:worker_threads');

const FLAG = '--no-force-async-hooks-checks';
const NEWEST_WITHOUT = 23;
const LOOKS_EVERY = 20; // milliseconds
// What the thread shares: how many of its messages were seen, the step that runs (0: none), the one
// whose rest is to be stopped (0: none).
const SEEN = 0;
const STEP = 1;
const CALL = 2;

const shared = new Int32Array(new SharedArrayBuffer(12));
let canStop = Number(process.versions.node.split('.')[0]) > NEWEST_WITHOUT && process.execArgv.includes(FLAG);
const binding = bindingOf() ?? listening();

let interrupted = null;
let watcher = null;
let looking = null;

/** Call `take(number)` when the step of that number is interrupted while it waits. */
function install(take) {
  interrupted = take;
  // From now on the signal ends nothing, and it is kept until somebody asks for it.
  // Twice, so that to stop and to start again, which forgets a signal, never gives it back to the system.
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

// For a Node that does not give its own away; it takes no notice of the signal for moments now and then.
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

// A listener for SIGINT would make Node take the signal away.
function leaveSignalAlone(event) {
  for (const listener of process.listeners(event)) {
    process.off(event, listener);
    process.on(event, (name, ...rest) => (name === 'SIGINT' ? undefined : listener.call(process, name, ...rest)));
  }
}

/** Before each step: what came between steps was for none of them. */
function begin(number) {
  Atomics.store(shared, STEP, number);
  if (binding.watchdogHasPendingSigint()) {
    binding.stopSigintWatchdog();
    binding.startSigintWatchdog();
  }
}

/** Before code that may await. The thread costs some 9 MB, so that it comes with the first such code. */
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

// Where limits leave no room for the thread.
function goWithout() {
  canStop = false;
  watcher = null;
  if (Atomics.load(shared, STEP) !== 0) look(Atomics.load(shared, STEP));
}

/** While a step waits and there is no thread. */
function look(number) {
  if (watcher === null) looking ??= setInterval(() => isPending() && interrupted(number), LOOKS_EVERY);
}

function stopLooking() {
  clearInterval(looking);
  looking = null;
}

/** What a step that was interrupted has left to run may be endless: the thread stops it where it is. */
function stopRest(number) {
  if (watcher === null) return;
  Atomics.store(shared, CALL, number);
  Atomics.notify(shared, CALL);
}

function end() {
  Atomics.store(shared, STEP, 0);
  Atomics.notify(shared, STEP);
}

/** Whether the signal came too late for node:vm to see it, and nobody else will. */
function isPending() {
  return watcher === null && binding.watchdogHasPendingSigint();
}

Object.assign(exports, { begin, end, install, isPending, look, stopLooking, stopRest, watch });
