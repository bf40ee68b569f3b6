// Building blocks of pages. Untrusted text enters the page only as text nodes, with invisible characters made visible.
import { Component, html, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";

export { Component, html, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

// The same as SPECIAL in casemate/visible.py.
const HIDDEN =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}](?<![\xa9\xae\u203c\u2049\u2122-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299\u{1f000}-\u{1faff}]\ufe0f)(?!(?<=[0-9#*]\ufe0f)\u20e3)(?!(?<=[\xa9\xae\u203c\u2049\u2122-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299\u{1f000}-\u{1faff}\ufe0f]\u200d)[\xa9\xae\u203c\u2049\u2122-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299\u{1f000}-\u{1faff}])(?!(?<=[\u0620-\u0dff][\u200c\u200d])[\u0620-\u0dff])/gu;

function escaped(character) {
  const number = character.codePointAt(0);
  const digits = number < 0x100 ? ["x", 2] : number < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${digits[0]}${number.toString(16).padStart(digits[1], "0")}`;
}

/** `value` as text, with control and invisible characters escaped. */
export function visible(value) {
  const text = typeof value === "string" ? value : value == null ? "" : JSON.stringify(value) ?? "";
  return text.replace(HIDDEN, escaped);
}

/** `visible(value)` on one line, cut to `most` characters. */
export function brief(value, most = 120) {
  const text = visible(value).replace(/\s+/g, " ");
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

export function time(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }) : "";
}

export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Seconds as a clock has them: 4:12, or 1:04:12. */
export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return parts.slice(parts[0] ? 0 : 1).map((part, at) => (at ? String(part).padStart(2, "0") : part)).join(":");
}

/** The time, again every second. */
export function useNow() {
  const [now, set] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => set(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

export function size(bytes) {
  const step = Math.min(4, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return step ? `${(bytes / 1024 ** step).toFixed(1)} ${["", "K", "M", "G", "T"][step]}iB` : `${bytes} B`;
}

/** Have the browser save `blob` as a file. */
export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Announce a text: screen readers read it out, and the page shows it for a while. */
export function announce(text) {
  dispatchEvent(new CustomEvent("casemate-said", { detail: visible(text) }));
}

/** Use a store's value, and render again when it changes. */
export function useStore(store) {
  const [value, set] = useState(store.value);
  useEffect(() => store.watch(set), [store]);
  return value;
}

/** A value with watchers. */
export class Store {
  constructor(value) {
    this.value = value;
    this.watchers = new Set();
  }
  set(value) {
    this.value = value;
    for (const watcher of [...this.watchers]) watcher(value);
  }
  watch(watcher) {
    this.watchers.add(watcher);
    watcher(this.value);
    return () => this.watchers.delete(watcher);
  }
}

/** Use the result of `load`: `[value, error, again]`. Calling `again` loads it again. */
export function useAsked(load, inputs) {
  const [found, set] = useState([undefined, null]);
  const last = useRef(0);
  const ask = useCallback(() => {
    const own = ++last.current;
    load().then(
      (value) => own === last.current && set([value, null]),
      (error) => own === last.current && set(([value]) => [value, error]),
    );
  }, inputs);
  useEffect(() => {
    ask();
    return () => { last.current++; };
  }, [ask]);
  return [...found, ask];
}

export function Failed({ error }) {
  return error && html`<p class="failed" role="alert">
    ${visible(error.message)}${error.remediation ? html`<br /><small>${visible(error.remediation)}</small>` : null}</p>`;
}

/** A button that is disabled until `onClick` is done. Shows its error beside it. */
export function Do({ onClick, children, ...rest }) {
  const [state, set] = useState({ busy: false, error: null });
  const isThere = useRef(true);
  useEffect(() => () => { isThere.current = false; }, []);
  const press = async (event) => {
    event.stopPropagation();
    set({ busy: true, error: null });
    let error = null;
    await Promise.resolve().then(() => onClick(event)).catch((raised) => { error = raised; });
    if (isThere.current) set({ busy: false, error });
  };
  return html`<button type="button" ...${rest} disabled=${state.busy || rest.disabled} onClick=${press}>${children}</button>
    <${Failed} error=${state.error} />`;
}

/** A table. `columns` is `[[title, (row) => content], ...]`; `href(row)` is a row's link. */
export function Table({ columns, rows, empty, label, keyOf = (row, index) => index, href = null, mark = () => "" }) {
  if (!rows?.length) return html`<p class="empty">${rows ? empty : "Not known yet."}</p>`;
  const first = (row, shown) => (href ? html`<a href=${href(row)}>${shown}</a>` : shown);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${columns.map(([title]) => html`<th scope="col">${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${keyOf(row, index)} class=${mark(row)}>
      ${columns.map(([, content], column) => html`<td>${column ? content(row) : first(row, content(row))}</td>`)}
    </tr>`)}</tbody></table></div>`;
}

/** A modal dialog. */
export function Dialog({ title, onClose, children }) {
  const own = useRef(null);
  useEffect(() => {
    const dialog = own.current;
    dialog.showModal();
    return () => dialog.open && dialog.close();
  }, []);
  return html`<dialog ref=${own} onClose=${onClose} aria-label=${title}>
    <header><h2>${title}</h2>
      <button type="button" class="plain" aria-label="Close" onClick=${() => own.current.close()}>×</button></header>
    ${children}
  </dialog>`;
}

const MOST_CHILDREN = 200;
/** A JSON value as a tree. Children are rendered when the user opens them. */
export function Json({ value, name = null, open = false }) {
  const [isOpen, set] = useState(open);
  const label = name === null ? null : html`<span class="name">${brief(name)}: </span>`;
  if (value === null || typeof value !== "object") {
    return html`<div class="json">${label}<span class=${typeof value}>${visible(JSON.stringify(value) ?? "")}</span></div>`;
  }
  const entries = Object.entries(value);
  const what = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const toggle = (event) => event.target === event.currentTarget && set(event.currentTarget.open);
  return html`<details class="json" open=${isOpen} onToggle=${toggle}>
    <summary>${label}${what}</summary>
    ${isOpen ? entries.slice(0, MOST_CHILDREN).map(([key, one]) => html`<${Json} key=${key} name=${key} value=${one} />`) : null}
    ${isOpen && entries.length > MOST_CHILDREN ? html`<p class="empty">and ${entries.length - MOST_CHILDREN} more</p>` : null}
  </details>`;
}
