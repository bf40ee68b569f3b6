// Names of runs and sessions: what their owners call them, else their first line of code, from the copy in the record.
import { call } from "./api.js";
import { brief, visible } from "./ui.js";

const MOST_ROWS = 1000; // of one answer
const MOST_LABELS = 5000;
const labels = new Map(); // of runs

/** The first line of a program that says something. */
export const firstLine = (code) => brief(code.split("\n").find((line) => line.trim())?.trim() ?? "", 80);

function textOf({ code, program }) {
  return typeof code === "string" ? code : String(code?.begins ?? program ?? ""); // the record cuts what is too long
}

/** The code of a run, as the record has it; "" if there is none. */
export async function codeOf(run) {
  const [row] = await call("audit.tail", { run, kind: "intent", limit: 1 });
  return row ? textOf(row.detail) : "";
}

/** The labels of these runs, by run; a run that has not begun has none. */
export async function labelsOf(runs) {
  const unknown = runs.filter(({ run }) => !labels.has(run)).map(({ started }) => started);
  if (unknown.length) {
    const rows = await call("audit.tail", { kind: "intent", since: Math.min(...unknown), limit: MOST_ROWS });
    for (const { run, detail } of rows) labels.set(run, firstLine(textOf(detail)));
    for (const run of [...labels.keys()].slice(0, -MOST_LABELS)) labels.delete(run);
  }
  return labels;
}

/** A session's name or label, by its id. */
export async function nameOf(session) {
  const filters = { session: [session] };
  const [open] = await call("sessions.list", { filters });
  if (open?.name) return visible(open.name);
  const [first] = await call("runs.list", { filters });
  return first ? firstLine(await codeOf(first.run)) : "";
}
