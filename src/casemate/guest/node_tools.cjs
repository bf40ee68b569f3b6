'use strict';
// Hooks for `import { files } from 'mcptools'`. Only the host knows the servers, and only later. So the names in the
// text of the importing module become the exports. The same functions serve both kinds of hooks.

const fs = require('node:fs');
const { fileURLToPath, pathToFileURL } = require('node:url');
const path = require('node:path');

const PACKAGE = pathToFileURL(path.join(__dirname, 'node_packages', 'mcptools', 'index.mjs')).href;
const LISTS = /\bimport\s+(?:[\w$]+\s*,\s*)?\{([^}]*)\}\s*from\s*['"]mcptools['"]/g;
const OWN = ['ToolError', 'contentOf', 'search', 'default'];

function namesIn(source) {
  const lists = [...source.matchAll(LISTS)].map(([, names]) => names.split(','));
  const names = lists.flat().map((name) => name.trim().split(/\s+as\s+/)[0].trim());
  return [...new Set(names)].filter((name) => /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name) && !OWN.includes(name));
}

exports.resolve = function resolve(specifier, context, next) {
  if (specifier !== 'mcptools' || !context.parentURL?.startsWith('file:')) return next(specifier, context);
  let names = [];
  try {
    names = namesIn(fs.readFileSync(fileURLToPath(context.parentURL), 'utf8'));
  } catch {
    return next(specifier, context);
  }
  if (names.length === 0) return next(specifier, context);
  return { url: `${PACKAGE}?names=${encodeURIComponent(names.join())}`, format: 'module', shortCircuit: true };
};

exports.load = function load(url, context, next) {
  if (!url.startsWith(`${PACKAGE}?names=`)) return next(url, context);
  const names = decodeURIComponent(url.slice(PACKAGE.length + 7)).split(',');
  const lines = names.map((name, n) => `const n${n} = tools[${JSON.stringify(name)}]; export { n${n} as ${name} };`);
  const source = `import tools from ${JSON.stringify(PACKAGE)};\nexport * from ${JSON.stringify(PACKAGE)};\n${lines.join('\n')}\nexport default tools;\n`;
  return { format: 'module', source, shortCircuit: true };
};
