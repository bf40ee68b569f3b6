// Outlive the run. As daemon.py.
"use strict";
const path = require("node:path");
const { spawn } = require("node:child_process");
const { attempt, finish } = require(path.resolve("tests/escapes/payloads/attempts.cjs"));

attempt("daemon", () => {
  for (let n = 0; n < 3; n++) {
    spawn("/bin/sleep", ["60"], { argv0: process.env.MARK, detached: true, stdio: "inherit" }).unref();
  }
});
finish();
process.exit(0);
