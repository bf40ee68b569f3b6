// The crossings of programs, the refusals, and the rules that would allow them.
import { call } from "../api.js";
import { Do, Failed, Table, announce, brief, html, save, time, useAsked, useState, visible } from "../ui.js";

const SINCE = [["Last hour", 3600], ["Last day", 86400], ["Last week", 7 * 86400], ["All", null]];
const MOST_SHOWN = 100; // programs; use the filters to find others
const COLUMNS = [
  ["What", (use) => html`<code>${visible(use.name)}</code>`],
  ["Kind", (use) => use.kind],
  ["Decision", (use) => html`<span class=${use.decision === "allowed" ? "ok" : "bad"}>${use.decision}</span>`],
  ["Times", (use) => use.times],
  ["By, or why", (use) => visible(use.reason)],
];

export function Page({ rest }) {
  return rest[0] ? html`<${Proposed} run=${rest[0]} />` : html`<${Programs} />`;
}

function Programs() {
  const [ago, setAgo] = useState(SINCE[1][1]);
  const [wanted, want] = useState({ decision: "", text: "" });
  const [programs, error, again] = useAsked(() => call("audit.crossings", { since: ago ? Date.now() / 1000 - ago : 0 }), [ago]);
  const fits = (use) => (!wanted.decision || use.decision === wanted.decision) && (use.name + use.kind).includes(wanted.text);
  const found = (programs ?? []).map((one) => ({ ...one, uses: one.uses.filter(fits) })).filter((one) => one.uses.length);
  return html`<form class="row" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Since <select value=${ago} onChange=${({ target }) => setAgo(target.value ? Number(target.value) : null)}>
        ${SINCE.map(([name, seconds]) => html`<option value=${seconds ?? ""}>${name}</option>`)}</select></label>
      <label>Decision <select value=${wanted.decision} onChange=${({ target }) => want({ ...wanted, decision: target.value })}>
        <option value="">All</option><option value="allowed">Allowed</option><option value="denied">Denied</option></select></label>
      <label>Containing <input type="search" value=${wanted.text} onInput=${({ target }) => want({ ...wanted, text: target.value })} /></label>
      <${Do} onClick=${again}>Look again</${Do}>
    </form>
    <${Failed} error=${error} />
    ${programs && !found.length ? html`<p class="empty">Nothing crossed the wall, and nothing was refused.</p>` : null}
    ${found.slice(0, MOST_SHOWN).map((one) => html`<${Program} key=${one.sha256} ...${one} />`)}
    ${found.length > MOST_SHOWN ? html`<p class="empty">and ${found.length - MOST_SHOWN} more programs</p>` : null}`;
}

function Program({ program, language, run, runs, time: last, uses }) {
  const name = program ? brief(program, 80) : "No program: the caller of casemate";
  return html`<section class="card"><h2><code>${name}</code></h2>
    <p>${language} · ${runs === 1 ? "one run" : `${runs} runs`} · last ${time(last)}
      ${run && program ? html` · <a href=${`#/crossings/${run}`}>Propose rules<span class="hidden"> for ${name}</span></a>` : null}</p>
    <${Table} columns=${COLUMNS} rows=${uses} label=${`What ${name} used`} />
  </section>`;
}

function Proposed({ run }) {
  const [proposal, error] = useAsked(() => call("audit.propose", { run }), [run]);
  const copy = async () => {
    await navigator.clipboard.writeText(proposal.yaml);
    announce("The rules are in the clipboard");
  };
  return html`<p><a href="#/crossings">All programs</a></p><h2>Rules for <code>${brief(run, 40)}</code></h2>
    <${Failed} error=${error} />
    ${proposal && html`<p>${proposal.rules ? `${proposal.rules} ${proposal.rules === 1 ? "rule allows" : "rules allow"} exactly what this run was allowed.` : "This run was allowed nothing that a rule could say."}
      ${proposal.refused ? ` ${proposal.refused} more, for what it was refused, are comments: take the # away from what you want to allow.` : ""}
      Add what you want to your policy file, and start the service again.</p>
      <pre tabindex="0" role="region" aria-label="The rules as YAML">${visible(proposal.yaml)}</pre>
      <${Do} onClick=${copy}>Copy</${Do}> <${Do} onClick=${() => save(new Blob([proposal.yaml], { type: "text/plain" }), "policy-proposed.yaml")}>Save</${Do}>`}`;
}
