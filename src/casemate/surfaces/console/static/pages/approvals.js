// What waits for an answer, the oldest first.
import { call } from "../api.js";
import { Card, decide } from "../request.js";
import { Dialog, Do, announce, html, useLayoutEffect, useRef, useState, useStore } from "../ui.js";
import { waiting } from "../waiting.js";

const MOST_SHOWN = 50; // the others come up as these are answered
const HELD = 500; // milliseconds in which nothing can be pressed that another request was in the place of

export function Page() {
  const requests = [...useStore(waiting).values()];
  const [selected, select] = useState(new Set());
  const [isAsked, ask] = useState(false);
  const [isHeld, hold] = useState(false);
  const before = useRef([]);
  useLayoutEffect(() => {
    const ids = requests.map((request) => request.id);
    const isMoved = before.current.some((id, at) => ids[at] !== undefined && ids[at] !== id);
    before.current = ids;
    if (!isMoved) return;
    hold(true);
    const timer = setTimeout(() => hold(false), HELD);
    return () => clearTimeout(timer);
  }, [requests.map((request) => request.id).join()]);
  const chosen = requests.filter((request) => selected.has(request.id));
  const toggle = (id) => select((known) => new Set(known.has(id) ? [...known].filter((one) => one !== id) : [...known, id]));
  const answer = async (allow) => {
    for (const request of chosen) await decide(request, allow);
    select(new Set());
  };
  const denyAll = async () => {
    announce(`Denied: ${await call("approvals.deny_all", {})}`);
    ask(false);
  };
  if (!requests.length) {
    return html`<p class="empty">Nothing waits for an answer. What comes is shown here at once; keep this page open.</p>`;
  }
  const isAll = chosen.length === requests.length;
  const selectAll = () => select(new Set(isAll ? [] : requests.map((request) => request.id)));
  return html`
    ${requests.length > 1 ? html`<div class="row" role="toolbar" aria-label="Many at once">
      <label><input type="checkbox" checked=${isAll} onChange=${selectAll} /> all ${requests.length}</label>
      <${Do} class="allow" disabled=${!chosen.length || isHeld} onClick=${() => answer(true)}>Allow ${chosen.length} once</${Do}>
      <${Do} class="deny" disabled=${!chosen.length || isHeld} onClick=${() => answer(false)}>Deny ${chosen.length}</${Do}>
      <button type="button" class="deny" onClick=${() => ask(true)}>Deny all that waits…</button>
    </div>` : null}
    ${requests.slice(0, MOST_SHOWN).map((request) => html`<${Card} key=${request.id} request=${request} isHeld=${isHeld}
      selected=${selected.has(request.id)} onSelect=${requests.length > 1 ? () => toggle(request.id) : null} />`)}
    ${requests.length > MOST_SHOWN ? html`<p class="empty">${requests.length - MOST_SHOWN} more follow when these are answered.</p>` : null}
    ${isAsked ? html`<${Dialog} title="Deny all that waits?" onClose=${() => ask(false)}>
      <p>Also what is not shown yet. Programs are told that it was denied.</p>
      <${Do} class="deny" onClick=${denyAll}>Deny all</${Do}></${Dialog}>` : null}`;
}
