// Hurt a process that is not ours. As process.py.
"use strict";
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { attempt, finish } = require(path.resolve("tests/escapes/payloads/attempts.cjs"));

const { VICTIM, FD, KILL } = process.env;
for (const name of ["environ", "cmdline", `fd/${FD}`]) attempt(`read ${name}`, () => fs.readFileSync(`/proc/${VICTIM}/${name}`));
attempt("renice", () => os.setPriority(Number(VICTIM), 5));
attempt("oom", () => fs.writeFileSync(`/proc/${VICTIM}/oom_score_adj`, "500"));
attempt("stop", () => process.kill(Number(VICTIM), "SIGSTOP"));
if (KILL) for (const signal of ["SIGTERM", "SIGKILL"]) attempt(signal, () => process.kill(Number(VICTIM), signal));
finish();
