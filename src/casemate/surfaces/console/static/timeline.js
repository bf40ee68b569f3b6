// The timeline of an execution, from the rows of the record: queue, start, approvals (they stop its clock), tool calls,
// crossings, end.
import { call } from "./api.js";
import { Failed, brief, duration, html, useAsked } from "./ui.js";

/** The phases of one run from its rows: `[name, what, from, to, class]`, times in seconds. */
function phasesOf(rows, started) {
  const [intent, outcome] = ["intent", "outcome"].map((kind) => rows.find((row) => row.kind === kind));
  if (!intent) return [];
  const told = outcome?.detail ?? {};
  const now = outcome?.time ?? Math.max(Date.now() / 1000, rows.at(-1).time);
  const stopped = now - (told.collecting ?? 0);
  const began = Math.max(intent.time, stopped - (told.duration ?? stopped - intent.time));
  const phases = [["queue", "until its turn came", Math.min(started ?? intent.time, intent.time), intent.time, "soft"]];
  if (began > intent.time) phases.push(["start", told.start ? `of a cell: ${told.start}` : "of a cell", intent.time, began, "soft"]);
  phases.push(["execution", told.status ?? "goes on", began, stopped, (told.status ?? "ok") === "ok" ? "ok" : "bad"]);
  const asked = new Set(rows.filter((row) => row.kind === "request").map((row) => row.detail.request));
  const mark = (outcome) => (["ok", "allowed"].includes(outcome) ? "ok" : "bad");
  for (const { kind, time, detail } of rows) {
    if (kind === "request") {
      const answer = rows.find((row) => row.kind === "decision" && row.detail.request === detail.request);
      const what = `${detail.summary}: ${answer?.detail.decision ?? "waits"}`;
      phases.push(["approval", what, time, answer?.time ?? now, "waits"]);
    } else if (kind === "decision" && !asked.has(detail.request)) {
      phases.push(["rule", `${detail.summary}: ${detail.decision}, ${detail.by}`, time, time, mark(detail.decision)]);
    } else if (kind === "crossing" && detail.kind === "tool") {
      const what = `${detail.server}.${detail.tool}: ${detail.outcome}`;
      phases.push(["tool", what, time - detail.seconds, time, mark(detail.outcome)]);
    } else if (kind === "crossing" && detail.host) {
      const until = detail.decision === "denied" ? time : stopped;
      phases.push(["host", `${detail.host}:${detail.port} ${detail.decision}`, time, until, mark(detail.decision)]);
    }
  }
  if (now > stopped) phases.push(["collection", "of files and the outcome", stopped, now, "soft"]);
  return phases;
}

export function Timeline({ run, isOver }) {
  const load = async () => {
    const [rows, state] = await Promise.all([call("audit.tail", { run, limit: 1000 }), call("runs.get", { run }).catch(() => null)]);
    return phasesOf(rows.reverse(), state?.started);
  };
  const [phases, error, again] = useAsked(load, [run, isOver]);
  if (!phases?.length) return html`<${Failed} error=${error} />`;
  const from = Math.min(...phases.map((phase) => phase[2]));
  const whole = Math.max(...phases.map((phase) => phase[3])) - from || 1;
  const share = (seconds) => `${Math.min(100, (seconds / whole) * 100)}%`;
  return html`<h2>Course ${isOver ? null : html`<button type="button" class="plain" onClick=${again}>Look again</button>`}</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Course"><table class="timeline">
    <thead class="hidden"><tr>${["Part", "What", "When", "Took"].map((one) => html`<th scope="col">${one}</th>`)}</tr></thead><tbody>
    ${phases.map(([name, what, since, until, mark]) => html`<tr><td>${name}</td><td>${brief(what, 90)}</td>
      <td class="track"><div class=${`bar ${mark}`} style=${{ marginLeft: share(since - from), width: share(until - since) }}></div></td>
      <td>${until > since ? duration(until - since) : `at ${duration(since - from)}`}</td></tr>`)}
  </tbody></table></div>`;
}
