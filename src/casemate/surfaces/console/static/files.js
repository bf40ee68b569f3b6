// Lists, shows, downloads and uploads files of a session's workspace or a run's artifacts.
import { call, download, upload } from "./api.js";
import { Picture, Text, pictureType } from "./results.js";
import { Dialog, Do, Failed, Table, brief, html, save, size, time, useAsked, useState, visible } from "./ui.js";

const MOST_LOOKED_AT = 4 << 20; // bytes of a displayed picture
const MOST_TEXT = 200_000; // bytes of a displayed text

function Look({ name, load, onClose }) {
  const [found, error] = useAsked(load, [name]);
  const shown = found && (pictureType(found.bytes) ? html`<${Picture} bytes=${found.bytes} name=${name} />`
    : found.text === null ? html`<p class="empty">neither text nor a picture</p>` : html`<${Text} text=${found.text} />`);
  return html`<${Dialog} title=${brief(name)} onClose=${onClose}><${Failed} error=${error} />${shown}</${Dialog}>`;
}

/** Read the beginning of a file: the bytes of a picture, else its text; null if it is not text. */
async function read(args, length) {
  const limit = Math.min(length || 1, MOST_LOOKED_AT, 1_000_000);
  const pieces = [];
  for (let offset = 0; offset < Math.min(length, MOST_LOOKED_AT); offset += limit) {
    const page = await call("files.read", { ...args, offset, limit, encoding: "base64" });
    pieces.push(Uint8Array.from(atob(page.base64), (one) => one.charCodeAt(0)));
    if (!pictureType(pieces[0])) break;
  }
  const all = new Uint8Array(await new Blob(pieces).arrayBuffer());
  const text = new TextDecoder().decode(all.subarray(0, MOST_TEXT));
  return { bytes: all, text: text.includes("\0") || text.includes("\ufffd") ? null : text };
}

async function fetchOne(name, ...parts) {
  save(await download(...parts), name.split("/").at(-1));
}

export function Files({ session = null, run = null }) {
  const [folder, go] = useState("");
  const [looked, look] = useState(null);
  const path = (name) => (folder ? `${folder}/${name}` : name);
  const own = (row) => row.name.slice(folder && folder.length + 1); // rows have full paths
  const list = () => (run ? call("artifacts.list", { run }) : call("files.list", { session, path: folder || "." }));
  const [rows, error, again] = useAsked(list, [session, run, folder]);
  const load = (row) => () => read({ path: row.name, ...(run ? { run } : { session }) }, row.size);
  const name = (row) => row.kind === "folder"
    ? html`<button type="button" class="plain" onClick=${() => go(row.name)}>${brief(own(row))}/</button>`
    : html`<button type="button" class="plain" onClick=${() => look(row)}>${brief(own(row))}</button>`;
  const [failed, fail] = useState(null);
  const put = async ({ target }) => {
    fail(null);
    try {
      for (const file of target.files) await call("files.write", { session, path: path(file.name), handle: await upload(file) });
    } catch (raised) {
      fail(raised);
    }
    target.value = "";
    again();
  };
  const columns = [["Name", name], ["Size", (row) => (row.kind === "folder" ? "" : size(row.size))], ["Changed", (row) => time(row.modified)],
    ["Fetch", (row) => (row.kind === "folder" ? null : html`<${Do} class="plain" aria-label=${`Download ${visible(own(row))}`}
      onClick=${() => fetchOne(row.name, ...(run ? ["artifacts", run] : ["files", session]), row.name)}>Download</${Do}>`)]];
  return html`<${Failed} error=${error ?? failed} />
    ${folder ? html`<p>
      <button type="button" class="plain" onClick=${() => go(folder.split("/").slice(0, -1).join("/"))}>↑ up</button>
      ${" "}${visible(folder)}</p>` : null}
    <${Table} label="Files" columns=${columns} rows=${rows} keyOf=${(row) => row.name} empty="No files." />
    ${session ? html`<div class="row"><label>Put files there <input type="file" multiple onChange=${put} /></label>
      <button type="button" class="plain" onClick=${again}>Look again</button></div>` : null}
    ${looked ? html`<${Look} name=${looked.name} load=${load(looked)} onClose=${() => look(null)} />` : null}`;
}
