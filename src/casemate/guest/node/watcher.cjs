'use strict';
// A thread that waits for SIGINT, or for a call. It tells the main thread; where that does not hear, its code is stopped.

const { Session } = require('node:inspector');
const vm = require('node:vm');
const { parentPort, workerData: shared } = require('node:worker_threads');

const HEARS_WITHIN = 100; // milliseconds
const SEEN = 0;
const STEP = 1;
const CALL = 2;

const binding = process.binding('contextify');
const waiting = new vm.Script('wait()');

// From here on node:vm watches: what came before is kept, what comes ends the wait.
globalThis.wait = () => {
  if (binding.watchdogHasPendingSigint()) return true;
  Atomics.wait(shared, CALL, 0);
  return false;
};

/** Until the signal comes, or a call; whether it was the signal. */
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

// The step is over already, as far as it is told; what is left of it may keep the main thread from its end.
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
