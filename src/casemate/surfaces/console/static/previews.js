// Shows a session's servers in frames. The service gives each a host name, so each has its own origin.
import { call } from "./api.js";
import { Do, Failed, html, useAsked, useState, visible } from "./ui.js";

const ADDRESS = /^http:\/\/[\w-]+\.localhost(:\d+)?\//;
const MAY = "allow-scripts allow-same-origin allow-forms allow-modals allow-downloads";

export function Previews({ session }) {
  const [port, set] = useState("");
  const [shown, show] = useState(null);
  const [rows, error, again] = useAsked(() => call("sessions.previews", { session }), [session]);
  if (error?.status === 404) return null;
  const open = async (wanted) => {
    const preview = await call("sessions.expose", { session, port: Number(wanted) });
    show(ADDRESS.test(preview.url) ? preview : null);
    again();
  };
  const close = async (wanted) => {
    await call("sessions.unexpose", { session, port: wanted });
    show(null);
    again();
  };
  return html`<h2>Previews</h2><${Failed} error=${error} />
    ${rows?.map((one) => html`<div class="row" key=${one.port}>port ${one.port}
      <${Do} onClick=${() => open(one.port)}>Look</${Do}><${Do} onClick=${() => close(one.port)}>Show no more</${Do}></div>`)}
    <div class="row"><label>What listens at port
      <input class="short" type="number" min="1" max="65535" value=${port} onInput=${(event) => set(event.target.value)} /></label>
      <${Do} disabled=${!port} onClick=${() => open(port)}>Show it</${Do}></div>
    ${shown && html`<p class="soft">${visible(shown.url.split("?")[0])}</p>
      <iframe class="preview" key=${shown.url} sandbox=${MAY} referrerpolicy="no-referrer" src=${shown.url}
        title=${`What listens at port ${shown.port}`}></iframe>`}`;
}
