// Runs and sessions: lists of current and ended ones, a single one, and new ones.
import { call, stream } from "../api.js";
import { Execution, endingClass } from "../execution.js";
import { codeOf, firstLine, labelsOf } from "../names.js";
import { Dialog, Do, Failed, Table, brief, duration, html, time, useAsked, useEffect, useState, useStore, visible } from "../ui.js";
import { waiting } from "../waiting.js";
import { Session } from "./session.js";

const SOON = 250; // milliseconds: all events within are one reason to load again
const LANGUAGES = ["python", "node", "shell"];

/** Calls `again` soon after the record gets a row, and once the stream connects, for rows before that. */
export function useNews(again) {
  useEffect(() => {
    let timer = 0;
    const look = () => { timer ||= setTimeout(() => { timer = 0; again(); }, SOON); };
    const stop = stream("audit.events", () => ({}), look, { onBegin: look });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [again]);
}

const stateOf = (run) => run.outcome ?? (run.error ? "failed" : run.status);
const link = (run) => `#/runs/${run.run}`;

const labelOf = (run) => html`<code>${run.label || run.run.slice(0, 12)}</code>`;

/** What a session does: it waits for a person, is busy, or neither. */
export function Doing({ state: { session, is_busy: isBusy } }) {
  const isAsking = [...useStore(waiting).values()].some((request) => request.session === session);
  return html`<span class=${isAsking || isBusy ? "waits" : "ok"}>${isAsking ? "waits for your answer" : isBusy ? "busy" : "idle"}</span>`;
}

const RUN_COLUMNS = [
  ["Run", labelOf],
  ["State", (run) => html`<span class=${endingClass(stateOf(run))}>${stateOf(run)}</span>`],
  ["Language", (run) => run.language],
  ["Of", (run) => visible(run.owner)],
  ["Started", (run) => time(run.started)],
  ["Took", (run) => (run.ended ? duration(run.ended - run.started) : "")],
  ["Session", (run) => run.session && html`<a href=${`#/runs/session/${run.session}`}>${run.sessionName}</a>`],
];

const SESSION_COLUMNS = [
  ["Session", (one) => one.shownName],
  ["State", (one) => html`<${Doing} state=${one} />`],
  ["Language", (one) => one.language],
  ["Of", (one) => visible(one.owner)],
  ["Opened", (one) => time(one.created)],
  ["Steps", (one) => one.steps],
];

function Language(rest) {
  return html`<label>Language <select ...${rest}>${LANGUAGES.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>`;
}

function Start({ onClose }) {
  const [given, set] = useState({ code: "", language: "python", timeout: 60, hosts: "" });
  const change = (name) => (event) => set({ ...given, [name]: event.target.value });
  const start = async () => {
    const hosts = given.hosts.split(/[\s,]+/).filter(Boolean);
    const { code, language, timeout } = given;
    const narrowed = hosts.length ? { allowed_domains: hosts } : {};
    location.hash = link(await call("runs.start", { code, language, timeout: Number(timeout) || null, ...narrowed }));
  };
  return html`<${Dialog} title="Start a run" onClose=${onClose}>
    <label class="tall">Program
      <textarea class="prompt" value=${given.code} onInput=${change("code")} spellcheck=${false}></textarea></label>
    <div class="row"><${Language} value=${given.language} onChange=${change("language")} />
      <label>At most <input class="short" type="number" min="1" value=${given.timeout} onInput=${change("timeout")} /> seconds
      </label></div>
    <label class="tall">Only these of the permitted hosts
      <input value=${given.hosts} onInput=${change("hosts")} placeholder="all of them" /></label>
    <${Do} class="main" disabled=${!given.code.trim()} onClick=${start}>Start</${Do}>
  </${Dialog}>`;
}

function Open({ onClose }) {
  const [given, set] = useState({ language: "python", name: "" });
  const change = (name) => (event) => set({ ...given, [name]: event.target.value });
  const open = async () => {
    const made = await call("sessions.open", { language: given.language, ...(given.name ? { name: given.name } : {}) });
    location.hash = `#/runs/session/${made.session}`;
  };
  return html`<${Dialog} title="Open a session" onClose=${onClose}>
    <div class="row"><${Language} value=${given.language} onChange=${change("language")} />
      <label>Name <input value=${given.name} placeholder="none" onInput=${change("name")} /></label></div>
    <${Do} class="main" onClick=${open}>Open</${Do}>
  </${Dialog}>`;
}

/** All runs and sessions with their names: of a session its own, else the label of its first run. */
async function load() {
  const [found, open] = await Promise.all([call("runs.list"), call("sessions.list")]);
  const labels = await labelsOf(found).catch(() => new Map());
  const runs = found.map((run) => ({ ...run, label: labels.get(run.run) }));
  const names = new Map(open.filter((one) => one.name).map((one) => [one.session, visible(one.name)]));
  for (const run of runs) if (run.session && !names.has(run.session)) names.set(run.session, labelOf(run));
  const nameIn = (session) => names.get(session) ?? html`<code>${session.slice(0, 12)}</code>`;
  return [runs.map((run) => ({ ...run, sessionName: run.session && nameIn(run.session) })), open.map((one) => ({ ...one, shownName: nameIn(one.session) }))];
}

function All() {
  const [found, error, again] = useAsked(load, []);
  const [dialog, show] = useState(null);
  useNews(again);
  const [runs, sessions] = found ?? [];
  return html`<div class="row"><button type="button" class="main" onClick=${() => show("run")}>Start a run…</button>
      <button type="button" onClick=${() => show("session")}>Open a session…</button></div>
    <${Failed} error=${error} />
    <h2>Sessions</h2>
    <${Table} label="Sessions" columns=${SESSION_COLUMNS} rows=${sessions} keyOf=${(one) => one.session}
      href=${(one) => `#/runs/session/${one.session}`} empty="No session is open." />
    <h2>Runs</h2>
    <${Table} label="Runs" columns=${RUN_COLUMNS} rows=${runs && [...runs].reverse()} keyOf=${(run) => run.run} href=${link}
      empty="Nothing has run yet." />
    ${dialog === "run" ? html`<${Start} onClose=${() => show(null)} />` : null}
    ${dialog === "session" ? html`<${Open} onClose=${() => show(null)} />` : null}`;
}

function One({ run }) {
  const [code, error] = useAsked(() => codeOf(run), [run]);
  return html`<p><a href="#/runs">All runs</a> · run <code>${(code && firstLine(code)) || brief(run, 40)}</code></p><${Failed} error=${error} />
    <${Execution} key=${run} run=${run} code=${code ?? null} isWhole=${true} />`;
}

export function Page({ rest: [first, second] }) {
  if (first === "session" && second) return html`<${Session} key=${second} session=${second} />`;
  return first ? html`<${One} key=${first} run=${first} />` : html`<${All} />`;
}
