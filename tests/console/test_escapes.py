"""What programs write does nothing on the console's pages: no script, no request, no dialog, no other text.

The browser is the judge. That it would notice is shown with every one of the same texts on a page without defences.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from tests.console.browser import Chromium, Page
from tests.console.conftest import call, link_of
from tests.console.judge import ACTIVE, HIDDEN, Judge, Witness, bundles, drawing, markup, witness
from tests.console.seeds import refuse, seeded_service
from tests.service.daemon import Daemon
from tests.support.waiting import MAX_WAIT, until

pytestmark = [pytest.mark.needs("browser"), pytest.mark.needs("playwright")]

# What a hostile program does: it gives its texts wherever something of it can be seen.
PROGRAM = """
import os, socket, sys
from IPython.display import display
text, active, bundles = GIVEN
print(text); print(active); print(text, file=sys.stderr)
for bundle in bundles:
    display(bundle, raw=True)
for name in ('<img src=x onerror=alert(1)>.txt', '\\u202egpj.exe', '&lt;b&gt;.html', 'a b.svg', 'page.html'):
    open(name, 'w').write(text)
open('picture.png', 'w').write(text)
os.makedirs('<b onclick=alert(1)>', exist_ok=True)
globals()['<img src=x onerror=alert(1)>'] = {text: text}
globals()['shown'] = type('<script>alert(1)<script>', (), {'__repr__': lambda self: text + active})()
for host in ('bad.test', 'xn--80ak6aa92e.test'):
    try:
        socket.create_connection((host, 443), 20).recv(1)
    except OSError:
        pass
raise type('<img src=x onerror=alert(1)>', (Exception,), {})(text + active)
"""


@dataclass
class Seeded:
    session: str
    run: str
    waiting: str
    text: str


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with seeded_service() as one:
        yield one


@pytest.fixture(scope="module")
def seen() -> Iterator[Witness]:
    with witness() as one:
        yield one


@pytest.fixture(scope="module")
def seeded(daemon: Daemon, seen: Witness) -> Seeded:
    """A service in which a hostile program has run, and another waits for an answer."""
    text = "\n".join(markup(seen.origin).values())
    given = json.dumps([text, ACTIVE, bundles(seen.origin)])
    code = PROGRAM.replace("GIVEN", f"__import__('json').loads({given!r})")
    session = call(daemon, "sessions.open", name="<img src=x onerror=alert(1)>")["session"]
    run = call(daemon, "runs.start", code=code, session=session)["run"]
    refuse(daemon, run)
    assert call(daemon, "runs.wait", run=run)["execution"]["error"]["name"] == "<img src=x onerror=alert(1)>"
    asks = call(daemon, "sessions.open")["session"]
    command = f"echo {json.dumps(text + ACTIVE)} #"
    waiting = call(daemon, "runs.start", code=f"get_ipython().getoutput({command!r})", session=asks)["run"]
    until(lambda: call(daemon, "approvals.pending"))
    return Seeded(session, run, waiting, text)


@pytest.fixture
def page(real_browser: Chromium, daemon: Daemon, seen: Witness) -> Iterator[Page]:
    context = real_browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(MAX_WAIT * 1000)
    one = context.new_page()
    one.goto(link_of(daemon))
    one.wait_for_selector("main h1")
    seen.asked.clear()
    yield one
    context.close()


def go(page: Page, *rest: str) -> None:
    """Go to a page of the console, by its address."""
    page.evaluate("parts => { location.hash = '#/' + parts.map(encodeURIComponent).join('/') }", [*rest])


@pytest.mark.full
@pytest.mark.parametrize("name", [*markup("x"), "drawing alone"])
def test_the_judge_notices_each_text_where_nothing_stops_it(real_browser: Chromium, seen: Witness, name: str) -> None:
    text, kind = markup(seen.origin).get(name), "text/html"
    if text is None:
        text, kind = drawing(seen.origin), "image/svg+xml"
    seen.asked.clear()
    seen.pages["/console/bare"] = (kind, text)
    context = real_browser.new_context()
    one = context.new_page()
    judge = Judge(one, seen.origin, seen)
    one.goto(f"{seen.origin}/console/bare", wait_until="commit" if name == "refresh" else "load")
    until(judge.findings)
    context.close()


@pytest.mark.full
def test_a_session_shows_what_a_hostile_program_gave_and_nothing_happens(
    page: Page, daemon: Daemon, seeded: Seeded, seen: Witness
) -> None:
    judge = Judge(page, page.url.partition("/console/")[0], seen)
    go(page, "runs", "session", seeded.session)
    page.locator(".execution[aria-busy=false]").wait_for()
    shown = page.locator(".result")
    results = call(daemon, "runs.wait", run=seeded.run)["execution"]["results"]
    assert shown.count() == len(results) > 10
    for frame in page.locator("iframe.given").all():
        assert frame.get_attribute("sandbox") == "allow-scripts"
        until(partial(frame.evaluate, "frame => frame.style.height"))  # its page has it, and said how high
    text = page.locator(".execution").inner_text()
    assert "<script>top.hacked" in text
    assert "alert(1)" in text
    assert not set(HIDDEN) & set(text)
    assert judge.findings() == []
    page.get_by_role("button", name="<img src=x onerror=alert(1)>", exact=True).first.click()
    page.get_by_role("dialog").locator(".json, .failed").first.wait_for()
    assert judge.findings() == []
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    for name in ("<img src=x onerror=alert(1)>.txt", "page.html", "picture.png", "a b.svg"):
        page.get_by_role("button", name=name, exact=True).click()
        page.get_by_role("dialog").locator("pre, .empty").first.wait_for()
        assert judge.findings() == []
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("button", name="<b onclick=alert(1)>/", exact=True).click()
    page.get_by_text("No files.").wait_for()
    assert judge.findings() == []


@pytest.mark.full
def test_every_other_page_shows_it_and_nothing_happens(
    page: Page, daemon: Daemon, seeded: Seeded, seen: Witness
) -> None:
    judge = Judge(page, page.url.partition("/console/")[0], seen)
    page.get_by_text("Details", exact=True).click()
    page.get_by_role("article").get_by_role("button", name="Show the rule").click()
    page.locator(".rule, .request .empty").wait_for()
    assert judge.findings() == []
    for rest in (("runs",), ("runs", seeded.run), ("runs", seeded.waiting)):
        go(page, *rest)
        page.get_by_role("table").first.wait_for()
        assert judge.findings() == []
    go(page, "crossings")
    page.get_by_text("bad.test").first.wait_for()
    assert judge.findings() == []
    go(page, "crossings", seeded.run)
    page.get_by_role("region", name="The rules as YAML").wait_for()
    assert judge.findings() == []
    go(page, "record")
    page.get_by_role("region", name="Rows of the record").wait_for()
    for row in page.locator("table.record summary").all()[:30]:
        row.click()
    assert not set(HIDDEN) & set(page.locator("main").inner_text())
    assert judge.findings() == []
    go(page, "health")
    page.get_by_role("heading", name="Now").wait_for()
    assert judge.findings() == []


@pytest.mark.full
@pytest.mark.parametrize("place", ["runs", "crossings", "record"])
def test_an_address_that_holds_markup_is_told_as_text(
    page: Page, daemon: Daemon, seeded: Seeded, seen: Witness, place: str
) -> None:
    judge = Judge(page, page.url.partition("/console/")[0], seen)
    go(page, place, seeded.text[:1500])
    page.locator(".failed, .empty").first.wait_for()
    assert judge.findings() == []


# What code of a stranger's would try; the answer says what it could do.
TRIES = """async (origin) => {
  const loaded = (one, src) => new Promise((yes, no) => Object.assign(one, {onload: yes, onerror: no, src}));
  const tries = {
    api: () => fetch(new URL('../v1/runs/list', document.baseURI), {method: 'POST', body: '{}'}),
    network: () => fetch(origin + '/fetched', {mode: 'no-cors'}),
    beacon: () => { if (!navigator.sendBeacon(origin + '/beacon', 'x')) throw 0; },
    picture: () => loaded(new Image(), origin + '/picture'),
    socket: () => new Promise((yes, no) => {
      Object.assign(new WebSocket(origin.replace('http', 'ws')), {onopen: yes, onerror: no});
    }),
    parent: () => parent.document.body.innerText,
    address: () => top.location.href,
    popup: () => { if (!open(origin + '/opened')) throw 0; },
    storage: () => localStorage.length,
    cookie: () => { document.cookie = 'a=b'; },
    worker: () => new Promise((yes, no) => Object.assign(new Worker('frame.js'), {onerror: no, onmessage: yes})),
    code: () => new Promise((yes, no) => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';
      document.body.append(s); window.ran ? yes() : no(); }),
  };
  const done = [];
  for (const [name, one] of Object.entries(tries)) {
    try { await one(); done.push(name); } catch { }
  }
  return done;
}"""


@pytest.mark.full
def test_even_code_in_the_frame_reaches_neither_the_service_nor_the_page_nor_the_network(
    page: Page, daemon: Daemon, seeded: Seeded, seen: Witness
) -> None:
    go(page, "runs", "session", seeded.session)
    frame = page.locator("iframe.given").first.element_handle().content_frame()
    assert frame is not None
    frame.wait_for_url("**/frame.html")
    assert set(frame.evaluate(TRIES, seen.origin)) <= {"beacon"}  # which says so before it is refused
    with contextlib.suppress(Exception):
        frame.evaluate("origin => { top.location.href = origin + '/went'; }", seen.origin)
    frame.evaluate("origin => { location.href = origin + '/went'; }", seen.origin)
    page.get_by_role("link", name="All sessions").click()
    page.get_by_role("heading", name="Sessions", exact=True).wait_for()
    assert seen.asked == []
    seen.pages["/console/plain"] = ("text/html", "<p>no defences</p>")
    page.goto(f"{seen.origin}/console/plain")
    done = set(page.evaluate(TRIES, seen.origin))
    assert {"network", "beacon", "parent", "address", "storage", "cookie", "code"} <= done
