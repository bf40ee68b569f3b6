// What waits for an answer, wherever one is in the console: on the page, in the title, as a sound.
import { call, locks, onState, stream } from "./api.js";
import { Store, announce, brief, html, useEffect, useState } from "./ui.js";

/** Pending requests by id, oldest first. */
export const waiting = new Store(new Map());
/** Whether the service has told what waits, and still answers. */
export const isKnown = new Store(false);
const SEEN_FOR = 60_000; // milliseconds
let seen = { until: 0 }; // what was asked or used before
const SOUND = "casemate sound";
let audio = null;

/** Follow pending requests until the returned function is called. One tab does it for all tabs. */
export function watchApprovals() {
  const name = `casemate approvals ${location.pathname}`;
  const [over, others] = [new AbortController(), new BroadcastChannel(name)];
  let isFollowing = false;
  const tell = () => others.postMessage([isKnown.value, [...waiting.value]]);
  others.onmessage = ({ data }) => (data ? learn(new Map(data[1]), data[0]) : isFollowing && tell());
  others.postMessage(null);
  const forget = onState((state) => {
    if (state !== "gone") return;
    isKnown.set(false);
    if (isFollowing) tell();
  });
  const follow = () => {
    isFollowing = true;
    const told = () => ({ told: [...waiting.value.keys()].slice(-2000) });
    const onBegin = () => { isKnown.set(true); tell(); };
    const stop = stream("approvals.events", told, (events) => { take(events); tell(); }, { always: true, onBegin });
    return new Promise((resolve) => over.signal.addEventListener("abort", () => resolve(stop())));
  };
  locks.request(name, { signal: over.signal }, follow).catch(() => {});
  const unwatch = waiting.watch(show);
  return () => {
    over.abort();
    others.close();
    unwatch();
    forget();
    waiting.set(new Map());
    isKnown.set(false);
  };
}

function take(events) {
  const known = new Map(waiting.value);
  for (const { event, id, request } of events) {
    if (event === "over") known.delete(id);
    else known.set(id, request);
  }
  learn(known, true);
}

/** Whether the newest rows of the record have this host, command or tool; undefined for other requests. */
export async function wasSeen({ kind, summary, server, tool, arguments: { host, command, argv } }) {
  const [name, whole] = kind === "egress" ? [host] : kind === "tool" ? [`${server}.${tool}`] : [summary, command ?? argv?.join(" ")];
  if (!name || (whole === undefined && name === summary)) return undefined;
  if (whole?.length > 200) return false; // the record's summary has only its beginning
  if (seen.until < Date.now()) seen = { until: Date.now() + SEEN_FOR, names: past() };
  return (await seen.names).has(`${kind} ${JSON.stringify(name).slice(1, -1)}`);
}

async function past() {
  const uses = (await call("audit.crossings", { since: 0 })).flatMap((program) => program.uses);
  return new Set(uses.map(({ kind, name }) => `${kind} ${kind === "egress" ? name.replace(/:\d+$/, "") : name}`));
}

function learn(known, isTold) {
  if ([...waiting.value.keys()].some((id) => !known.has(id))) seen.until = 0;
  isKnown.set(isTold);
  const asked = [...known.values()].filter((request) => !waiting.value.has(request.id));
  waiting.set(known);
  if (!asked.length) return;
  announce(asked.length > 1 ? `${asked.length} requests wait for your answer` : `Waits for your answer: ${brief(asked[0].summary)}`);
  play();
}

function show(requests) {
  const count = requests.size;
  document.title = count ? `(${count}) casemate` : "casemate";
  document.querySelector("link[rel=icon]").href = count ? "icon-waits.svg" : "icon.svg";
}

function play() {
  if (audio?.state !== "running") return;
  const now = audio.currentTime;
  for (const [after, tone] of [[0, 660], [0.16, 880]]) {
    const [note, volume] = [audio.createOscillator(), audio.createGain()];
    note.frequency.value = tone;
    volume.gain.setValueAtTime(0.15, now + after);
    volume.gain.exponentialRampToValueAtTime(0.001, now + after + 0.15);
    note.connect(volume).connect(audio.destination);
    note.start(now + after);
    note.stop(now + after + 0.15);
  }
}

/** Switches the sound on or off. A browser allows sound only after the user has used the page. */
export function Sign() {
  const [isOn, set] = useState(localStorage.getItem(SOUND) === "on");
  useEffect(() => {
    if (!isOn) return;
    const begin = () => { (audio ??= new AudioContext()).resume(); };
    begin();
    addEventListener("pointerdown", begin, { once: true });
    addEventListener("keydown", begin, { once: true });
  }, [isOn]);
  const change = () => {
    localStorage.setItem(SOUND, isOn ? "off" : "on");
    if (isOn) audio?.suspend();
    set(!isOn);
  };
  return html`<button type="button" class="plain" aria-pressed=${isOn} onClick=${change}>Sound: ${isOn ? "on" : "off"}</button>`;
}
