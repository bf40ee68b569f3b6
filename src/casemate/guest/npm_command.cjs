'use strict';
// `npm` in a session. The host installs from the operator's registry, after approval. Other commands run the real npm.
// docs/how-to/packages.md lists the supported part of npm's command line.

const fs = require('node:fs');
const path = require('node:path');

const HOST = { host: 'packages.casemate.internal', port: 81 };
const INSTALL = ['install', 'i', 'add', 'in', 'isntall'];
const REMOVE = ['uninstall', 'un', 'rm', 'r', 'remove', 'unlink'];
const IGNORED = new Set([
  ...['--save', '-S', '--save-prod', '-P', '--save-dev', '-D', '--save-exact', '-E', '--no-save', '--save-optional', '-O'],
  ...['--no-audit', '--no-fund', '--ignore-scripts', '--no-progress', '--yes', '-y', '--no-package-lock', '--verbose'],
  ...['-g', '--global', '--prefer-offline', '--audit=false', '--fund=false', '--progress=false', '--legacy-peer-deps', '--no-color'],
]);
const WITHOUT_DEV = new Set(['--production', '--omit=dev', '--only=prod', '--only=production']);
// Commands that would need the registry, and what to use instead.
const ELSEWHERE = new Map([
  ...['ci', 'clean-install', 'ic'].map((name) => [name, "'npm install' takes what package.json lists; a lock file is not followed"]),
  ...['update', 'up', 'upgrade'].map((name) => [name, "'npm install name@latest' brings the newest"]),
]);
const QUIET = new Set(['--silent', '-s', '--quiet', '-q', '--loglevel=error', '--loglevel=silent']);

function main(words) {
  const at = words.findIndex((word) => !word.startsWith('-'));
  const command = words[at];
  if (ELSEWHERE.has(command)) return fail(`npm ${command} is not supported here: ${ELSEWHERE.get(command)}`);
  const does = INSTALL.includes(command) ? 'install' : REMOVE.includes(command) ? 'remove' : null;
  if (does === null) return realNpm(words);
  const rest = [...words.slice(0, at), ...words.slice(at + 1)];
  const end = rest.includes('--') ? rest.indexOf('--') : rest.length;
  const options = rest.slice(0, end).filter((word) => word.startsWith('-'));
  const names = [...rest.slice(0, end).filter((word) => !word.startsWith('-')), ...rest.slice(end + 1)];
  const strange = options.find((word) => !IGNORED.has(word) && !QUIET.has(word) && !WITHOUT_DEV.has(word));
  if (strange) return fail(`${strange.split('=')[0]} is not supported here: packages come from the operator's registry, for this session`);
  const wanted = names.length > 0 || does === 'remove' ? names : namedInPackageJson(options.some((word) => WITHOUT_DEV.has(word)));
  if (wanted === null) return;
  if (wanted.length === 0) return fail('give names of packages: none are given, and package.json lists none');
  ask({ do: does, language: 'node', packages: wanted }, (answer) => tell(answer, does, options.some((word) => QUIET.has(word))));
}

function namedInPackageJson(withoutDev) {
  if (!fs.existsSync('package.json')) return [];
  try {
    const said = JSON.parse(fs.readFileSync('package.json', 'utf8'));
    const listed = { ...said.dependencies, ...(withoutDev ? {} : said.devDependencies) };
    return Object.entries(listed).map(([name, versions]) => `${name}@${versions}`);
  } catch (error) {
    fail(`package.json cannot be read: ${error.message}`);
    return null;
  }
}

function ask(request, done) {
  const socket = require('node:net').connect(HOST);
  const pieces = [];
  socket.on('connect', () => socket.write(`${JSON.stringify(request)}\n`));
  socket.on('data', (piece) => pieces.push(piece));
  socket.on('error', () => pieces.length || noAnswer(request.packages));
  socket.on('end', () => {
    try {
      done(JSON.parse(Buffer.concat(pieces).toString()));
    } catch {
      noAnswer(request.packages);
    }
  });
}

function noAnswer(names) {
  const why = `no rule allows ${names.join(', ')} and nobody can be asked, or this is no session`;
  fail(`packages cannot be installed from here: ${why}`);
}

function tell(answer, does, quiet) {
  if (!answer.ok) return fail(`not ${does === 'install' ? 'installed' : 'removed'}: ${answer.message}`);
  const packages = answer.packages.map((one) => `${one.name}@${one.version}`).join(' ');
  const done = does === 'install' ? 'added' : 'removed';
  if (!quiet) console.log(packages ? `${done} ${packages}` : does === 'install' ? 'up to date' : 'nothing to remove');
}

function fail(message) {
  console.error(`npm error ${message}`);
  process.exitCode = 1;
}

function realNpm(words) {
  const ours = path.join(__dirname, 'node_bin');
  const folders = (process.env.PATH ?? '').split(':').filter((folder) => folder && folder !== ours);
  const beside = path.join(path.dirname(fs.realpathSync(process.execPath)), '../lib/node_modules/npm/bin/npm-cli.js');
  const found = [beside, ...folders.map((folder) => path.join(folder, 'npm'))].find((file) => fs.existsSync(file));
  if (!found) return fail('there is no npm here');
  const [program, first] = found === beside ? [process.execPath, [beside]] : [found, []];
  // Fail in seconds if the registry is unreachable; npm would wait for minutes.
  const retryTimes = { npm_config_fetch_retry_mintimeout: '200', npm_config_fetch_retry_maxtimeout: '1000' };
  const env = { ...retryTimes, ...process.env, PATH: folders.join(':') };
  const done = require('node:child_process').spawnSync(program, [...first, ...words], { stdio: 'inherit', env });
  process.exitCode = done.status ?? 1;
}

main(process.argv.slice(2));
