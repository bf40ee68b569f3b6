// Come to every listener of the host. As network.py.
"use strict";
const dgram = require("node:dgram");
const net = require("node:net");
const path = require("node:path");
const { finish } = require(path.resolve("tests/escapes/payloads/attempts.cjs"));

function tell(name, outcome) {
  console.log(`tried ${name}: ${outcome}`);
}

function connect(name, options) {
  return new Promise((resolve) => {
    const client = net.connect(options);
    client.setTimeout(2000, () => client.destroy(new Error("timeout")));
    client.on("connect", () => { tell(name, "done"); client.destroy(); resolve(); });
    client.on("error", (error) => { tell(name, error.code || error); resolve(); });
  });
}

function send(name, host, port) {
  return new Promise((resolve) => {
    const client = dgram.createSocket(host.includes(":") ? "udp6" : "udp4");
    client.on("error", () => resolve());
    client.send("escaped", Number(port), host, (error) => { tell(name, error ? error.code : "done"); client.close(); resolve(); });
  });
}

async function main() {
  for (const [name, value] of Object.entries(process.env)) {
    const [host, port] = value.split(" ");
    if (name.startsWith("TCP_")) await connect(name, { host, port: Number(port) });
    if (name.startsWith("UDP_")) await send(name, host, port);
    if (name.startsWith("PATH_")) await connect(name, { path: value });
    if (name === "ABSTRACT") await connect(name, { path: "\0" + value });
  }
  finish();
}
main();
