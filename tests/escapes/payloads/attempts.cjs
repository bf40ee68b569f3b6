// What every attack in Node shares; as attempts.py.
"use strict";
const crypto = require("node:crypto");
const fs = require("node:fs");

function found(data) {
  const canaries = [...new Set(data.toString("latin1").match(/canary-[0-9a-f]{32}/g) || [])].sort().join(" ");
  return `sha256:${crypto.createHash("sha256").update(data).digest("hex")} ${canaries}`;
}

function attempt(name, action) {
  try {
    const told = action();
    fs.writeSync(1, `tried ${name}: done ${Buffer.isBuffer(told) ? found(told) : told}\n`);
    return true;
  } catch (error) {
    fs.writeSync(1, `tried ${name}: ${error.code || error}\n`);
    return false;
  }
}

function finish() {
  fs.writeSync(1, "end of attack\n");
  if (process.env.HOLD) setTimeout(() => {}, 60000);
}

module.exports = { attempt, found, finish };
