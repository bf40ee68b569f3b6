// The record: its rows, its verification, and evidence of a run.
import { call, download } from "../api.js";
import { firstLine } from "../names.js";
import { Do, Failed, Json, announce, brief, duration, html, save, time, useAsked, useState, visible } from "../ui.js";

const KINDS = ["intent", "outcome", "request", "decision", "crossing", "session", "queue", "signature", "anchor", "definition"];
const AT_ONCE = 100; // rows
const MOST = 1000; // of one response
const NOTHING = { kind: "", run: "", since: "" };

export function Page({ rest }) {
  const [wanted, want] = useState({ ...NOTHING, run: rest[0] ?? "" });
  const [limit, setLimit] = useState(AT_ONCE);
  const asked = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value));
  if (asked.since) asked.since = new Date(asked.since).getTime() / 1000;
  const [rows, error, again] = useAsked(() => call("audit.tail", { limit, ...asked }), [JSON.stringify(asked), limit]);
  const field = (name) => ({ value: wanted[name], onChange: ({ target }) => want({ ...wanted, [name]: target.value.trim() }) });
  return html`<${Whole} />
    <form class="row" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Kind <select ...${field("kind")}><option value="">All</option>${KINDS.map((kind) => html`<option value=${kind}>${kind}</option>`)}</select></label>
      <label>Run or session <input ...${field("run")} spellcheck="false" autocomplete="off" /></label>
      <label>From <input type="datetime-local" step="1" ...${field("since")} /></label>
      <${Do} onClick=${() => want(NOTHING)}>Clear</${Do}> <${Do} onClick=${again}>Look again</${Do}>
      ${wanted.run ? html` <${Do} onClick=${() => saveEvidence(wanted.run)}>Evidence pack of this run</${Do}>` : null}
    </form>
    <${Failed} error=${error} />
    ${rows && html`<${Rows} rows=${rows} onRun=${(run) => want({ ...wanted, run })} />
      ${rows.length >= limit && limit < MOST ? html`<p><${Do} onClick=${() => setLimit(MOST)}>Show up to ${MOST}</${Do}></p>` : null}`}`;
}

function Whole() {
  const [verdict, set] = useState(null);
  const [head, setHead] = useState("");
  const verify = async () => {
    set(null);
    const found = await call("audit.verify", head ? { head } : {});
    set(found);
    announce(found.first_bad == null ? "The record is whole" : "The record is broken");
  };
  return html`<details class="card"><summary>Is the record whole?</summary>
    <p><label>Hash of a row that you noted elsewhere <input size="64" value=${head} spellcheck="false" autocomplete="off" onInput=${({ target }) => setHead(target.value.trim())} /></label>
      <${Do} onClick=${verify}>Verify</${Do}> <${Do} onClick=${saveRows}>Save all rows</${Do}></p>
    ${verdict && html`<${Verdict} ...${verdict} />`}</details>`;
}

function Verdict({ head, first_bad: bad, reason, signed, dropped }) {
  if (bad != null) return html`<p class="failed" role="alert">Broken at row ${bad}: ${visible(reason)}</p>`;
  return html`<p class="ok">Whole: ${head.count} rows, signed up to row ${signed}${reason ? html`, since ${visible(reason)}` : ""}.
    ${dropped ? ` The first ${dropped} were dropped.` : ""} The last row's hash, to be noted elsewhere: <code class="hash">${head.last}</code></p>`;
}

function Rows({ rows, onRun }) {
  if (!rows.length) return html`<p class="empty">The record has no such row in this namespace.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Rows of the record"><table class="record">
    <thead><tr>${["Row", "Time", "Kind", "Run", "Namespace", "What it says"].map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.sequence}><td>${row.sequence}</td><td>${time(row.time)}</td><td>${visible(row.kind)}</td>
      <td>${row.run ? html`<button type="button" class="plain" onClick=${() => onRun(row.run)} aria-label=${`Rows of ${brief(row.run, 40)}`}><code>${brief(row.run, 12)}</code></button>` : null}</td>
      <td>${brief(row.namespace, 40)}</td><td><${Detail} ...${row} /></td></tr>`)}</tbody></table></div>`;
}

const by = ({ by: who, note, reason }) => `${who && who !== "queue" ? ` by ${who}` : ""}${note ? `, ${note}` : ""}${reason ? `: ${reason}` : ""}`;
const crossed = {
  tool: ({ server, tool, outcome, seconds }) => `called ${server}.${tool}: ${outcome}, after ${duration(seconds)}`,
  files: ({ action, path }) => `${action} ${path} on the host`,
};
const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
// What a row of each kind says, as a sentence; "" where these words do not fit it. Programs' words come last: they may be long.
const SENTENCES = {
  intent: ({ language, program, code, session }) => `${session ? "A step in" : "A program in"} ${language} started: ${typeof code === "string" ? firstLine(code) : program}`,
  outcome: ({ status, duration: seconds, cause, error }) => `It ended after ${duration(seconds)}: ${[status, cause, error].filter(Boolean).join(", ")}`,
  request: ({ summary }) => `It asks to ${summary}`,
  decision: ({ decision, by: who, summary, request, ...why }) =>
    `${capital(decision)}${by({ by: who })}: ${summary ?? `an answer to request ${request}`}${by(why)}`,
  crossing: ({ kind, host, port, decision, connections, reason, ...rest }) => host
    ? `${decision === "denied" ? "Refused" : "Reached"}: ${host}${port ? `:${port}` : ""}, ${connections ?? 1} ${connections > 1 ? "times" : "time"}${reason ? `: ${reason}` : ""}`
    : crossed[kind]?.({ ...rest, kind }) ?? "",
  session: ({ action, language, caller }) => `A session${language ? ` in ${language}` : ""} was ${action}${caller ? ` by ${caller}` : ""}`,
  queue: () => "It waited for its turn",
  signature: () => "Its outcome was signed",
  anchor: () => "The head of the record was noted elsewhere",
  definition: ({ server, tool }) => `The definition of ${[server, tool].filter(Boolean).join(".")} was noted`,
};

function sentence(kind, detail) {
  try {
    return brief(SENTENCES[kind]?.(detail) || detail, 160);
  } catch {
    return brief(detail, 160); // a row that another version wrote
  }
}

function Detail({ kind, detail, hash }) {
  const [isOpen, open] = useState(false);
  return html`<details onToggle=${({ currentTarget, target }) => target === currentTarget && open(currentTarget.open)}><summary>${sentence(kind, detail)}</summary>
    ${isOpen ? html`<${Json} value=${detail} open=${true} /><p>Hash <code class="hash">${visible(hash)}</code></p>` : null}</details>`;
}

async function saveEvidence(of) {
  const { handle, left_out: missing } = await call("evidence.pack", { of });
  save(await download("archives", handle), `evidence-${of.replace(/[^\w-]/g, "_").slice(0, 60)}.zip`);
  announce(missing.length ? `The pack is saved; ${missing.length} files are not in it` : "The pack is saved");
}

async function saveRows() {
  const lines = [];
  for (let after = 0, rows = null; !rows || rows.length; after = rows.at(-1)?.sequence) {
    rows = await call("audit.export", { after });
    lines.push(...rows.map((row) => `${JSON.stringify(row)}\n`));
  }
  save(new Blob(lines, { type: "application/jsonl" }), "record.jsonl");
}
