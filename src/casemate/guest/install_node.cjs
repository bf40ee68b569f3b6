'use strict';
// Installs Node packages in a separate cell, with npm, from the host's registry, the only one. The order is JSON on
// standard input; the result is the folder layer in the workspace.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const WORKSPACE = process.cwd();
const HOME = `${WORKSPACE}/environment`;
const LAYER = `${WORKSPACE}/layer`;

const order = JSON.parse(fs.readFileSync(0, 'utf8'));
fs.mkdirSync(HOME);
fs.writeFileSync(`${HOME}/package.json`, JSON.stringify({ name: 'packages', private: true, dependencies: order.wanted }));
if (order.lock) fs.writeFileSync(`${HOME}/package-lock.json`, order.lock);

const flags = [
  ...['--registry', order.registry, '--cache', `${WORKSPACE}/cache`, '--prefix', HOME],
  // Two missing files, because npm refuses the same one twice.
  ...['--userconfig', `${WORKSPACE}/no-user-npmrc`, '--globalconfig', `${WORKSPACE}/no-global-npmrc`],
  ...['--no-audit', '--no-fund', '--no-update-notifier', '--no-progress', '--no-color', '--loglevel', 'error'],
  ...['--fetch-retries', '0', '--fetch-timeout', '600000', '--omit-lockfile-registry-resolved', '--omit', 'dev'],
  ...(order.scripts ? ['--foreground-scripts'] : ['--ignore-scripts']),
];
const { PATH, HOME: home, TMPDIR = '/tmp' } = process.env;
const env = { PATH, HOME: home, LANG: 'C.UTF-8', TMPDIR };
const places = [`${path.dirname(process.execPath)}/../lib/node_modules`, '/usr/share/nodejs'].map((one) => `${one}/npm/bin/npm-cli.js`);
const program = order.npm || places.find((one) => fs.existsSync(one)) || places[0];
const npm = spawnSync(process.execPath, [program, 'install', ...flags], {
  cwd: HOME,
  env,
  stdio: ['ignore', 'inherit', 'inherit'],
});
if (npm.status !== 0) process.exit(npm.status ?? 1);
fs.mkdirSync(LAYER);
fs.mkdirSync(`${HOME}/node_modules`, { recursive: true });
fs.rmSync(`${HOME}/node_modules/.package-lock.json`, { force: true });
for (const name of ['node_modules', 'package-lock.json']) {
  if (fs.existsSync(`${HOME}/${name}`)) fs.renameSync(`${HOME}/${name}`, `${LAYER}/${name}`);
}
