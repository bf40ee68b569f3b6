// The service as a page asks it: operations by name, and streams of events. Paths are relative: it may lie behind a prefix.

const STORED = `casemate session ${location.pathname}`;
const SIGN_IN = "console/session";
const AGAIN = [250, 500, 1000, 2000, 5000, 10000]; // milliseconds between attempts at a service that does not answer
// Streams at once, of all tabs: a browser has six connections to a host, of which one is for what waits, and calls need some.
const TURNS = [0, 1, 2].map((number) => `casemate stream ${number}`);
const LASTING = ["invalid", "not_found"]; // kinds of errors that asking again does not help
const NOBODY = { key: "", name: "", namespace: "" };
/** Who is signed in: `name` as records have it, and the `namespace` whose sessions, runs and requests these are. */
export let user = { ...NOBODY, ...JSON.parse(localStorage.getItem(STORED) ?? "{}") };
const listeners = new Set();

/** What the service refused, or that it is gone (status 0). */
class Failure extends Error {
  constructor(status, { message = "the service does not answer", remediation = "", kind = "gone" } = {}) {
    super(message);
    Object.assign(this, { status, remediation, kind });
  }
}

/** `change(state)` whenever this is "in", "out" (nobody is signed in) or "gone" (the service does not answer). */
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
  if (answer.status === 401 && path !== SIGN_IN) forget(); // an old link ends no session that there is
  throw new Failure(answer.status, told);
}

function forget() {
  user = NOBODY;
  localStorage.removeItem(STORED);
  setState("out");
}

/** Begin a session with the code of a link. */
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

/** The answer to an operation, such as `call("runs.list", {filters: {status: ["running"]}})`. Raises Failure. */
export async function call(name, args = {}, signal = undefined) {
  const path = `v1/${name.replaceAll(".", "/")}`;
  return (await send("POST", path, { body: JSON.stringify(args), signal })).json();
}

/** Bytes of a file: `download("artifacts", run, name)` or `download("files", session, path)`. */
export async function download(...parts) {
  return (await send("GET", `v1/${parts.map((part) => part.split("/").map(encodeURIComponent).join("/")).join("/")}`)).blob();
}

/** A handle for the bytes of a file, which arguments may name. */
export async function upload(file) {
  return (await (await send("PUT", "v1/uploads", { body: file, type: "application/octet-stream" })).json()).handle;
}

/**
 * Follow what an operation tells, until the function that this returns is called, or there is no more.
 * `args()` gives the arguments at each beginning: a connection that is lost is taken up again. `onEvents` gets those that
 * came together; `onBegin` is called whenever what happens from then on will be told. Unless `always`, nothing is followed
 * while nobody sees the page: a browser has six connections to a host.
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

/** Locks of all tabs; where the page has come over plain HTTP from elsewhere, browsers have none, and each is alone. */
export const locks = navigator.locks ?? {
  held: new Map(),
  request(name, { signal }, work) {
    const own = Promise.resolve(this.held.get(name)).then(() => (signal.aborted ? undefined : work()));
    this.held.set(name, own.catch(() => {}));
    return own;
  },
};

/** Do `work` once a turn is free, unless `signal` ends the waiting. */
function inTurn(signal, work) {
  const waits = new AbortController();
  signal.addEventListener("abort", () => waits.abort());
  const take = async () => {
    if (waits.signal.aborted) return; // with another turn
    waits.abort();
    await work();
  };
  const ignore = (error) => { if (error.name !== "AbortError") throw error; };
  return Promise.all(TURNS.map((turn) => locks.request(turn, { signal: waits.signal }, take).catch(ignore)));
}

/** Server-sent events of a body, as many at once as came at once. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    const end = value.lastIndexOf("\n\n");
    // An event of megabytes comes in many pieces: they are joined once, at its end.
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
