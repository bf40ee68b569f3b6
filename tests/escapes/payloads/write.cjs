// Change what belongs to the host. As write.py.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { attempt, finish } = require(path.resolve("tests/escapes/payloads/attempts.cjs"));

const list = (text) => text.split(":").filter(Boolean);
list(process.env.FILES).forEach((name, nth) => {
  attempt(`append ${name}`, () => fs.appendFileSync(name, "changed"));
  attempt(`truncate ${name}`, () => fs.truncateSync(name, 1));
  attempt(`chmod ${name}`, () => fs.chmodSync(name, 0o640));
  attempt(`utime ${name}`, () => fs.utimesSync(name, 1, 1));
  attempt(`link ${name}`, () => fs.symlinkSync(name, `link-${nth}`));
  attempt(`write by link ${name}`, () => fs.appendFileSync(`link-${nth}`, "changed"));
  attempt(`hard link ${name}`, () => fs.linkSync(name, `hard-${nth}`));
  attempt(`append by /proc ${name}`, () => fs.appendFileSync(`/proc/self/root${name}`, "changed"));
  attempt(`copy over ${name}`, () => fs.copyFileSync(__filename, name));
  attempt(`remove ${name}`, () => fs.rmSync(name));
});
for (const folder of list(process.env.FOLDERS)) {
  for (const name of ["sitecustomize.py", "evil.pth", ".bashrc", "new"]) {
    attempt(`new ${folder}/${name}`, () => fs.writeFileSync(`${folder}/${name}`, "changed"));
  }
  attempt(`folder in ${folder}`, () => fs.mkdirSync(`${folder}/made`));
}
finish();
