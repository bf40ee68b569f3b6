// One run or step, running or ended: its output and results, its outcome, and its timeline.
import { call, stream } from "./api.js";
import { Files } from "./files.js";
import { Live, Lines } from "./live.js";
import { Result, Text } from "./results.js";
import { Card } from "./request.js";
import { Timeline } from "./timeline.js";
import { waiting } from "./waiting.js";
import { Do, Failed, duration, html, size, useEffect, useRef, useState, useStore, visible } from "./ui.js";

const MOST_BLOCKS = 200;

/** A run's events so far, as blocks of text lines and of results. Follows the run until it ends. */
function useEvents(run) {
  const [shown, show] = useState({ blocks: [], done: null, failed: null });
  useEffect(() => {
    let [cursor, blocks, done] = [0, [], null];
    const take = (events) => {
      let isNew = false;
      for (const event of events) {
        cursor = event.cursor;
        if (event.event === "done") [done, isNew] = [event, true];
        else isNew = add(blocks, event) || isNew;
      }
      if (!isNew) return;
      blocks = blocks.slice(-MOST_BLOCKS);
      show({ blocks, done, failed: null });
    };
    show({ blocks, done, failed: null });
    const onEnd = (failed) => failed && show({ blocks, done, failed });
    return stream("runs.stream", () => ({ run, cursor }), take, { onEnd });
  }, [run]);
  return shown;
}

/** Add an event. True if a block was added or replaced; more text goes straight to a block's lines. */
function add(blocks, event) {
  const last = blocks.at(-1);
  const id = `${event.cursor}`;
  if (event.event === "output") {
    const isMore = last?.lines;
    if (!isMore) blocks.push({ id, lines: new Lines() });
    blocks.at(-1).lines.push(event.stream, event.text);
    return !isMore;
  }
  if (event.event === "display" && event.update) {
    const at = blocks.findLastIndex((block) => block.display === event.display_id);
    if (at >= 0) blocks[at] = { ...blocks[at], bundle: event.result };
    return at >= 0;
  }
  if (event.event === "display" || event.event === "result") blocks.push({ id, bundle: event.result, display: event.display_id });
  else if (event.event === "error") blocks.push({ id, error: event.error });
  else return false;
  return true;
}

function Block({ block }) {
  if (block.lines) return html`<${Live} lines=${block.lines} />`;
  if (block.bundle) return html`<${Result} bundle=${block.bundle} />`;
  return html`<div class="failed"><${Text} text=${block.error.traceback || `${block.error.name}: ${block.error.value}`} /></div>`;
}

export const endingClass = (state) => (state === "ok" ? "ok" : ["queued", "running", "waiting"].includes(state) ? "waits" : "bad");

function Outcome({ execution, error }) {
  if (!execution) return error && html`<${Failed} error=${error} />`;
  const { status, cause, usage, exit_code: code, duration: seconds, isolation } = execution;
  const used = `${duration(usage.cpu_seconds)} of processor · ${size(usage.peak_memory ?? 0)} at most`;
  return html`<p><strong class=${endingClass(status)}>${status}</strong>${code ? `, exit code ${code}` : ""} after ${duration(seconds)}
      <span class="soft"> · ${used} · wall ${isolation?.wall ?? ""}</span></p>
    ${cause ? html`<${Failed} error=${cause} />` : null}`;
}

/** Calls `onOver` with the outcome when the run ends. Pending requests stand above the output, so they do not move. */
export function Execution({ run, code = null, onOver = () => {}, isWhole = false }) {
  const { blocks, done, failed } = useEvents(run);
  const asked = [...useStore(waiting).values()].filter((request) => request.run === run);
  const isOver = useRef(false);
  useEffect(() => {
    if (done && !isOver.current) onOver(done);
    isOver.current = Boolean(done);
  }, [done]);
  return html`<section class="execution" aria-busy=${!done}>
    ${code !== null ? html`<pre class="code" tabindex="0">${visible(code)}</pre>` : null}
    ${asked.map((request, at) => html`<${Card} key=${request.id} request=${request} place=${at} />`)}
    ${blocks.map((block) => html`<${Block} key=${block.id} block=${block} />`)}
    <${Failed} error=${failed} />
    ${done ? html`<${Outcome} ...${done} />` : failed ? null : html`<p class="waits">
      ${asked.length ? "waits for your answer " : "goes on "}
      <${Do} onClick=${() => call("runs.cancel", { run })}>Interrupt</${Do}></p>`}
    ${done?.execution?.artifacts.length && isWhole ? html`<h2>Files</h2><${Files} run=${run} key=${run} />` : null}
    ${isWhole ? html`<${Timeline} run=${run} isOver=${Boolean(done)} />` : null}
  </section>`;
}
