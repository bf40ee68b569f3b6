// Leave in the caller's project what somebody or some tool runs later. As plant.py.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { attempt, finish } = require(path.resolve("tests/escapes/payloads/attempts.cjs"));

const names = [".git/hooks/pre-commit", ".git/config", ".envrc", ".vscode/tasks.json", ".mcp.json", ".bashrc", "evil.pth",
  "sitecustomize.py", ".venv/bin/activate", ".npmrc", "node_modules/.hooks/preinstall", ".yarnrc.yml", ".husky/pre-push"];
for (const name of names) {
  attempt(`plant ${name}`, () => {
    fs.mkdirSync(path.dirname(name), { recursive: true });
    fs.writeFileSync(name, "#!/bin/sh\necho planted\n", { mode: 0o755 });
    fs.chmodSync(name, 0o755);
  });
}
attempt("honest", () => fs.writeFileSync("src/result.txt", "honest"));
finish();
