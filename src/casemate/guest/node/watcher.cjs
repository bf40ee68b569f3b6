'use strict';
// A thread that waits for SIGINT or a call, and notifies the main thread. If that does not react, its code is stopped.

const { Session } = require('node:inspector');
const vm = require('node:vm');
const { parentPort, workerData: shared } = require('node:worker_threads');

const HEARS_WITHIN = 100; // milliseconds for the main thread to react
const SEEN = 0;
const STEP = 1;
const CALL = 2;

const binding = process.binding('contextify');
const waiting = new vm.Script('wait()');

// node:vm watches from here on: an earlier signal is pending, a later one ends the wait.
globalThis.wait = () => {
  if (binding.watchdogHasPendingSigint()) return true;
  Atomics.wait(shared, CALL, 0);
  return false;
};

/** Wait for the signal or a call. Returns whether it was the signal. */
function waitForSignal() {
  try {
    return waiting.runInThisContext({ breakOnSigint: true });
  } catch (error) {
    if (error.code !== 'ERR_SCRIPT_EXECUTION_INTERRUPTED') throw error;
    return true;
  }
}

function interrupt() {
  const step = Atomics.load(shared, STEP);
  const seen = Atomics.load(shared, SEEN);
  parentPort.postMessage(step);
  const isHeard = Atomics.wait(shared, SEEN, seen, HEARS_WITHIN) !== 'timed-out';
  if (!isHeard && Atomics.load(shared, STEP) === step) stop();
}

// The step was already reported as interrupted, but its remaining code may block the main thread.
function stopRest(step) {
  if (Atomics.wait(shared, STEP, step, HEARS_WITHIN) === 'timed-out') stop();
}

function stop() {
  const session = new Session();
  session.connectToMainThread();
  session.post('Runtime.terminateExecution');
  session.disconnect();
}

for (;;) {
  const isSignal = waitForSignal();
  const called = Atomics.exchange(shared, CALL, 0);
  if (called !== 0) stopRest(called);
  if (isSignal) interrupt();
}
