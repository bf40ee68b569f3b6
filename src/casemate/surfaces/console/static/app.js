// The frame around every page: the signed-in user, the navigation, and pending requests.
import { onState, signIn, signOut, user } from "./api.js";
import { Sign, waiting, watchApprovals } from "./waiting.js";
import { PAGES } from "./pages.js";
import { Component, Failed, html, render, useAsked, useEffect, useRef, useState, useStore, visible } from "./ui.js";

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { page: PAGES.find((page) => page.name === name) ?? PAGES[0], rest };
}

/** Shows a page's error. The other pages keep working. */
class Kept extends Component {
  state = { error: null };
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }
  render({ children }, { error }) {
    return error ? html`<${Failed} error=${new Error(`this page failed: ${error.message}`)} />` : children;
  }
}

function Shown({ page, rest }) {
  const [found, error] = useAsked(async () => ({ page, Page: (await page.load()).Page }), [page]);
  const heading = useRef(null);
  useEffect(() => { heading.current?.focus(); }, [found]);
  if (found?.page !== page) return html`<${Failed} error=${error} />`;
  return html`<h1 tabindex="-1" ref=${heading}>${page.title}</h1>
    <${Kept} key=${[page.name, ...rest].join("/")}><${found.Page} rest=${rest} /></${Kept}>`;
}

function Said() {
  const [said, set] = useState("");
  useEffect(() => {
    let timer;
    const hear = ({ detail }) => {
      clearTimeout(timer);
      set(detail);
      timer = setTimeout(() => set(""), 6000);
    };
    addEventListener("casemate-said", hear);
    return () => removeEventListener("casemate-said", hear);
  }, []);
  return html`<div class=${said ? "said shown" : "said"} role="status" aria-live="polite">${said}</div>`;
}

function Outside({ failed }) {
  return html`<main class="outside"><h1>casemate</h1>
    ${failed ? html`<${Failed} error=${failed} />` : null}
    <p>To sign in, run this where the service runs, and follow the link:</p><pre>casemate console</pre></main>`;
}

function Inside({ isGone }) {
  const [at, go] = useState(route);
  const requests = useStore(waiting);
  useEffect(() => {
    const change = () => go(route());
    addEventListener("hashchange", change);
    const stop = watchApprovals();
    return () => {
      removeEventListener("hashchange", change);
      stop();
    };
  }, []);
  const skip = (event) => {
    event.preventDefault();
    document.querySelector("main h1")?.focus();
  };
  const badge = html` <span class="badge" aria-label=${`${requests.size} wait`}>${requests.size}</span>`;
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <header class="top"><strong>casemate</strong>
      <nav aria-label="Pages">${PAGES.map((page) => html`
        <a href=${`#/${page.name}`} aria-current=${page === at.page ? "page" : null}>
          ${page.title}${page.name === "approvals" && requests.size ? badge : null}</a>`)}</nav>
      <span class="right">
        ${user.namespace === "default" ? null : html`<span class="soft">namespace ${visible(user.namespace)}</span>`}
        <${Sign} /><button type="button" class="plain" onClick=${signOut}>Sign out</button>
      </span>
    </header>
    ${isGone ? html`<p class="gone" role="alert">
      The service does not answer. It is tried again; casemate console starts it.</p>` : null}
    <main id="main"><${Shown} ...${at} /></main>`;
}

function App() {
  const [state, set] = useState("");
  const [failed, fail] = useState(null);
  useEffect(() => {
    const follow = () => {
      const code = location.hash.match(/^#code=([\w-]+)$/)?.[1];
      if (!code) return;
      history.replaceState(null, "", location.pathname);
      signIn(code).then(() => fail(null), fail);
    };
    follow();
    addEventListener("hashchange", follow);
    return onState(set);
  }, []);
  const isInside = state === "in" || state === "gone";
  return html`${isInside ? html`<${Inside} isGone=${state === "gone"} />` : state && html`<${Outside} failed=${failed} />`}
    <${Said} />`;
}

addEventListener("unhandledrejection", (event) => console.error(visible(String(event.reason))));
render(html`<${App} />`, document.body);
