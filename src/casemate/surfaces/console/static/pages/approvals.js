import { html } from "../ui.js";

export function Page() {
  return html`<p class="empty">Nothing here yet.</p>`;
}
