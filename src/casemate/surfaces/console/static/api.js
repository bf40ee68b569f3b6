// A page's access to the service: operations by name, and event streams. Paths are relative, as the service may have a prefix.

const STORED = `casemate session ${location.pathname}`;
const SIGN_IN = "console/session";
const AGAIN = [250, 500, 1000, 2000, 5000, 10000]; // milliseconds between attempts to reach a service that does not answer
// Concurrent streams of all tabs. A browser has six connections per host; one is for pending requests, and calls need some.
const TURNS = [0, 1, 2].map((number) => `casemate stream ${number}`);
const LASTING = ["invalid", "not_found"]; // kinds of errors for which a retry is pointless
const NOBODY = { key: "", name: "", namespace: "" };
/** The signed-in user: `name` as in the record, and the `namespace` of the user's sessions, runs and requests. */
export let user = { ...NOBODY, ...JSON.parse(localStorage.getItem(STORED) ?? "{}") };
const listeners = new Set();

/** The service refused a request, or does not answer (status 0). */
class Failure extends Error {
  constructor(status, { message = "the service does not answer", remediation = "", kind = "gone" } = {}) {
    super(message);
    Object.assign(this, { status, remediation, kind });
  }
}

/** Calls `change(state)` now and at each change: "in", "out" (signed out) or "gone" (the service does not answer). */
export function onState(change) {
  listeners.add(change);
  change(state);
  return () => listeners.delete(change);
}

let state = user.key ? "in" : "out";
function setState(next) {
  if (next === state) return;
  state = next;
  for (const change of [...listeners]) change(state);
}

async function send(method, path, { body, type = "application/json", signal, headers = {} } = {}) {
  let answer;
  const sent = { "casemate-console": user.key || "none", ...(body === undefined ? {} : { "content-type": type }), ...headers };
  try {
    answer = await fetch(`../${path}`, { method, body, signal, headers: sent, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    setState("gone");
    throw new Failure(0);
  }
  if (answer.ok) {
    if (user.key) setState("in");
    return answer;
  }
  const told = (await answer.json().catch(() => ({}))).error ?? {};
  if (answer.status === 401 && path !== SIGN_IN) forget(); // a failed sign-in by an old link leaves the current session alone
  throw new Failure(answer.status, told);
}

function forget() {
  user = NOBODY;
  localStorage.removeItem(STORED);
  setState("out");
}

/** Sign in with the code of a link. */
export async function signIn(code) {
  const answer = await send("POST", SIGN_IN, { body: JSON.stringify({ code }) });
  user = await answer.json();
  localStorage.setItem(STORED, JSON.stringify(user));
  setState("in");
}

export async function signOut() {
  await send("DELETE", SIGN_IN).catch(() => {});
  forget();
}

/** Call an operation, such as `call("runs.list", {filters: {status: ["running"]}})`. Throws Failure. */
export async function call(name, args = {}, signal = undefined) {
  const path = `v1/${name.replaceAll(".", "/")}`;
  return (await send("POST", path, { body: JSON.stringify(args), signal })).json();
}

/** The bytes of a file: `download("artifacts", run, name)` or `download("files", session, path)`. */
export async function download(...parts) {
  return (await send("GET", `v1/${parts.map((part) => part.split("/").map(encodeURIComponent).join("/")).join("/")}`)).blob();
}

/** Upload a file. Returns a handle for arguments of operations. */
export async function upload(file) {
  return (await (await send("PUT", "v1/uploads", { body: file, type: "application/octet-stream" })).json()).handle;
}

/**
 * Follow the events of an operation until they end or the returned function is called. A lost connection is made again.
 * `args()` returns the arguments for each connection. `onEvents` gets the events that arrived together. `onBegin` is
 * called for each new connection, before its events. Unless `always`, the stream pauses while the page is hidden: a
 * browser has six connections per host.
 */
export function stream(name, args, onEvents, { always = false, onBegin = () => {}, onEnd = () => {} } = {}) {
  let ending = new AbortController();
  let isOver = false;
  let failures = 0;
  const isWanted = () => !isOver && (always || !document.hidden);

  async function run(own) {
    if (always) return follow(own);
    await inTurn(own.signal, () => follow(own));
  }
  async function follow(own) {
    while (isWanted() && !own.signal.aborted) {
      try {
        const body = JSON.stringify(args());
        const headers = { accept: "text/event-stream" };
        const answer = await send("POST", `v1/${name.replaceAll(".", "/")}`, { body, signal: own.signal, headers });
        onBegin();
        for await (const events of eventsOf(answer.body)) {
          failures = 0;
          const end = events.findIndex((event) => event.name !== "event");
          const told = (end < 0 ? events : events.slice(0, end)).map((event) => event.data);
          if (told.length && !own.signal.aborted) onEvents(told);
          if (end >= 0 && events[end].name === "end") return finish(null);
          if (end >= 0) throw new Failure(LASTING.includes(events[end].data.kind) ? 400 : 0, events[end].data);
        }
      } catch (error) {
        if (own.signal.aborted) return;
        if (error instanceof Failure && error.status >= 400 && error.status < 500 && error.status !== 429) return finish(error);
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN[Math.min(failures++, AGAIN.length - 1)]));
    }
  }
  function finish(error) {
    stop();
    onEnd(error);
  }
  function begin() {
    ending.abort();
    ending = new AbortController();
    if (isWanted()) run(ending);
  }
  function stop() {
    isOver = true;
    ending.abort();
    document.removeEventListener("visibilitychange", begin);
  }
  if (!always) document.addEventListener("visibilitychange", begin);
  begin();
  return stop;
}

/** Locks between tabs. Browsers have none for a page from another host over plain HTTP; then each tab is alone. */
export const locks = navigator.locks ?? {
  held: new Map(),
  request(name, { signal }, work) {
    const own = Promise.resolve(this.held.get(name)).then(() => (signal.aborted ? undefined : work()));
    this.held.set(name, own.catch(() => {}));
    return own;
  },
};

/** Do `work` once a stream slot is free, unless `signal` aborts the wait. */
function inTurn(signal, work) {
  const waits = new AbortController();
  signal.addEventListener("abort", () => waits.abort());
  const take = async () => {
    if (waits.signal.aborted) return; // another slot was free first
    waits.abort();
    await work();
  };
  const ignore = (error) => { if (error.name !== "AbortError") throw error; };
  return Promise.all(TURNS.map((turn) => locks.request(turn, { signal: waits.signal }, take).catch(ignore)));
}

/** Yields the server-sent events of a body, in lists that arrived together. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    const end = value.lastIndexOf("\n\n");
    // A large event comes in many pieces. They are joined once, at its end.
    if (end < 0 && !(value.startsWith("\n") && parts.at(-1)?.endsWith("\n"))) {
      parts.push(value);
      continue;
    }
    const text = parts.join("") + value;
    const cut = text.lastIndexOf("\n\n") + 2;
    parts = [text.slice(cut)];
    const events = text.slice(0, cut).split("\n\n").map(eventOf).filter(Boolean);
    if (events.length) yield events;
  }
}

function eventOf(text) {
  const fields = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  return fields.data === undefined ? null : { name: fields.event, data: JSON.parse(fields.data) };
}
