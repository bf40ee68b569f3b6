// One session: its steps and their results, a prompt for the next step, its variables and files.
import { call } from "../api.js";
import { Execution } from "../execution.js";
import { Files } from "../files.js";
import { codeOf, nameOf } from "../names.js";
import { Previews } from "../previews.js";
import { Diff, decide, useHeld } from "../request.js";
import { Dialog, Do, Failed, Json, Table, brief, html, useAsked, useRef, useState, visible } from "../ui.js";
import { waiting } from "../waiting.js";
import { Doing, useNews } from "./runs.js";

const MOST_STEPS = 20; // the latest steps; the page of runs lists the others

function Step({ run, known, onOver }) {
  const [code] = useAsked(() => (known === undefined ? codeOf(run) : Promise.resolve(known)), [run]);
  return html`<article class="card" aria-label="Step"><${Execution} run=${run} code=${code ?? known ?? null} onOver=${onOver} />
    <a class="soft" href=${`#/runs/${run}`}>its course and files</a></article>`;
}

function Variables({ session, version }) {
  const [rows, error] = useAsked(() => call("sessions.variables", { session }), [session, version]);
  const [looked, look] = useState(null);
  const columns = [
    ["Name", ({ name }) => html`<button type="button" class="plain" onClick=${() => look(name)}>${brief(name, 40)}</button>`],
    ["Type", (one) => brief(one.type, 30)],
    ["Value", (one) => html`<code>${brief(one.repr, 60)}</code>`],
  ];
  return html`<h2>Variables</h2><${Failed} error=${error} />
    <${Table} label="Variables" columns=${columns} rows=${rows} keyOf=${(one) => one.name} empty="None yet." />
    ${looked ? html`<${Value} session=${session} name=${looked} onClose=${() => look(null)} />` : null}`;
}

function Value({ session, name, onClose }) {
  const [value, error] = useAsked(() => call("sessions.get", { session, name }), [name]);
  return html`<${Dialog} title=${brief(name)} onClose=${onClose}><${Failed} error=${error} />
    ${value === undefined ? null : html`<${Json} value=${value} open=${true} />`}</${Dialog}>`;
}

function Prompt({ session, onStart }) {
  const [code, set] = useState("");
  const field = useRef(null);
  const start = async () => {
    const run = await call("runs.start", { code, session });
    onStart(run.run, code);
    set("");
    field.current?.focus();
  };
  const [failed, fail] = useState(null);
  const press = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !code.trim()) return;
    event.preventDefault();
    start().then(() => fail(null), fail);
  };
  return html`<div class="card"><label class="tall">Next step <small>(Ctrl+Enter runs it)</small>
      <textarea class="prompt" ref=${field} value=${code} spellcheck=${false} onKeyDown=${press}
        onInput=${(event) => set(event.target.value)}></textarea></label>
    <${Do} class="main" disabled=${!code.trim()} onClick=${start}>Run</${Do}><${Failed} error=${failed} /></div>`;
}

/** What else a change is, as `shown_change` of casemate/model/review.py has it: its diff shows no mode and no link. */
function factsOf({ source, mode_before, mode_after, size_before, size_after, link_before, link_after, ...one }) {
  const octal = (mode) => mode?.toString(8);
  const told = (what, before, after, unit = "") => {
    const known = [...new Set([before, after])].filter((value) => value != null);
    return known.length ? `${what}${known.join(" to ")}${unit}` : "";
  };
  return [
    source && `was ${source}`, told("mode ", octal(mode_before), octal(mode_after)), told("", size_before, size_after, " bytes"),
    told("link to ", link_before, link_after), one.is_binary && "binary", one.left_out && `lines not shown: ${one.left_out}`,
    one.refused && `refused: ${one.refused}`, one.conflict && `conflict: ${one.conflict}`,
  ].filter(Boolean).map(visible).join("; ");
}

/** Changes that are not applied, where the service keeps them for review. Applying allows exactly what is shown. */
function Review({ session, isBusy }) {
  const [found, error, again] = useAsked(() => (isBusy ? Promise.resolve() : call("sessions.diff", { session })), [session]);
  const [outcome, tell] = useState("");
  const isHeld = useHeld(found?.hash);
  if (error && error.kind !== "invalid") return html`<${Failed} error=${error} />`;
  if (error || !found?.changes.length) return outcome && html`<p role="status">${outcome}</p>`;
  const apply = async () => {
    const isThis = ({ kind, session: of, arguments: given }) => kind === "files" && of === session && given.sha256 === found.hash;
    const stop = waiting.watch((requests) => {
      const own = [...requests.values()].find(isThis);
      if (own) decide(own, true);
    });
    const { status, reason } = await call("sessions.apply", { session }).finally(stop);
    tell(status === "applied" ? "The changes are applied." : visible(reason));
    again();
  };
  const discard = () => call("sessions.discard", { session }).then(again);
  return html`<section class="card"><h2>Changes that are not applied</h2>
    <ul>${found.changes.map((one) => html`<li>${one.kind} <code>${visible(one.path)}</code> <small>${factsOf(one)}</small></li>`)}</ul>
    ${found.changes.filter((one) => one.diff).map((one) => html`<${Diff} text=${`=== ${one.path}\n${one.diff}`} />`)}
    ${outcome && html`<p role="status">${outcome}</p>`}
    <div class="row"><${Do} class="allow" disabled=${isHeld} onClick=${apply}>Apply</${Do}><${Do} class="deny" disabled=${isHeld} onClick=${discard}>Discard</${Do}></div></section>`;
}

export function Session({ session }) {
  const load = async () => {
    const [sessions, runs] = await Promise.all([call("sessions.list"), call("runs.list", { filters: { session: [session] } })]);
    const open = sessions.find((one) => one.session === session || one.name === session);
    // Looking at variables, files and changes makes a session busy, too: only a run counts.
    const state = open && { ...open, is_busy: open.is_busy && runs.some((run) => run.status !== "done") };
    return { state, runs, name: await nameOf(state?.session ?? session).catch(() => "") };
  };
  const [found, error, again] = useAsked(load, [session]);
  const [started, start] = useState(new Map());
  const [version, next] = useState(0);
  useNews(again);
  const state = found?.state;
  const runs = [...new Set([...(found?.runs.map((run) => run.run) ?? []), ...started.keys()])].slice(-MOST_STEPS);
  const over = () => {
    next((known) => known + 1);
    again();
  };
  return html`<p><a href="#/runs">All sessions</a> · session <code>${found?.name || brief(session, 40)}</code>
      ${state ? html` · ${state.language} · <${Doing} state=${state} />` : null}
      ${found && !state ? html` · <span class="bad">closed</span>` : null}</p>
    <${Failed} error=${error} />
    <div class="columns"><div>
      ${runs.map((run) => html`<${Step} key=${run} run=${run} known=${started.get(run)} onOver=${over} />`)}
      ${state ? html`<${Prompt} session=${session} onStart=${(run, code) => start((known) => new Map(known).set(run, code))} />` : null}
      ${state ? html`<${Previews} session=${session} />` : null}
    </div><aside>
      ${state ? html`<div class="row"><${Do} disabled=${!state.is_busy} onClick=${() => call("sessions.interrupt", { session })}>Interrupt</${Do}>
        <${Do} onClick=${() => call("sessions.reset", { session }).then(over)}>Reset</${Do}>
        <${Do} class="deny" onClick=${() => call("sessions.close", { session }).then(again)}>Close</${Do}></div>
      <${Variables} session=${session} version=${version} />
      <${Review} key=${`${state.is_busy} ${version}`} session=${state.session} isBusy=${state.is_busy} />
      <h2>Files</h2><${Files} key=${version} session=${session} />` : null}
    </aside></div>`;
}
