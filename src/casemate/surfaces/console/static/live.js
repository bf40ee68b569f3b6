// Live output of a program: a bounded ring of lines. New lines are written once per animation frame, without rendering a
// component. Colors are applied, other terminal sequences are dropped, and other control characters are escaped.
import { html, useEffect, useRef, visible } from "./ui.js";

const MOST_LINES = 500;
const MOST_LINE = 4000; // characters
const MOST_WAITING = 2 << 20; // characters between two frames; older ones are dropped
// SGR (colors), other control sequences (ECMA-48, 5.4), strings such as titles and links (5.6), and single escapes.
const SEQUENCE = /\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_ -/]?/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/** Split `text` into pieces of one style: `[text, class]`. `style` holds the style before `text` and is updated. */
export function styled(text, style) {
  const pieces = [];
  let from = 0;
  const add = (until) => until > from && pieces.push([text.slice(from, until), classOf(style)]);
  for (const found of text.matchAll(SEQUENCE)) {
    add(found.index);
    from = found.index + found[0].length;
    if (found[1] !== undefined) apply(found[1], style);
  }
  add(text.length);
  return pieces;
}

function apply(codes, style) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at];
    if (code === 0) Object.assign(style, { colour: "", bold: false });
    else if (code === 1 || code === 22) style.bold = code === 1;
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) style.colour = COLOURS[code % 10];
    else if (code === 39) style.colour = "";
    else if (code === 38 || code === 48) at += numbers[at + 1] === 5 ? 2 : 4;
  }
}

const classOf = ({ colour, bold }) => `${colour ? `c-${colour}` : ""}${bold ? " bold" : ""}`.trim();

/** The lines of one element on the page. `push` works before `show` sets the element, and is cheap for small texts. */
export class Lines {
  constructor() {
    this.waiting = [];
    this.size = 0;
    this.styles = { stdout: {}, stderr: {} };
    this.leftOut = 0;
    this.root = null;
    this.line = null; // the unfinished line
    this.isBack = false; // the next text overwrites it, after a carriage return
    this.frame = 0;
  }
  push(name, text) {
    this.waiting.push([name, text]);
    this.size += text.length;
    while (this.size > MOST_WAITING && this.waiting.length > 1) {
      const [, lost] = this.waiting.shift();
      this.size -= lost.length;
      this.leftOut += lost.split("\n").length - 1;
    }
    this.schedule();
  }
  show(root) {
    this.root = root;
    this.schedule();
  }
  schedule() {
    if (this.root && this.waiting.length && !this.frame) this.frame = requestAnimationFrame(() => this.write());
  }
  write() {
    this.frame = 0;
    const scroller = this.root.parentElement;
    const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
    const waiting = this.waiting;
    this.waiting = [];
    this.size = 0;
    const fresh = document.createDocumentFragment();
    for (const [name, text] of waiting) this.add(name, text, fresh);
    this.trim(fresh, MOST_LINES);
    this.root.append(fresh);
    this.trim(this.root, MOST_LINES);
    scroller.dataset.leftOut = this.leftOut;
    scroller.previousElementSibling.textContent = this.leftOut ? `${this.leftOut} earlier lines are not shown here` : "";
    if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
  }
  add(name, text, fresh) {
    const parts = text.split("\n");
    // Elements are made only for the last lines, which can stay.
    const skipped = Math.max(0, parts.length - 1 - MOST_LINES);
    if (skipped) {
      this.leftOut += skipped;
      this.line = null;
    }
    for (let at = skipped; at < parts.length; at++) {
      if (at > skipped) Object.assign(this, { line: null, isBack: false });
      if (parts[at] || at < parts.length - 1) this.extend(name, parts[at], fresh);
    }
  }
  extend(name, text, fresh) {
    if (!this.line) {
      this.line = document.createElement("div");
      this.line.className = name;
      fresh.append(this.line);
    }
    let end = text.length; // a loop, because a regular expression would be quadratic
    while (text[end - 1] === "\r") end--;
    const plain = text.slice(0, end);
    const back = plain.lastIndexOf("\r"); // a progress bar overwrites its line
    if (back >= 0 || (this.isBack && plain)) this.line.textContent = "";
    this.isBack = plain !== text;
    const room = MOST_LINE - this.line.textContent.length;
    if (room < 0) return;
    for (const [piece, style] of styled(plain.slice(back + 1, back + 1 + room), this.styles[name])) {
      const span = document.createElement("span");
      if (style) span.className = style;
      span.textContent = visible(piece);
      this.line.append(span);
    }
    if (plain.length - back - 1 > room) this.line.append("…");
  }
  trim(parent, most) {
    while (parent.childElementCount > most) {
      parent.firstElementChild.remove();
      this.leftOut++;
    }
  }
}

export function Live({ lines, label = "Output" }) {
  const own = useRef(null);
  useEffect(() => {
    lines.show(own.current);
    return () => {
      cancelAnimationFrame(lines.frame);
      Object.assign(lines, { frame: 0, root: null });
    };
  }, [lines]);
  return html`<div class="live"><small></small>
    <div class="output" tabindex="0" role="log" aria-live="off" aria-label=${label}><div ref=${own}></div></div></div>`;
}
