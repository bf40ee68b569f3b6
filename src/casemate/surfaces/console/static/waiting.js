// Signals pending requests on every page of the console: in the page, in its title and icon, and by a sound.
import { locks, stream } from "./api.js";
import { Store, announce, brief, html, useEffect, useState } from "./ui.js";

/** Pending requests by id, oldest first. */
export const waiting = new Store(new Map());
const SOUND = "casemate sound";
let audio = null;

/** Follow pending requests until the returned function is called. One tab does it for all tabs. */
export function watchApprovals() {
  const name = `casemate approvals ${location.pathname}`;
  const [over, others] = [new AbortController(), new BroadcastChannel(name)];
  let isFollowing = false;
  const tell = () => others.postMessage([...waiting.value]);
  others.onmessage = ({ data }) => (data ? learn(new Map(data)) : isFollowing && tell());
  others.postMessage(null);
  const follow = () => {
    isFollowing = true;
    const told = () => ({ told: [...waiting.value.keys()].slice(-2000) });
    const stop = stream("approvals.events", told, (events) => { take(events); tell(); }, { always: true });
    return new Promise((resolve) => over.signal.addEventListener("abort", () => resolve(stop())));
  };
  locks.request(name, { signal: over.signal }, follow).catch(() => {});
  const unwatch = waiting.watch(show);
  return () => {
    over.abort();
    others.close();
    unwatch();
    waiting.set(new Map());
  };
}

function take(events) {
  const known = new Map(waiting.value);
  for (const { event, id, request } of events) {
    if (event === "over") known.delete(id);
    else known.set(id, request);
  }
  learn(known);
}

function learn(known) {
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
