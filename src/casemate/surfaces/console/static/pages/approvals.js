// Pending requests, oldest first.
import { call } from "../api.js";
import { Card, decide, isFolded } from "../request.js";
import { Dialog, Do, announce, html, useState, useStore } from "../ui.js";
import { waiting } from "../waiting.js";

const MOST_SHOWN = 50; // the others follow as these are answered

export function Page() {
  const requests = [...useStore(waiting).values()];
  const [selected, select] = useState(new Set());
  const [isAsked, ask] = useState(false);
  const shown = requests.slice(0, MOST_SHOWN); // requests that are not shown cannot be selected
  const chosen = shown.filter((request) => selected.has(request.id));
  const toggle = (id) => select((known) => new Set(known.has(id) ? [...known].filter((one) => one !== id) : [...known, id]));
  const seen = chosen.filter((request) => !isFolded(request));
  const answer = async (allow) => {
    for (const request of allow ? seen : chosen) await decide(request, allow);
    select(new Set());
  };
  const denyAll = async () => {
    announce(`Denied: ${await call("approvals.deny_all", {})}`);
    ask(false);
  };
  if (!requests.length) {
    return html`<p class="empty">Nothing waits for an answer. What comes is shown here at once; keep this page open.</p>`;
  }
  const isMany = requests.length > 1;
  const isAll = chosen.length === shown.length;
  const selectAll = () => select(new Set(isAll ? [] : shown.map((request) => request.id)));
  return html`
    ${isMany ? html`<div class="row" role="toolbar" aria-label="Many at once">
      <label><input type="checkbox" checked=${isAll} onChange=${selectAll} /> all ${shown.length}</label>
      <${Do} class="allow" disabled=${!seen.length} onClick=${() => answer(true)}>Allow ${seen.length} once</${Do}>
      <${Do} class="deny" disabled=${!chosen.length} onClick=${() => answer(false)}>Deny ${chosen.length}</${Do}>
      <button type="button" class="deny" onClick=${() => ask(true)}>Deny all that waits…</button>
    </div>` : null}
    ${shown.map((request, at) => html`<${Card} key=${request.id} request=${request} place=${`${at} ${isMany}`}
      selected=${selected.has(request.id)} onSelect=${isMany ? () => toggle(request.id) : null} />`)}
    ${requests.length > MOST_SHOWN ? html`<p class="empty">${requests.length - MOST_SHOWN} more follow when these are answered.</p>` : null}
    ${isAsked ? html`<${Dialog} title="Deny all that waits?" onClose=${() => ask(false)}>
      <p>Also what is not shown yet. Programs are told that it was denied.</p>
      <${Do} class="deny" onClick=${denyAll}>Deny all</${Do}></${Dialog}>` : null}`;
}
