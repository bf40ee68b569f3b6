// Ask for namespaces and mounts by the system's own programs.
"use strict";
const path = require("node:path");
const { spawnSync } = require("node:child_process");
const { attempt, finish } = require(path.resolve("tests/escapes/payloads/attempts.cjs"));

const run = (...argv) => {
  const done = spawnSync(argv[0], argv.slice(1), { timeout: 5000 });
  if (done.status !== 0) throw new Error(`status ${done.status}`);
  return done.stdout;
};
attempt("unshare user", () => run("unshare", "-U", "echo", process.env.MARK));
attempt("unshare all", () => run("unshare", "-Urmn", "echo", process.env.MARK));
attempt("enter init", () => run("nsenter", "-t", "1", "-a", "echo", process.env.MARK));
process.stdout.write(`made ${["-U", "-Urn"].map((flags) => spawnSync("unshare", [flags, "readlink", "/proc/self/ns/user"]).stdout)}\n`);
finish();
