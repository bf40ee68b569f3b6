'use strict';
// Tokenizes a program, just enough to tell declarations and imports from similar text in strings, templates, comments
// and regular expressions.

const SPACE = /(?:\s+|\/\/[^\n\r\u2028\u2029]*|\/\*[^]*?\*\/)+/y;
const LINE_BREAK = /[\n\r\u2028\u2029]/;
const ESCAPE = '\\\\u(?:[\\da-fA-F]{4}|\\{[\\da-fA-F]+\\})';
const WORD = new RegExp(`[#]?(?:[\\p{ID_Start}$_]|${ESCAPE})(?:[\\p{ID_Continue}$\\u200c\\u200d]|${ESCAPE})*`, 'uy');
const NUMBER = /0[xobXOB][\da-fA-F_]+n?|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?n?/y;
const STRING = /"[^"\\\n\r]*(?:\\(?:\r\n|[^])[^"\\\n\r]*)*"|'[^'\\\n\r]*(?:\\(?:\r\n|[^])[^'\\\n\r]*)*'/y;
const REGEX = /\/(?![*/])(?:[^/\\[\n\r]|\\[^\n\r]|\[(?:[^\]\\\n\r]|\\[^\n\r])*\])+\/[\p{ID_Continue}$]*/uy;
const TEMPLATE = /[^`\\$]*(?:(?:\\[^]|\$(?!\{))[^`\\$]*)*(?:`|\$\{)/y;
const PUNCTUATOR = /=>|\+\+|--|\?\.(?!\d)|\.\.\.|[^]/y;

const words = (text) => new Set(text.split(' '));
const BEFORE_EXPRESSION = words(
  'return typeof instanceof in of new delete void throw case do else yield await extends default',
);
const BEFORE_CONDITION = words('if while for with');
const BEFORE_BLOCK = words('else do try finally static catch');
// A token has its bracket depth, whether a line break precedes it, whether it is a property name, whether it begins a
// statement, and for an opening bracket the index of the closing token (`closer`).
function tokensOf(code) {
  const scanner = { code, at: 0, tokens: [], open: [], operand: true, newline: false };
  if (code.startsWith('#!')) scanner.at = code.search(LINE_BREAK);
  while (skipSpace(scanner)) scanToken(scanner);
  return scanner.tokens;
}

function match(scanner, pattern) {
  pattern.lastIndex = scanner.at;
  return pattern.test(scanner.code) ? pattern.lastIndex : -1;
}

function skipSpace(scanner) {
  const end = match(scanner, SPACE);
  scanner.newline = end > 0 && LINE_BREAK.test(scanner.code.slice(scanner.at, end));
  if (end > 0) scanner.at = end;
  return scanner.at >= 0 && scanner.at < scanner.code.length;
}

function scanToken(scanner) {
  const character = scanner.code[scanner.at];
  if (character === '`') return scanTemplate(scanner, scanner.at + 1);
  if (character === '}' && scanner.tokens[scanner.open[scanner.open.length - 1]]?.kind === 'template') {
    scanner.open.pop();
    return scanTemplate(scanner, scanner.at + 1);
  }
  for (const [kind, pattern] of kindsFor(scanner, character)) {
    const end = match(scanner, pattern);
    if (end > scanner.at) return accept(scanner, kind, end);
  }
  return undefined;
}

const WORDS = ['word', WORD];
const NUMBERS = ['number', NUMBER];
const STRINGS = ['string', STRING];
const PUNCTUATORS = ['punctuator', PUNCTUATOR];

function kindsFor(scanner, character) {
  if (character === '/' && scanner.operand) return [['regex', REGEX], PUNCTUATORS];
  if (character === '"' || character === "'") return [STRINGS, PUNCTUATORS];
  if (/[\d.]/.test(character)) return [NUMBERS, PUNCTUATORS];
  return [WORDS, PUNCTUATORS];
}

// Scan to the end of the template or to its next `${`, whose code is one bracket deeper.
function scanTemplate(scanner, from) {
  const start = scanner.at;
  scanner.at = from;
  const end = match(scanner, TEMPLATE);
  scanner.at = start;
  const opens = end > 0 && scanner.code[end - 1] === '{';
  accept(scanner, opens ? 'template' : 'value', end > 0 ? end : scanner.code.length);
  if (opens) scanner.open.push(scanner.tokens.length - 1);
  scanner.operand = opens;
}

function accept(scanner, kind, end) {
  const { code, at: start, tokens, open, newline } = scanner;
  const previous = tokens[tokens.length - 1];
  const text = code.slice(start, end);
  const token = { kind, text, start, end, newline, depth: open.length, property: false, first: false, closer: -1 };
  token.property = previous !== undefined && (previous.text === '.' || previous.text === '?.');
  token.first = beginsStatement(scanner, previous, newline);
  tokens.push(token);
  scanner.at = end;
  if (kind === 'punctuator') acceptPunctuator(scanner, token, previous);
  else scanner.operand = kind === 'word' && !token.property && BEFORE_EXPRESSION.has(text);
  if (kind === 'word' && !token.property && (text === 'case' || text === 'default')) token.labels = true;
}

function beginsStatement(scanner, previous, newline) {
  if (previous === undefined || previous.text === ';' || previous.isBlock) return true;
  return newline && !scanner.operand;
}

function acceptPunctuator(scanner, token, previous) {
  const { tokens, open } = scanner;
  if ('([{'.includes(token.text)) {
    if (token.text === '{') token.block = opensBlock(previous);
    if (token.text === '(') token.condition = isKeyword(previous) && BEFORE_CONDITION.has(previous.text);
    open.push(tokens.length - 1);
    scanner.operand = true;
  } else if (')]}'.includes(token.text)) {
    const opener = tokens[open.pop()];
    if (opener !== undefined) opener.closer = tokens.length - 1;
    token.depth = open.length;
    token.isBlock = token.text === '}' && opener?.block === true;
    scanner.operand = token.isBlock || (token.text === ')' && opener?.condition === true);
  } else if (token.text !== '++' && token.text !== '--') {
    token.caseColon = token.text === ':' && isCase(tokens, token.depth);
    scanner.operand = true;
  }
}

// `case 1: {` and `default: {`, not `a ? b : {`
function isCase(tokens, depth) {
  for (let at = tokens.length - 2; at >= 0 && tokens[at].depth >= depth; at--) {
    if (tokens[at].depth > depth) continue;
    if (tokens[at].labels) return true;
    if (tokens[at].text === ';' || tokens[at].text === '?' || tokens[at].text === ':') return false;
  }
  return false;
}

function isKeyword(token) {
  return token?.kind === 'word' && !token.property;
}

function opensBlock(previous) {
  if (previous === undefined) return true;
  if (isKeyword(previous) && BEFORE_EXPRESSION.has(previous.text)) return BEFORE_BLOCK.has(previous.text);
  if (previous.kind === 'template') return false;
  if (previous.kind !== 'punctuator') return true;
  if (previous.text === '}') return true;
  if (previous.text === '{') return previous.block;
  return previous.caseColon === true || [';', ')', ']', '=>'].includes(previous.text);
}

Object.assign(exports, { tokensOf });
