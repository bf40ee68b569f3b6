'use strict';
// Installs packages of Node in a cell of its own, with npm, from the one registry that there is: the host's. The order
// comes as JSON on standard input; what npm made is left in /workspace/layer.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');

const HOME = '/workspace/environment';
const LAYER = '/workspace/layer';

const order = JSON.parse(fs.readFileSync(0, 'utf8'));
fs.mkdirSync(HOME);
fs.writeFileSync(`${HOME}/package.json`, JSON.stringify({ name: 'packages', private: true, dependencies: order.wanted }));
if (order.lock) fs.writeFileSync(`${HOME}/package-lock.json`, order.lock);

const flags = [
  ...['--registry', order.registry, '--cache', '/workspace/cache', '--prefix', HOME],
  // Two files that are not there: npm does not take the same one twice.
  ...['--userconfig', '/workspace/no-user-npmrc', '--globalconfig', '/workspace/no-global-npmrc'],
  ...['--no-audit', '--no-fund', '--no-update-notifier', '--no-progress', '--no-color', '--loglevel', 'error'],
  ...['--fetch-retries', '0', '--fetch-timeout', '600000', '--omit-lockfile-registry-resolved', '--omit', 'dev'],
  ...(order.scripts ? ['--foreground-scripts'] : ['--ignore-scripts']),
];
const env = { PATH: process.env.PATH, HOME: '/tmp/.home', LANG: 'C.UTF-8', TMPDIR: '/tmp' };
const npm = spawnSync(process.execPath, [order.npm, 'install', ...flags], {
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
