// One pending request: who asks, exactly what would cross the wall, and the controls to answer it.
import { call } from "./api.js";
import { codeOf, firstLine, nameOf } from "./names.js";
import { Do, announce, brief, clock, html, useAsked, useEffect, useLayoutEffect, useNow, useRef, useState, visible } from "./ui.js";
import { wasSeen } from "./waiting.js";

const HELD = 500; // milliseconds before the buttons of a card that has just moved can be pressed
const LARGE = 4000; // characters; larger values are folded
const MOST_STYLED = 100_000; // characters of a diff with colors
const ENDS_SHOWN = 300; // characters shown of each end of a folded value
const SCOPES = [["once", "once"], ["run", "until the run ends"], ["session", "until the session ends"]];
const ENDS = [["", "for all of that"], ["60", "for a minute"], ["600", "for ten minutes"], ["3600", "for an hour"]];
const PROMPT = "M2 4l4 4-4 4M8 13h6";
const PLUG = "M5.5 1.5v4M10.5 1.5v4M3.5 5.5h9v3a4.5 4.5 0 0 1-9 0zM8 13v2";
// The name, color and icon path of each kind.
const KINDS = {
  shell: ["Shell command", "c-magenta", PROMPT],
  process: ["Program", "c-magenta", PROMPT],
  host: ["Command on the host", "c-red", PROMPT],
  egress: ["Connection", "c-blue", "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM1.5 8h13M8 1.5c-4 4-4 9 0 13 4-4 4-9 0-13z"],
  package: ["Packages", "c-cyan", "M2 4.5l6-3 6 3v7l-6 3-6-3zM2 4.5l6 3 6-3M8 7.5v7"],
  files: ["Changes of files", "c-yellow", "M3.5 1.5h6l3 3v10h-9zM9.5 1.5v3h3M8 7v5M5.5 9.5h5"],
  tool: ["Tool", "c-green", PLUG],
  server: ["Server of tools", "c-red", PLUG],
  plan: ["Plan of calls", "c-green", "M2 4h12M2 8h12M2 12h12"],
  elicitation: ["A server asks you", "c-blue", "M5.5 5.5a2.5 2.5 0 1 1 3.6 2.2C8.3 8.1 8 8.6 8 9.5M8 12v1.2"],
  secret: ["Secret", "c-red", "M10.5 2a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM8 8l-6 6M4 12l2 2"],
};
const COUNTED = ["files", "host", "package"]; // kinds whose arguments casemate makes: zeros and hashes go under the details

export function Kind({ kind }) {
  const [name, colour, path] = KINDS[kind] ?? [visible(kind), "", PLUG];
  return html`<span class=${`kind ${colour}`}><svg viewBox="0 0 16 16" aria-hidden="true"><path d=${path} /></svg><span>${name}</span></span>`;
}

const word = (one) => (/^[\w./:=@%+,-]+$/.test(one) ? one : `'${String(one).replaceAll("'", "'\\''")}'`); // as a shell reads it

/** What would cross, in one text, and the names of the arguments that say nothing more. */
function subjectOf({ kind, summary, server, tool, arguments: given }) {
  if (typeof given.command === "string" && (kind === "shell" || kind === "process")) return [given.command, ["command"]];
  if (kind === "host" && Array.isArray(given.argv)) return [given.argv.map(word).join(" "), ["argv"]];
  if (kind === "egress" && "host" in given) return [`${given.host}:${given.port}`, ["host", "port"]];
  if (kind === "tool") return [`${server}.${tool}`, []];
  if (kind === "files" && summary.endsWith(` ${given.folder}`)) return [summary, ["folder"]];
  if (kind === "package" && Array.isArray(given.packages)) return [given.packages.join("\n"), ["packages"]];
  return [summary, []];
}

/** The same on a line, for lists. */
export const briefly = (request) => brief(subjectOf(request)[0].slice(0, 200), 80);

/** Answer a request, and announce whether the answer was in time. */
export async function decide(request, allow, options = {}) {
  const taken = await call("approvals.decide", { request: request.id, allow, ...options });
  announce(taken ? `${allow ? "Allowed" : "Denied"}: ${brief(request.summary)}` : "Too late: it was answered elsewhere, or is over");
}

const textOf = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 1);
const isLarge = (value) => textOf(value).length > LARGE;

/** Whether a value is folded. Such a request can only be allowed singly, after opening the value. */
export const isFolded = (request) => Object.values(request.arguments).some(isLarge);

const SIGNS = { "+": "added", "-": "removed", "=": "named" };
export const Diff = ({ text }) => html`<pre class="diff" tabindex="0">${text.split("\n").map((line) => html`<span class=${SIGNS[line[0]] ?? ""}>${visible(line)}${"\n"}</span>`)}</pre>`;

function Value({ value, subject = null, onOpen }) {
  const [isOpen, open] = useState(false);
  const text = subject ?? textOf(value);
  const isDiff = typeof value === "string" && text.length <= MOST_STYLED && /^(=== |--- |@@ )/m.test(value);
  const isList = Array.isArray(value) && value.length > 0 && !isLarge(value) && value.every((one) => typeof one === "string");
  const shown = () => subject !== null ? html`<pre class="subject" tabindex="0">${visible(text)}</pre>`
    : isDiff ? html`<${Diff} text=${text} />`
    : isList ? html`<ul>${value.map((one) => html`<li><code>${visible(one)}</code></li>`)}</ul>`
    : text.length > 80 || text.includes("\n") ? html`<pre tabindex="0">${visible(text)}</pre>` : html`<code>${visible(text)}</code>`;
  if (!isLarge(value)) return shown();
  return html`<pre tabindex="0">${visible(text.slice(0, ENDS_SHOWN))}\n…\n${visible(text.slice(-ENDS_SHOWN))}</pre>
    <details class="folded" onToggle=${({ currentTarget }) => { open(currentTarget.open); if (currentTarget.open) onOpen(); }}>
      <summary>All ${text.length} characters: open them before you allow it</summary>${isOpen ? shown() : null}</details>`;
}

/** Form fields for an MCP server's elicitation, by MCP's JSON Schema for flat objects. */
function Fields({ schema, values, onChange }) {
  const set = (name, value) => onChange({ ...values, [name]: value });
  return Object.entries(schema.properties ?? {}).map(([name, one]) => {
    const label = brief(one.title ?? name) + (schema.required?.includes(name) ? " (needed)" : "");
    const field = Array.isArray(one.enum)
      ? html`<select onChange=${(event) => set(name, event.target.value)}>
          <option></option>${one.enum.map((word) => html`<option value=${word}>${brief(word)}</option>`)}</select>`
      : one.type === "boolean" ? html`<input type="checkbox" onChange=${(event) => set(name, event.target.checked)} />`
      : one.type === "number" || one.type === "integer"
        ? html`<input type="number" step="any" onInput=${(event) => set(name, event.target.valueAsNumber)} />`
      : html`<input onInput=${(event) => set(name, event.target.value)} />`;
    return html`<label class="tall">${label} ${field} <small>${brief(one.description)}</small></label>`;
  });
}

function RuleOf({ request }) {
  const [text, set] = useState(null);
  const load = async () => set(await call("approvals.propose", { request: request.id }));
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    announce("The rule is in the clipboard");
  };
  if (text === null) return html`<${Do} class="plain" onClick=${load}>Show the rule that would allow it</${Do}>`;
  return text === ""
    ? html`<p class="empty">No rule can answer this: only a person can.</p>`
    : html`<p class="soft">In a policy file, this would allow exactly the same without asking:</p><pre class="rule" tabindex="0">${visible(text)}</pre>
      <${Do} class="plain" onClick=${copy}>Copy it</${Do}>`;
}

/** An agent by its name; an MCP client without one by the name that it gives itself, after 16 random digits. */
function Agent({ caller }) {
  const own = /^agent:mcp:[0-9a-f]{16}(?::(.*))?$/.exec(caller);
  if (!own) return html`<strong>${visible(caller) || "this application"}</strong>`;
  return own[1] ? html`an agent, <span class="soft">which calls itself</span> <code>${brief(own[1], 60)}</code>` : "an agent without a name";
}

/** Who asks, as the host knows it; and the line that asks, whose number only the program says. */
function Asker({ request: { caller, session, run, line } }) {
  const [code] = useAsked(() => codeOf(run), [run]);
  const [name] = useAsked(async () => (session ? nameOf(session) : ""), [session]);
  const asking = Number.isInteger(line) ? code?.split("\n")[line - 1]?.trim() : "";
  const label = code && firstLine(code);
  return html`<p class="asker">
      ${session ? html`Session <a href=${`#/runs/session/${encodeURIComponent(session)}`}><code>${name || brief(session, 12)}</code></a>`
        : html`Run <a href=${`#/runs/${encodeURIComponent(run)}`}><code>${label || brief(run, 12)}</code></a>`}
      ${" "}of <${Agent} caller=${caller} /></p>
    ${asking ? html`<p class="asker"><span class="soft">The program says line ${line}:</span> <code>${brief(asking, 200)}</code></p>` : null}`;
}

/** How long it has waited, and when it is denied without an answer. */
export function Waits({ request: { asked, expires, state }, isBrief = false }) {
  const now = useNow();
  if (state === "withdrawn" || !asked) return null;
  if (isBrief) return html`<span>${clock(now - asked)}</span>`;
  return html`<span class="clock" role="timer">waits ${clock(now - asked)}${expires ? html` · <span>denied by itself in ${clock(expires - now)}</span>` : ""}</span>`;
}

/** Whether something has just moved to its `place`: a click there may have been meant for what was there before. */
export function useHeld(place) {
  const [isHeld, hold] = useState(true);
  useLayoutEffect(() => {
    hold(true);
    const timer = setTimeout(() => hold(false), HELD);
    return () => clearTimeout(timer);
  }, [place]);
  return isHeld;
}

/** Whether the element `end` has been in view since `place` was last held: true, false, or null before that is known. */
function useRead(end, place, isHeld) {
  const [seen, note] = useState({});
  const isRead = seen.place === place ? seen.isRead : null;
  useEffect(() => {
    if (isHeld || isRead) return;
    const margin = end.current.closest("article").querySelector("footer").offsetHeight; // it may lie over the end
    const watcher = new IntersectionObserver(
      (views) => note({ place, isRead: views.some((one) => one.isIntersecting) }), { rootMargin: `0px 0px -${margin}px 0px` });
    watcher.observe(end.current);
    return () => watcher.disconnect();
  }, [place, isHeld, isRead]);
  return isRead;
}

/** `place`: where it stands, another whenever something above it comes or goes. `onRead`: called with its id at its end. */
export function Card({ request, place, onRead = () => {} }) {
  const [terms, set] = useState({ scope: "once", expires: "", uses: "", reason: "" });
  const [content, fill] = useState({});
  const [isSeen] = useAsked(() => wasSeen(request), [request.id]);
  const [opened, note] = useState(new Set());
  const isHeld = useHeld(`${place} ${opened.size}`);
  const [asks, end] = [useRef(null), useRef(null)];
  const isRead = useRead(end, opened.size, isHeld);
  useEffect(() => { if (isRead && !isUnread) onRead(request.id); }, [isRead]);
  const scroll = () => {
    const [{ scrollHeight, clientHeight }, { scrollingElement }] = [asks.current, document];
    (scrollHeight > clientHeight ? asks.current : scrollingElement).scrollBy(0, 0.6 * Math.min(clientHeight, innerHeight));
  };
  const change = (name) => (event) => set({ ...terms, [name]: event.target.value });
  const { kind, summary, arguments: given, session, run, hash, id } = request;
  const isUnread = Object.entries(given).some(([name, value]) => isLarge(value) && !opened.has(name));
  const isForm = kind === "elicitation" && given.schema;
  const [subject, told] = subjectOf(request);
  const isDetail = ([, value]) => COUNTED.includes(kind) && (value === 0 || /^[0-9a-f]{64}$/.test(value));
  const facts = Object.entries(given).filter(([name]) => !told.includes(name));
  const list = (entries) => entries.map(([name, value]) => html`<dt>${brief(name)}</dt><dd>
    <${Value} value=${value} onOpen=${() => note(new Set([...opened, name]))} /></dd>`);
  const options = {
    scope: terms.scope, reason: terms.reason, ...(terms.expires ? { expires: Number(terms.expires) } : {}),
    ...(terms.uses ? { uses: Number(terms.uses) } : {}), ...(isForm ? { content } : {}),
  };
  return html`<article class="card request" tabindex="-1" aria-label=${brief(`${kind}: ${summary}`)}>
    <div class="asks" ref=${asks}>
      <h2><${Kind} kind=${kind} />${isSeen === false ? html` <strong class="new">new<span class="hidden">: never seen before</span></strong>` : null}</h2>
      <${Asker} request=${request} />
      <${Value} subject=${subject} value=${told.length === 1 ? given[told[0]] : subject} onOpen=${() => note(new Set([...opened, told[0]]))} />
      ${request.state === "withdrawn" ? html`<p class="soft">
        What asked is gone: an answer is for when exactly the same is asked again.</p>` : null}
      <dl>${list(facts.filter((one) => !isDetail(one)))}</dl>
      ${isForm ? html`<${Fields} schema=${given.schema} values=${content} onChange=${fill} />` : null}
      <div class="end" ref=${end}></div>
      <details><summary>Details</summary><dl>
        ${list([...facts.filter(isDetail), ["hash", hash], ["run", run], ...(session ? [["session", session]] : []), ["request", id]])}</dl>
        <${RuleOf} request=${request} /></details>
    </div>
    <footer class="row">
      ${isRead === false ? html`<button type="button" class="plain more" onClick=${scroll}>More below: read all of it before you allow it</button>` : null}
      <${Do} class="allow" aria-keyshortcuts="A" disabled=${isHeld || isUnread || !isRead} onClick=${() => decide(request, true, options)}>
        Allow ${SCOPES.find(([scope]) => scope === terms.scope)[1]}<kbd aria-hidden="true">A</kbd></${Do}>
      <${Do} class="deny" aria-keyshortcuts="D" disabled=${isHeld} onClick=${() => decide(request, false, { reason: terms.reason })}>
        Deny<kbd aria-hidden="true">D</kbd></${Do}>
      <details class="terms"><summary>More…</summary><div class="card">
        <label class="tall">Allow the same <select value=${terms.scope} onChange=${change("scope")}>
          ${SCOPES.filter(([scope]) => session || scope !== "session").map(([scope, words]) => html`
            <option value=${scope}>${words}</option>`)}</select></label>
        ${terms.scope === "once" ? null : html`
          <label class="tall"><span class="hidden">For how long</span><select value=${terms.expires} onChange=${change("expires")}>
            ${ENDS.map(([seconds, words]) => html`<option value=${seconds}>${words}</option>`)}</select></label>
          <label>at most <input type="number" min="1" class="short" value=${terms.uses} onInput=${change("uses")} /> times</label>`}
        <label class="tall">Deny, telling the program <input value=${terms.reason} maxlength="2000" onInput=${change("reason")} /></label>
      </div></details>
      <${Waits} request=${request} />
    </footer>
  </article>`;
}
