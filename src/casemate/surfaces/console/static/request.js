// One pending request: exactly what would cross the wall, and the controls to answer it.
import { call } from "./api.js";
import { Do, announce, brief, html, useLayoutEffect, useState, visible } from "./ui.js";

const HELD = 500; // milliseconds before the buttons of a card that has just moved can be pressed
const LARGE = 4000; // characters; larger values are folded
const ENDS_SHOWN = 300; // characters shown of each end of a folded value
const SCOPES = [["once", "once"], ["run", "until the run ends"], ["session", "until the session ends"]];
const ENDS = [["", "for all of that"], ["60", "for a minute"], ["600", "for ten minutes"], ["3600", "for an hour"]];

/** Answer a request, and announce whether the answer was in time. */
export async function decide(request, allow, options = {}) {
  const taken = await call("approvals.decide", { request: request.id, allow, ...options });
  announce(taken ? `${allow ? "Allowed" : "Denied"}: ${brief(request.summary)}` : "Too late: it was answered elsewhere, or is over");
}

const textOf = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 1);
const isLarge = (value) => textOf(value).length > LARGE;

/** Whether a value is folded. Such a request can only be allowed singly, after opening the value. */
export const isFolded = (request) => Object.values(request.arguments).some(isLarge);

function Value({ value, onOpen }) {
  const text = textOf(value);
  const isDiff = typeof value === "string" && /^(=== |--- |@@ )/m.test(value);
  const sign = (line) => ({ "+": "added", "-": "removed" })[line[0]] ?? "";
  const shown = isDiff
    ? html`<pre tabindex="0">${text.split("\n").map((line) => html`<span class=${sign(line)}>${visible(line)}${"\n"}</span>`)}</pre>`
    : text.length > 80 || text.includes("\n") ? html`<pre tabindex="0">${visible(text)}</pre>` : html`<code>${visible(text)}</code>`;
  if (!isLarge(value)) return shown;
  return html`<pre tabindex="0">${visible(text.slice(0, ENDS_SHOWN))}\n…\n${visible(text.slice(-ENDS_SHOWN))}</pre>
    <details onToggle=${(event) => event.currentTarget.open && onOpen()}>
      <summary>All ${text.length} characters: open them before you allow it</summary>${shown}</details>`;
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

/** Whether an element has just moved to `place`. A click there may have been meant for the element before it. */
function useHeld(place) {
  const [isHeld, hold] = useState(true);
  useLayoutEffect(() => {
    hold(true);
    const timer = setTimeout(() => hold(false), HELD);
    return () => clearTimeout(timer);
  }, [place]);
  return isHeld;
}

/** `place` is the card's position; it changes when a card above is added or removed. */
export function Card({ request, place, selected = null, onSelect = null }) {
  const [terms, set] = useState({ scope: "once", expires: "", uses: "", reason: "" });
  const [content, fill] = useState({});
  const isHeld = useHeld(place);
  const [opened, note] = useState(new Set());
  const change = (name) => (event) => set({ ...terms, [name]: event.target.value });
  const { kind, summary, arguments: given, server, tool, caller, session, run, hash } = request;
  const isUnread = Object.entries(given).some(([name, value]) => isLarge(value) && !opened.has(name));
  const isForm = kind === "elicitation" && given.schema;
  const options = {
    scope: terms.scope, reason: terms.reason, ...(terms.expires ? { expires: Number(terms.expires) } : {}),
    ...(terms.uses ? { uses: Number(terms.uses) } : {}), ...(isForm ? { content } : {}),
  };
  return html`<article class="card request" aria-label=${brief(`${kind}: ${summary}`)}>
    <h2>${onSelect && html`
        <input type="checkbox" checked=${selected} aria-label=${`Select: ${brief(summary)}`} onChange=${onSelect} />${" "}`}
      <span class="kind">${visible(kind)}</span> ${brief(summary, 300)}</h2>
    ${request.state === "withdrawn" ? html`<p class="soft">
      What asked is gone: an answer is for when exactly the same is asked again.</p>` : null}
    <dl>
      <dt>asked by</dt>
      <dd>${visible(caller) || "this application"}, <a href=${`#/runs/${encodeURIComponent(run)}`}>run ${brief(run, 12)}</a>
        ${session && html`, <a href=${`#/runs/session/${encodeURIComponent(session)}`}>session ${brief(session, 12)}</a>`}</dd>
      ${server ? html`<dt>tool</dt><dd>${visible(server)}${tool ? ` . ${visible(tool)}` : ""}</dd>` : null}
      ${Object.entries(given).map(([name, value]) => html`<dt>${brief(name)}</dt><dd>
        <${Value} value=${value} onOpen=${() => note(new Set([...opened, name]))} /></dd>`)}
      <dt>hash</dt><dd><code>${visible(hash)}</code></dd>
    </dl>
    ${isForm ? html`<${Fields} schema=${given.schema} values=${content} onChange=${fill} />` : null}
    <div class="row">
      <${Do} class="allow" disabled=${isHeld || isUnread} onClick=${() => decide(request, true, options)}>Allow</${Do}>
      <label>the same <select value=${terms.scope} onChange=${change("scope")}>
        ${SCOPES.filter(([scope]) => session || scope !== "session").map(([scope, words]) => html`
          <option value=${scope}>${words}</option>`)}</select></label>
      ${terms.scope === "once" ? null : html`
        <label><span class="hidden">For how long</span><select value=${terms.expires} onChange=${change("expires")}>
          ${ENDS.map(([seconds, words]) => html`<option value=${seconds}>${words}</option>`)}</select></label>
        <label>at most <input type="number" min="1" class="short" value=${terms.uses} onInput=${change("uses")} /> times</label>`}
    </div>
    <div class="row">
      <${Do} class="deny" disabled=${isHeld} onClick=${() => decide(request, false, { reason: terms.reason })}>Deny</${Do}>
      <label>telling the program <input value=${terms.reason} maxlength="2000" onInput=${change("reason")} /></label>
    </div>
    <${RuleOf} request=${request} />
  </article>`;
}
