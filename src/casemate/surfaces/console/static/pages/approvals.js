// Pending requests: a queue, oldest first, and one request of it.
import { call } from "../api.js";
import { Card, Kind, Waits, briefly, decide, isFolded } from "../request.js";
import { Dialog, Do, announce, brief, html, useEffect, useRef, useState, useStore } from "../ui.js";
import { isKnown, waiting } from "../waiting.js";

const MOST_SHOWN = 50; // the others follow as these are answered
const FIELDS = "input, select, textarea";
const KEYS = { a: [".pane .more", ".pane details.folded:not([open]) > summary", ".pane footer .allow"], d: [".pane footer .deny"] };

/** A allows and D denies the request that is shown. A first goes on to what is out of sight, and opens a folded value. */
function useKeys() {
  useEffect(() => {
    const hear = (event) => {
      const isPlain = !(event.ctrlKey || event.metaKey || event.altKey || event.repeat);
      if (!isPlain || event.target.closest?.(FIELDS) || document.querySelector("dialog[open]")) return;
      (KEYS[event.key.toLowerCase()] ?? []).map((one) => document.querySelector(one)).find(Boolean)?.click();
    };
    addEventListener("keydown", hear);
    return () => removeEventListener("keydown", hear);
  }, []);
}

/** The request that is shown. When it is over, the next one is shown and gets the focus. */
function useCurrent(requests) {
  const [id, choose] = useState(null);
  const last = useRef({ at: 0, id: null });
  const named = [id, last.current.id].map((one) => requests.find((request) => request.id === one));
  const current = named.find(Boolean) ?? requests[Math.min(last.current.at, requests.length - 1)];
  useEffect(() => {
    const before = last.current.id;
    last.current = { at: Math.max(0, requests.indexOf(current)), id: current?.id ?? null };
    if (before && before !== last.current.id && !requests.some((request) => request.id === before)) {
      document.querySelector(current ? ".pane > article" : "main h1")?.focus();
    }
  });
  return [current, choose];
}

export function Page() {
  const requests = [...useStore(waiting).values()];
  const isTold = useStore(isKnown);
  const [selected, select] = useState(new Set());
  const [read, note] = useState(new Set()); // the queue shows only how each begins
  const [isAsked, ask] = useState(false);
  const shown = requests.slice(0, MOST_SHOWN); // requests that are not shown cannot be selected
  const [current, choose] = useCurrent(shown);
  useKeys();
  const chosen = shown.filter((request) => selected.has(request.id));
  const toggle = (id) => select((known) => new Set(known.has(id) ? [...known].filter((one) => one !== id) : [...known, id]));
  const seen = chosen.filter((request) => read.has(request.id) && !isFolded(request));
  const answer = async (allow) => {
    for (const request of allow ? seen : chosen) await decide(request, allow);
    select(new Set());
  };
  const denyAll = async () => {
    announce(`Denied: ${await call("approvals.deny_all", {})}`);
    ask(false);
  };
  if (!current) {
    return html`<p class="empty">${isTold ? "Nothing waits for an answer. What comes is shown here at once; keep this page open."
      : "What waits is not known: the service has not told yet."}</p>`;
  }
  const isMany = requests.length > 1;
  const isAll = chosen.length === shown.length;
  const selectAll = () => select(new Set(isAll ? [] : shown.map((request) => request.id)));
  return html`<div class="desk">
    <div class="pane"><${Card} key=${current.id} request=${current} place=${current.id}
      onRead=${(id) => note((known) => new Set([...known, id]))} /></div>
    <nav class="queue" aria-label="What waits"><ol>${shown.map((request) => html`<li key=${request.id}>
      ${isMany ? html`<input type="checkbox" checked=${selected.has(request.id)} aria-label=${`Select: ${brief(request.summary)}`}
        onChange=${() => toggle(request.id)} />` : null}
      <button type="button" aria-current=${request === current ? "true" : null} onClick=${() => choose(request.id)}>
        <${Kind} kind=${request.kind} /> <${Waits} request=${request} isBrief=${true} /><code>${briefly(request)}</code></button></li>`)}</ol>
    ${requests.length > MOST_SHOWN ? html`<p class="empty">${requests.length - MOST_SHOWN} more follow when these are answered.</p>` : null}
    ${isMany ? html`<div class="row" role="toolbar" aria-label="Many at once">
      <label><input type="checkbox" checked=${isAll} onChange=${selectAll} /> all ${shown.length}</label>
      <${Do} class="allow" disabled=${!seen.length} onClick=${() => answer(true)}>Allow ${seen.length} once</${Do}>
      <${Do} class="deny" disabled=${!chosen.length} onClick=${() => answer(false)}>Deny ${chosen.length}</${Do}>
      <button type="button" class="deny" onClick=${() => ask(true)}>Deny all that waits…</button>
      ${seen.length < chosen.length ? html`<small>Only what you have read can be allowed with others; what is folded, only alone.</small>` : null}
    </div>` : null}</nav></div>
    ${isAsked ? html`<${Dialog} title="Deny all that waits?" onClose=${() => ask(false)}>
      <p>Also what is not shown yet. Programs are told that it was denied.</p>
      <${Do} class="deny" onClick=${denyAll}>Deny all</${Do}></${Dialog}>` : null}`;
}
