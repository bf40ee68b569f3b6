// Work that programs are right to expect to work. As honest.py.
"use strict";
const assert = require("node:assert");
const child = require("node:child_process");
const crypto = require("node:crypto");
const dgram = require("node:dgram");
const { once } = require("node:events");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const os = require("node:os");
const zlib = require("node:zlib");
const { Worker } = require("node:worker_threads");

const checks = {
  async files() {
    fs.mkdirSync("a/b", { recursive: true });
    fs.writeFileSync("a/b/c.txt", "x");
    fs.renameSync("a/b/c.txt", "c.txt");
    fs.symlinkSync("c.txt", "link");
    assert.equal(await fs.promises.readFile("link", "utf8"), "x");
    fs.rmSync("a", { recursive: true });
    fs.mkdtempSync(os.tmpdir() + "/x");
    fs.writeFileSync("/dev/null", "x");
    fs.appendFileSync("/dev/stderr", "");
    fs.cpSync("c.txt", "d.txt");
    assert(fs.readdirSync("/").includes("workspace"));
  },
  async interfaces() { assert.equal(os.networkInterfaces().lo[0].address, "127.0.0.1"); },
  async watching() {
    const watcher = fs.watch(".");
    fs.writeFileSync("watched", "x");
    assert.equal((await once(watcher, "change"))[1], "watched");
    watcher.close();
  },
  async stdin() { assert.equal(fs.readFileSync(0, "utf8"), "given\n"); },
  async given_files_are_ones_own() { fs.appendFileSync("given.txt", "more"); },
  async child_processes() {
    assert.equal(child.execSync("echo $((1 + 1)) | cat").toString(), "2\n");
    const forked = child.spawn(process.execPath, ["-e", "process.stdout.write('x')"]);
    assert.equal((await once(forked.stdout, "data")).toString(), "x");
    assert.equal(child.spawnSync("bash", ["-c", "yes | head -1 >/dev/null; exit ${PIPESTATUS[0]}"]).status, 141);
  },
  async workers() {
    const worker = new Worker("require('worker_threads').parentPort.postMessage(42)", { eval: true });
    assert.equal((await once(worker, "message"))[0], 42);
    const shared = new SharedArrayBuffer(4);
    const other = new Worker("const {workerData:d}=require('worker_threads');Atomics.add(new Int32Array(d),0,7)", { eval: true, workerData: shared });
    await once(other, "exit");
    assert.equal(new Int32Array(shared)[0], 7);
  },
  async web() {
    for (const host of ["127.0.0.1", "::1"]) {
      const server = http.createServer((_, response) => response.end("hello")).listen(0, host);
      await once(server, "listening");
      const name = host.includes(":") ? `[${host}]` : host;
      const response = await fetch(`http://${name}:${server.address().port}/`);
      assert.equal(await response.text(), "hello");
      server.closeAllConnections();
      server.close();
    }
  },
  async sockets() {
    const server = net.createServer((socket) => socket.end("x")).listen("/tmp/node.sock");
    await once(server, "listening");
    assert.equal((await once(net.connect("/tmp/node.sock"), "data"))[0].toString(), "x");
    server.close();
    const udp = dgram.createSocket("udp4").bind(0, "127.0.0.1");
    await once(udp, "listening");
    udp.send("y", udp.address().port, "127.0.0.1");
    assert.equal((await once(udp, "message"))[0].toString(), "y");
    udp.close();
    assert((await require("node:dns").promises.lookup("localhost")).address);
  },
  async cryptography() {
    assert.equal(crypto.randomBytes(16).length, 16);
    crypto.generateKeyPairSync("ed25519");
    assert.equal(await new Promise((done) => crypto.pbkdf2("a", "b", 10, 8, "sha256", (_, key) => done(key.length))), 8);
    assert.equal(zlib.gunzipSync(zlib.gzipSync("x")).toString(), "x");
  },
  async machine() {
    assert.equal(os.userInfo().uid, process.getuid());
    assert(os.hostname() && os.cpus().length && os.homedir());
    assert.equal(new Intl.DateTimeFormat("en", { timeZone: "Europe/Berlin", timeZoneName: "short" }).formatToParts(0).length > 0, true);
    const memory = new WebAssembly.Memory({ initial: 16 });
    assert.equal(memory.buffer.byteLength, 1 << 20);
    process.once("SIGUSR2", () => {});
    process.kill(process.pid, "SIGUSR2");
    await new Promise((done) => setTimeout(done, 1));
  },
};

async function main() {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`held ${name}`);
    } catch (error) {
      console.log(`broke ${name} ${error.stack}`);
    }
  }
  console.log("end of attack");
}
main();
