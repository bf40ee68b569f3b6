"""The console in a real browser: what a person sees of programs that wait, run and show things, and does about it."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.console.browser import Chromium, Page, signed_in
from tests.console.conftest import call, link_of
from tests.service.daemon import ASKS, Daemon, environment, reserved_port, serving
from tests.support import loopback
from tests.support.waiting import MAX_WAIT, until

pytestmark = [pytest.mark.needs("browser"), pytest.mark.needs("playwright")]

RULE = 'rules: - allow: shell arguments: {"command": "echo yes"}'
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
SHOWS = f"""
import base64
from IPython.display import Image, display
picture = base64.b64decode({base64.b64encode(PICTURE).decode()!r})
open('dot.png', 'wb').write(picture)
display(Image(picture))
value = 6 * 7
value
"""
MANY = """
print('begins')
!true
for number in range(20000):
    print('line', number)
"""


def open_session(page: Page, daemon: Daemon) -> str:
    """Open a session on the page; its handle."""
    before = {one["session"] for one in call(daemon, "sessions.list")}
    page.get_by_role("link", name="Runs and sessions").click()
    page.get_by_role("button", name="Open a session").click()
    page.get_by_role("dialog").get_by_role("button", name="Open").click()
    page.get_by_label("Next step").wait_for()
    (made,) = {one["session"] for one in call(daemon, "sessions.list")} - before
    return str(made)


def step(page: Page, code: str) -> None:
    """Run a step as its writer would, by the keyboard."""
    page.get_by_label("Next step").fill(code)
    page.get_by_label("Next step").press("Control+Enter")


def test_a_person_is_shown_what_waits_and_lets_it_cross(page: Page, daemon: Daemon) -> None:
    session = call(daemon, "sessions.open")["session"]
    run = call(daemon, "runs.start", code="print('said', get_ipython().getoutput('echo yes'))", session=session)["run"]
    card = page.get_by_role("article")
    card.wait_for()
    (pending,) = call(daemon, "approvals.pending")
    assert card.locator("pre.subject").inner_text() == "echo yes"
    assert pending["hash"] not in card.inner_text()
    card.get_by_text("Details", exact=True).click()
    assert pending["hash"] in card.inner_text()
    assert page.title() == "(1) casemate"
    assert "waits for your answer" in page.get_by_role("status").inner_text().lower()
    card.get_by_role("button", name="Show the rule").click()
    assert card.locator(".rule").inner_text().split() == RULE.split()
    card.get_by_role("button", name="Allow once", exact=True).click()
    card.wait_for(state="detached")
    outcome = call(daemon, "runs.wait", run=run)["execution"]
    assert (outcome["status"], outcome["stdout"]) == ("ok", "said ['yes']\n")
    page.wait_for_function("() => document.title === 'casemate'")
    call(daemon, "sessions.close", session=session)


def test_what_is_too_long_to_be_seen_is_allowed_once_it_was_opened(page: Page, daemon: Daemon) -> None:
    session = call(daemon, "sessions.open")["session"]
    code = f"get_ipython().getoutput('true {'a' * 5000} && rm -rf important && true {'b' * 5000}')"
    call(daemon, "runs.start", code=code, session=session)
    card = page.get_by_role("article")
    card.wait_for()
    allow, deny = (card.get_by_role("button", name=name, exact=True) for name in ("Allow once", "Deny"))
    until(deny.is_enabled)  # what has just come is held for a moment
    assert allow.is_disabled()
    page.keyboard.press("a")  # opens it
    page.keyboard.press("a")  # too soon
    card.locator("details.folded").get_by_text("rm -rf important").wait_for()
    more = card.get_by_role("button", name="More below")
    more.wait_for()
    assert allow.is_disabled()
    page.keyboard.press("a")
    until(lambda: page.evaluate("document.querySelector('.more')?.click()") or allow.is_enabled())
    deny.click()
    card.wait_for(state="detached")
    call(daemon, "sessions.close", session=session)


def test_a_session_is_driven_and_a_picture_appears(page: Page, daemon: Daemon) -> None:
    session = open_session(page, daemon)
    step(page, SHOWS)
    picture = page.locator(".execution img.picture")
    picture.wait_for()
    until(lambda: picture.evaluate("image => image.complete && image.naturalWidth") == 1)
    page.get_by_role("region", name="Variables").get_by_role("button", name="value").click()
    assert page.get_by_role("dialog").locator(".json").inner_text() == "42"
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    with page.expect_download() as fetched:
        page.get_by_role("button", name="Download dot.png").click()
    assert fetched.value.path().read_bytes() == PICTURE
    step(page, "while True: pass")
    page.locator(".execution[aria-busy=true]").get_by_role("button", name="Interrupt").click()
    page.get_by_text("KeyboardInterrupt").first.wait_for()
    assert call(daemon, "sessions.get", session=session, name="value") == 42
    page.get_by_role("complementary").get_by_role("button", name="Close").click()
    page.get_by_text("closed").wait_for()
    assert session not in {one["session"] for one in call(daemon, "sessions.list")}


# Counts, in the page, each line that is put there and each that is taken away.
COUNT = """() => { window.put = 0; const output = document.querySelector('.output > div');
new MutationObserver((all) => { for (const one of all) if (one.target === output)
window.put += one.addedNodes.length; }).observe(output, {childList: true, subtree: true}); }"""


def test_many_lines_are_each_written_once_and_the_page_holds_so_many(page: Page, daemon: Daemon) -> None:
    session = open_session(page, daemon)
    step(page, MANY)
    page.get_by_text("begins", exact=True).wait_for()
    page.evaluate(COUNT)
    page.get_by_role("article").get_by_role("button", name="Allow once", exact=True).click()
    page.get_by_text("line 19999", exact=True).wait_for()
    page.locator(".execution[aria-busy=false]").wait_for()
    assert page.locator(".output > div > div").count() == 500
    assert page.evaluate("window.put") <= 20_001
    assert "earlier lines are not shown here" in page.locator(".live small").inner_text()
    call(daemon, "sessions.close", session=session)


# Puts requests in the page, and looks at the buttons before any time has passed. Each list comes by itself.
PUT = """async (lists) => {
  const { waiting } = await import(new URL('waiting.js', document.baseURI).href);
  const request = (id) => [id, {id, kind: 'shell', summary: id, arguments: {},
    caller: '', run: 'r', hash: 'h', session: ''}];
  for (const ids of lists) {
    waiting.set(new Map(ids.map(request)));
    for (let turn = 0; turn < 50; turn++) await null;
  }
  return [...document.querySelectorAll('article footer .allow')].map((button) => button.disabled);
}"""


def test_nothing_can_be_pressed_at_once_where_another_request_was(page: Page) -> None:
    assert page.evaluate(PUT, [["first"]]) == [True]
    allow = page.get_by_role("button", name="Allow once", exact=True)
    until(allow.is_enabled)
    assert page.evaluate(PUT, [[], ["second"]]) == [True]
    until(allow.is_enabled)
    assert page.evaluate(PUT, [["second", "third"]]) == [False]  # it stands where it stood
    assert page.evaluate(PUT, [["third"]]) == [True]


def test_a_page_that_loads_late_does_not_take_the_place_of_the_next_one(page: Page) -> None:
    late: list[Any] = []
    page.route("**/pages/health.js", lambda route: late.append(route))  # noqa: PLW0108 - it needs a plain function
    page.evaluate("location.hash = '#/health'")
    until(lambda: page.evaluate("1") and late)  # Playwright hears of it while it does something
    page.evaluate("location.hash = '#/record'")
    heading = page.get_by_role("heading", name="Record", exact=True)
    heading.wait_for()
    late[0].continue_()
    page.evaluate(
        "import(new URL('pages/health.js', document.baseURI).href).then(() => new Promise(requestAnimationFrame))"
    )
    assert heading.is_visible()


def test_only_requests_that_are_shown_can_be_chosen(page: Page) -> None:
    page.evaluate(PUT, [[f"request {number}" for number in range(60)]])
    page.get_by_label("all 50").check()
    page.get_by_role("button", name="Deny 50", exact=True).wait_for()


def test_a_line_that_begins_anew_a_million_times_is_written(page: Page) -> None:
    written = page.evaluate("""async () => {
      const { Lines } = await import(new URL('live.js', document.baseURI).href);
      const fresh = document.createDocumentFragment();
      new Lines().add('stdout', '\\r'.repeat(1_000_000) + 'end', fresh);
      return fresh.textContent;
    }""")
    assert written == "end"


@pytest.mark.full
def test_a_run_is_started_in_the_language_that_was_chosen(page: Page, daemon: Daemon) -> None:
    page.get_by_role("link", name="Runs and sessions").click()
    page.get_by_role("button", name="Start a run").click()
    page.get_by_label("Program").fill(
        "echo $((6 * 7)); printf '50%%\\r100%%\\n'; printf '\\033[31mred\\033[0m\\033]0;title\\007\\n'"
    )
    page.get_by_label("Language").select_option("shell")
    page.get_by_role("dialog").get_by_role("button", name="Start", exact=True).click()
    page.locator(".execution[aria-busy=false]").wait_for()
    until(lambda: page.locator(".output > div > div").all_inner_texts() == ["42", "100%", "red"])
    assert page.locator(".output .c-red").all_inner_texts() == ["red"]
    assert page.title() == "casemate"


SHOWN = """
from IPython.display import HTML, display
display(HTML("<style>td {color: red}</style><table><tr><td>in a cell<script>parent.x = 1</script></table>"
    "<img src=x onerror='parent.x = 1'><a href='http://evil.test'>a link</a><p style='height: 90px'>"))
"""


@pytest.mark.full
def test_what_a_program_gives_as_html_is_seen_as_high_as_it_is_and_does_nothing(page: Page, daemon: Daemon) -> None:
    session = open_session(page, daemon)
    step(page, SHOWN)
    frame = page.frame_locator("iframe.given")
    assert frame.get_by_text("in a cell").evaluate("cell => getComputedStyle(cell).color") == "rgb(255, 0, 0)"
    assert frame.locator("body").evaluate("() => self.origin") == "null"
    assert frame.locator("script:not([src]), [onerror], a[href], img[src]").count() == 0
    until(lambda: 100 < page.locator("iframe.given").bounding_box()["height"] < 250)  # type: ignore[index]
    assert page.evaluate("window.x") is None
    call(daemon, "sessions.close", session=session)


TABLE = """
from IPython.display import display
display({"text/html": "<table><tr><td>as HTML</td></tr></table>", "text/plain": "as text"}, raw=True)
"""


@pytest.mark.full
def test_what_a_frame_does_not_show_is_shown_as_text(page: Page, daemon: Daemon) -> None:
    page.route("**/frame.js", lambda route: route.abort())
    session = open_session(page, daemon)
    step(page, TABLE)
    page.locator(".result").get_by_text("as text", exact=True).wait_for()
    assert not page.locator("iframe.given").is_visible()
    call(daemon, "sessions.close", session=session)


@pytest.mark.full
def test_many_requests_are_answered_at_once(page: Page, daemon: Daemon) -> None:
    sessions = [call(daemon, "sessions.open")["session"] for _ in range(5)]
    code = "print(get_ipython().getoutput('echo yes'))"
    runs = [call(daemon, "runs.start", code=code, session=one)["run"] for one in sessions]
    queue = page.locator(".queue li")
    until(lambda: queue.count() == 5)
    assert page.title() == "(5) casemate"
    for number, at in enumerate((0, 2), 1):
        queue.nth(at).get_by_role("button").click()
        queue.nth(at).get_by_role("checkbox").check()
        page.get_by_role("button", name=f"Allow {number} once").wait_for()
    page.get_by_role("button", name="Allow 2 once").click()
    until(lambda: queue.count() == 3)
    queue.last.get_by_role("checkbox").check()
    page.get_by_role("button", name="Deny 1").click()
    until(lambda: queue.count() == 2)
    page.get_by_role("button", name="Deny all that waits").click()
    page.get_by_role("dialog").get_by_role("button", name="Deny all").click()
    page.get_by_text("Nothing waits for an answer").wait_for()
    ended = [call(daemon, "runs.wait", run=run)["execution"] for run in runs]
    assert sorted(one["stdout"] for one in ended) == ["", "", "", "['yes']\n", "['yes']\n"]
    for one in sessions:
        call(daemon, "sessions.close", session=one)


@pytest.mark.full
def test_many_steps_that_wait_for_their_turn_leave_a_way_to_answer(page: Page, daemon: Daemon) -> None:
    session = call(daemon, "sessions.open")["session"]
    codes = ["print(get_ipython().getoutput('echo yes'))", *(f"print('step {number}')" for number in range(9))]
    for code in codes:
        call(daemon, "runs.start", code=code, session=session)
    page.goto(f"{page.url.partition('#')[0]}#/runs/session/{session}")
    until(lambda: page.locator(".execution").count() == 10)
    page.get_by_role("button", name="Allow once", exact=True).click()
    page.get_by_text("['yes']").wait_for()
    until(lambda: page.locator(".execution[aria-busy=false]").count() == 10)
    call(daemon, "sessions.close", session=session)


@pytest.mark.full
def test_each_of_many_tabs_shows_what_waits_and_answers_it(page: Page, daemon: Daemon) -> None:
    tabs = [page, *(page.context.new_page() for _ in range(7))]
    for tab in tabs[1:]:
        tab.goto(page.url.partition("#")[0])
        tab.wait_for_selector("main h1")
    session = call(daemon, "sessions.open")["session"]
    code = "print(get_ipython().getoutput('echo yes'))"
    for tab in (tabs[-1], tabs[1]):
        run = call(daemon, "runs.start", code=code, session=session)["run"]
        for one in tabs:
            one.get_by_role("article").wait_for()
        tab.bring_to_front()  # nobody has read what is in a tab that is not shown
        tab.get_by_role("button", name="Allow once", exact=True).click()
        for one in tabs:
            one.get_by_text("Nothing waits for an answer").wait_for()
        assert call(daemon, "runs.wait", run=run)["execution"]["stdout"] == "['yes']\n"
        tabs.pop(0).close()  # it followed for all the others
    call(daemon, "sessions.close", session=session)


@pytest.mark.full
@pytest.mark.parametrize("width", [360, 400, 1280])
def test_nothing_is_wider_than_the_screen(real_browser: Chromium, daemon: Daemon, width: int) -> None:
    session = call(daemon, "sessions.open")["session"]
    call(daemon, "runs.start", code=f"print('x' * 400)\n!{'long ' * 100}", session=session)
    with signed_in(real_browser, link_of(daemon), width=width) as page:
        page.get_by_role("article").first.wait_for()
        for _ in ("approvals", "session"):
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.goto(f"{page.url.partition('#')[0]}#/runs/session/{session}")
            page.get_by_label("Next step").wait_for()
    call(daemon, "approvals.deny_all")
    call(daemon, "sessions.close", session=session)


@contextlib.contextmanager
def behind_a_prefix(port: int, prefix: str) -> Iterator[str]:
    """A proxy that has the service under ``prefix``, as servers of web sites do; its address."""

    def pass_on(request: BaseHTTPRequestHandler) -> None:
        if not request.path.startswith(f"{prefix}/"):
            return request.send_error(404)
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        headers = {name: one for name, one in request.headers.items() if name.lower() not in ("host", "connection")}
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)) as other:
            other.request(request.command, request.path.removeprefix(prefix), body, headers)
            with other.getresponse() as answer:
                request.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        request.send_header(name, value)
                request.end_headers()
                with contextlib.suppress(ConnectionError, HTTPException):  # one end has gone
                    while piece := answer.read1():
                        request.wfile.write(piece)
        return None

    with loopback.serving(pass_on) as own:
        yield f"http://127.0.0.1:{own}"


@pytest.mark.full
def test_it_works_behind_a_prefix_of_another_server(real_browser: Chromium, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(ASKS)
    with reserved_port() as port, behind_a_prefix(port, "/tools/casemate") as address:
        env = {**environment(tmp_path), "CASEMATE_POLICY": str(policy)}
        with serving(env, "--allow-origin", address) as daemon:
            link = daemon.command("console", "--print", "--port", str(port)).stdout.strip()
            code = link.partition("#")[2]
            with signed_in(real_browser, f"{address}/tools/casemate/console/#{code}") as page:
                open_session(page, daemon)
                step(page, "print(get_ipython().getoutput('echo yes'))")
                page.get_by_role("article").get_by_role("button", name="Allow once", exact=True).click()
                page.get_by_text("['yes']").wait_for()
