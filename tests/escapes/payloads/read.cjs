// Read what belongs to the host: files, processes, descriptors. As read.py.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { attempt, finish } = require(path.resolve("tests/escapes/payloads/attempts.cjs"));
const { PATHS, DIGESTS, PIDS, SCAN } = process.env;

const list = (text) => text.split(":").filter(Boolean);
for (const name of list(PATHS)) {
  for (const prefix of ["", "/proc/self/root", "/proc/1/root", "/..".repeat(20)]) {
    attempt(`read ${prefix}${name}`, () => fs.readFileSync(prefix + name));
  }
  const link = `link-${path.basename(name)}`;
  attempt(`link ${name}`, () => fs.symlinkSync(name, link));
  attempt(`read by link ${name}`, () => fs.readFileSync(link));
  attempt(`copy ${name}`, () => fs.copyFileSync(name, "copy") || fs.readFileSync("copy"));
  attempt(`list ${name}`, () => Buffer.from(fs.readdirSync(path.dirname(name)).join()));
}
for (const name of list(DIGESTS)) attempt(`digest ${name}`, () => fs.readFileSync(name));
const pids = list(PIDS);
if (SCAN) {
  const seen = [];
  attempt("list processes", () => seen.push(...fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name))));
  pids.push(...(seen.length ? seen : Array.from({ length: 99 }, (_, number) => String(number + 1))));
}
for (const pid of pids) {
  for (const name of ["environ", "cmdline"]) attempt(`read ${pid}/${name}`, () => fs.readFileSync(`/proc/${pid}/${name}`));
  attempt(`list fds of ${pid}`, () => fs.readdirSync(`/proc/${pid}/fd`));
  for (let fd = 3; fd < 12; fd++) {
    attempt(`read ${pid}/fd/${fd}`, () => {
      const opened = fs.openSync(`/proc/${pid}/fd/${fd}`, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK);
      const buffer = Buffer.alloc(65536);
      return buffer.subarray(0, fs.readSync(opened, buffer));
    });
  }
}
attempt("own environment", () => Buffer.from(JSON.stringify(process.env)));
for (let fd = 3; fd < 64; fd++) {
  const buffer = Buffer.alloc(65536);
  // Only what is a file: Node's own descriptors are pipes and epolls.
  attempt(`inherited ${fd}`, () => fs.fstatSync(fd).isFile() && buffer.subarray(0, fs.readSync(fd, buffer, 0, 65536, 0)));
}
finish();
