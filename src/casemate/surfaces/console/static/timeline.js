// The course of an execution, as the rows of the record tell it: queue, start, approvals (its clock stands), calls of
// tools, crossings, end.
import { call } from "./api.js";
import { Failed, brief, duration, html, useAsked } from "./ui.js";

/** Phases of the rows of one run: `[name, what, from, to, class]`, times in seconds. */
export function phasesOf(rows, started) {
  const [intent, outcome] = ["intent", "outcome"].map((kind) => rows.find((row) => row.kind === kind));
  if (!intent) return [];
  const told = outcome?.detail ?? {};
  const now = outcome?.time ?? Math.max(Date.now() / 1000, rows.at(-1).time);
  const stopped = now - (told.collecting ?? 0);
  const began = Math.max(intent.time, stopped - (told.duration ?? stopped - intent.time));
  const phases = [["queue", "until its turn came", Math.min(started ?? intent.time, intent.time), intent.time, "soft"]];
  if (began > intent.time) phases.push(["start", told.start ? `of a cell: ${told.start}` : "of a cell", intent.time, began, "soft"]);
  phases.push(["execution", told.status ?? "goes on", began, stopped, told.status && told.status !== "ok" ? "bad" : "ok"]);
  for (const { kind, time, detail } of rows) {
    if (kind === "request") {
      const answer = rows.find((row) => row.kind === "decision" && row.detail.request === detail.request);
      phases.push(["approval", `${detail.summary}: ${answer?.detail.decision ?? "waits"}`, time, answer?.time ?? now, "waits"]);
    } else if (kind === "decision" && !rows.some((row) => row.kind === "request" && row.detail.request === detail.request)) {
      phases.push(["rule", `${detail.summary}: ${detail.decision}, ${detail.by}`, time, time, detail.decision === "allowed" ? "ok" : "bad"]);
    } else if (kind === "crossing" && detail.kind === "tool") {
      phases.push(["tool", `${detail.server}.${detail.tool}: ${detail.outcome}`, time - detail.seconds, time, detail.outcome === "ok" ? "ok" : "bad"]);
    } else if (kind === "crossing" && detail.host) {
      phases.push(["host", `${detail.host}:${detail.port} ${detail.decision}`, time, detail.decision === "denied" ? time : stopped, detail.decision === "denied" ? "bad" : "ok"]);
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
    <div class="scroll" tabindex="0" role="region" aria-label="Course"><table class="timeline"><thead class="hidden"><tr><th scope="col">Part</th><th scope="col">What</th><th scope="col">When</th><th scope="col">Took</th></tr></thead><tbody>
    ${phases.map(([name, what, since, until, mark]) => html`<tr><td>${name}</td><td>${brief(what, 90)}</td>
      <td class="track"><div class=${`bar ${mark}`} style=${{ marginLeft: share(since - from), width: share(until - since) }}></div></td>
      <td>${until > since ? duration(until - since) : `at ${duration(since - from)}`}</td></tr>`)}
  </tbody></table></div>`;
}
