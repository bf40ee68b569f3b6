"""The console in a real browser: its first page, an approval, frames while a program prints, idle load, and previews.

Chromium is headless and renders on the processor. Times end when the expected content is drawn. The time of a first
page begins with the navigation, the time of an approval with the program's request. A GET through a preview is compared
with a GET to the server in its cell on a socket of the library; each uses a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from tests.console.browser import Chromium, Page, chromium, signed_in
from tests.console.conftest import call, link_of
from tests.console.seeds import seeded_service
from tests.service.daemon import Daemon
from tests.sessions.previewing import SITE, cookie_of, name_of

from benchmarks import looking, measure
from benchmarks.measure import Goal
from casemate import Sandbox

_PAINTED = """(() => { const look = () => document.querySelector('main .empty, main article')
  ? setTimeout(() => { window.painted = performance.now(); }) : requestAnimationFrame(look);
requestAnimationFrame(look); })()"""
_WATCH = """() => { new MutationObserver(() => {
  if (window.isShown || !document.querySelector('article.request')) return;
  window.isShown = true;
  requestAnimationFrame(() => setTimeout(() => { window.shown = performance.timeOrigin + performance.now(); }));
}).observe(document.body, {childList: true, subtree: true}); }"""
_COUNT = """() => { window.spans = []; let last = 0;
  const step = (now) => { if (last) window.spans.push((now - last) / 1000); last = now; requestAnimationFrame(step); };
  requestAnimationFrame(step); }"""
_TAKE = "() => window.spans.splice(0)"
_PRINTS = """
import time
began = time.monotonic()
for number in range({lines}):
    print('line', number, flush=True)
    time.sleep(max(0.0, began + number / 1000 - time.monotonic()))
"""
_ASKS = "import time\nprint(time.time())\n!true"
_FRAME = 1.01 / 60  # seconds; frame times have a precision of 0.1 ms
_LATE = 0.033  # seconds


def main() -> None:
    """Measure and print."""
    run = measure.Run("console", __doc__ or "")
    with asyncio.Runner() as runner:
        _preview(run, runner)
    with seeded_service() as daemon:
        _console(run, daemon)
    run.finish()


def _console(run: measure.Run, daemon: Daemon) -> None:
    assert daemon.process is not None
    service, seconds = daemon.process.pid, 2.0 if run.quick else 20.0
    session = call(daemon, "sessions.open")["session"]
    call(daemon, "runs.wait", run=call(daemon, "runs.start", code="1", session=session)["run"])
    cells = [one.pid for one in looking.below(service)]
    rest = _processor_time({"the service, nobody looks": [service], "its supervisor and cells": cells}, seconds)
    with chromium() as browser, signed_in(browser, link_of(daemon)) as page:
        _first_page(run, browser, daemon, page)
        _approval(run, page, daemon, session)
        ours = {one.pid: one.command for one in looking.below(os.getpid()) if b"/chromium" in one.command}
        renderers = [pid for pid, command in ours.items() if b"--type=renderer" in command]
        looks = {"the service, a page is open": [service], "the page": renderers, "the whole browser": list(ours)}
        rest |= _processor_time(looks, seconds)
        rows = [(name, f"{taken * 1000:.1f} ms", f"{taken / seconds:.2%}") for name, taken in rest.items()]
        data = [{"name": name, "seconds": taken, "of": seconds} for name, taken in rest.items()]
        run.table(f"{seconds:g} s at rest", [("", "processor time", "of a core"), *rows], data)
        _frames(run, page, daemon, session, seconds / 2)


def _first_page(run: measure.Run, browser: Chromium, daemon: Daemon, page: Page) -> None:
    state, address = page.context.storage_state(), page.url.partition("#")[0]

    def visit(link: str, *, is_known: bool) -> float:
        context = browser.new_context(storage_state=state if is_known else None)
        try:
            fresh = context.new_page()
            fresh.add_init_script(_PAINTED)
            fresh.goto(link)
            return float(fresh.wait_for_function("() => window.painted").json_value()) / 1000
        finally:
            context.close()

    things: dict[str, measure.Thing] = {
        "signed in": lambda: visit(address, is_known=True),
        "by a link, with its sign-in": lambda: visit(link_of(daemon), is_known=False),
    }
    goals = dict.fromkeys(things, Goal(plus=0.3))
    run.compare("the first page, its files not known", measure.in_turn(things, run.rounds(20), goals))


def _approval(run: measure.Run, page: Page, daemon: Daemon, session: str) -> None:
    page.evaluate(_WATCH)

    def ask() -> float:
        page.evaluate("() => { window.shown = 0; window.isShown = false; }")
        asked = call(daemon, "runs.start", code=_ASKS, session=session)["run"]
        shown = float(page.wait_for_function("() => window.shown").json_value()) / 1000
        call(daemon, "approvals.deny_all")
        asked_at = float(call(daemon, "runs.wait", run=asked)["execution"]["stdout"])
        page.locator("article.request").wait_for(state="detached")
        return shown - asked_at

    goals = {"until it is seen": Goal(plus=0.1)}
    run.compare("an approval, once it is asked for", measure.in_turn({"until it is seen": ask}, run.rounds(30), goals))


def _processor_time(pids_of: dict[str, list[int]], seconds: float) -> dict[str, float]:
    """The processor time, during ``seconds``, of all threads that exist throughout."""
    before = {name: sum(map(_taken, pids)) for name, pids in pids_of.items()}
    time.sleep(seconds)
    return {name: sum(map(_taken, pids)) - before[name] for name, pids in pids_of.items()}


def _taken(pid: int) -> float:
    """A thread's processor time: the first field of schedstat in proc(5), which is in nanoseconds."""
    total = 0.0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(task.read_text().split()[0]) / 1e9
    return total


def _frames(run: measure.Run, page: Page, daemon: Daemon, session: str, seconds: float) -> None:
    page.evaluate("address => { location.hash = address; }", f"#/runs/session/{session}")
    page.get_by_label("Next step").wait_for()
    page.evaluate(_COUNT)
    time.sleep(seconds)
    found = {"nothing is printed": page.evaluate(_TAKE)}
    last = int(1000 * seconds) - 1
    started = call(daemon, "runs.start", code=_PRINTS.format(lines=last + 1), session=session)["run"]
    call(daemon, "runs.wait", run=started)
    page.get_by_text(f"line {last}", exact=True).wait_for()
    found["1,000 lines a second"] = page.evaluate(_TAKE)
    rows: list[tuple[str, ...]] = [("", "n", "p50", "p95", "over 33 ms", "goal", "")]
    for name, spans in found.items():
        p50, p95 = statistics.median(spans), statistics.quantiles(spans, n=20)[-1]
        late = sum(span > _LATE for span in spans) / len(spans)
        told = (measure.duration(p50), measure.duration(p95), f"{late:.1%}")
        rows.append((name, str(len(spans)), *told, "p50 16.7 ms", measure.word(p50 <= _FRAME)))
    data = [{"name": name, "seconds": spans} for name, spans in found.items()]
    run.table("from frame to frame of a session's page", rows, data)


def _preview(run: measure.Run, runner: asyncio.Runner) -> None:
    with tempfile.TemporaryDirectory(prefix="casemate-console-") as folder:
        sandbox = Sandbox(audit=Path(folder, "audit.db"))
        try:
            session = sandbox.session()
            runner.run(session.run(SITE)).raise_for_status()
            preview = runner.run(session.expose(8000))
            head = f"Host: {name_of(preview)}\r\nCookie: {runner.run(cookie_of(preview))}\r\n"

            async def get(port: int) -> None:
                await _get(await asyncio.open_connection("127.0.0.1", port), head)

            async def get_in_cell() -> None:
                await _get(await asyncio.open_connection(sock=await session._previews._connect(8000)), head)

            things: dict[str, measure.Thing] = {
                "in the cell": lambda: runner.run(get_in_cell()),
                "through a preview": lambda: runner.run(get(urlsplit(preview.url).port or 0)),
            }
            run.compare("a small GET", measure.in_turn(things, run.rounds(200), {}))
        finally:
            runner.run(sandbox.close())


async def _get(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], head: str) -> None:
    reader, writer = streams
    writer.write(f"GET / HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
    answer = await reader.read(-1)
    writer.close()
    if b"<h1>hello</h1>" not in answer:
        raise RuntimeError(f"not the page: {answer[:200]!r}")


if __name__ == "__main__":
    main()
