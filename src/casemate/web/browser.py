"""Renders pages in Chromium, which runs in a cell, has only the cell's network, and is driven through pipes.

Each caller has one browser; each call has its own browser context. Chromium's own sandbox is off, so all its output is
untrusted. The browser ends with its cell.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, Denied, InvalidArgument, QueueFull, SandboxClosed
from casemate.execution.context import Folder
from casemate.execution.request import make_command
from casemate.execution.wrapped import Wrapped, admit_wrapped, execute
from casemate.languages.browser import find_browser
from casemate.languages.commands import RESERVE
from casemate.languages.runtime import SYSTEM_PATH
from casemate.model.execution import since
from casemate.model.limits import Limits
from casemate.model.operation import account, caller
from casemate.model.plan import NO_SECRETS, WORKSPACE, Workspace
from casemate.policy.hosts import canonical
from casemate.walls.wall import Standard
from casemate.web.cdp import ENDED, CdpEnded, CdpPipe, CdpRefused, Nonsense
from casemate.web.cells import HOW_TO_ALLOW, checked_address
from casemate.web.tab import EVENTS, HEIGHT, WIDTH, Rendered, Tab, Unreached, Visit

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.execution.run import Begun
    from casemate.model.execution import Artifact, Crossing, Execution
    from casemate.model.web import WaitUntil
    from casemate.policy.hosts import HostRules

_LIMITS = Limits(memory="1GiB", processes=400, cpus=2, disk="512MiB")  # each thread counts as a process
_IDLE_SECONDS = 300.0  # an idle browser ends after this
_MOST_BROWSERS = 4  # each may use all of _LIMITS
_MOST_PAGES = 4  # at once in one browser; further calls wait
_MOST_CALLS = 100  # of one browser: the cell's network has addresses for only so many names
_START_WITHIN = 30.0  # seconds to the first answer, on a busy machine
_LEAVES_WITHIN = 1.0  # seconds for the cell to end and report why, once the browser has closed its pipe
_END_WITHIN = 10.0  # seconds for a killed cell to be gone
_LOOK_EVERY = 0.05  # seconds between checks for a pending approval
_CLOSED = "the sandbox was closed"
_CERTIFICATE = "If TLS is intercepted, the browser needs certutil to trust it: apt-get install libnss3-tools."
# The cell's standard streams are the protocol's pipes. Chromium trusts NSS: where the egress proxy intercepts TLS, this
# adds the proxy's authority there.
_SCRIPT = """
exec 2>/dev/null
if [ -f /etc/ssl/certs/casemate.pem ]; then
  mkdir -p "$HOME/.pki/nssdb"
  certutil -N --empty-password -d "sql:$HOME/.pki/nssdb"
  certutil -A -n casemate -t C,, -i /etc/ssl/certs/casemate.pem -d "sql:$HOME/.pki/nssdb"
fi </dev/null >/dev/null
exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null
"""
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
    "--user-data-dir=/tmp/profile", "--remote-debugging-pipe", "--block-new-web-contents", "--hide-scrollbars",
    "--mute-audio", f"--window-size={WIDTH},{HEIGHT}",
)  # fmt: skip


class Browsers:
    """The browsers of a sandbox, one for each caller and its hosts. Used in one event loop."""

    def __init__(self, context: Callable[[], ExecutionContext], namespace: str) -> None:
        """``context``: returns the terms of a call, with the network rules and approvals. Starts nothing."""
        self._context, self._namespace = context, namespace
        self._warm: dict[tuple[str, str, HostRules | None], _BrowserCell] = {}  # least recently used first
        self._living: set[_BrowserCell] = set()
        self._is_closed = False

    async def browse(
        self, url: str, *, wait_for_selector: str | None, wait_until: WaitUntil, timeout: float, screenshot: bool  # noqa: ASYNC109
    ) -> Rendered:  # fmt: skip
        """Open a page in the caller's browser and return it when it is ready. Takes the arguments of ``Web.browse``;
        raises what that raises, ``QueueFull`` and ``SandboxClosed``."""
        checked_address(url)
        if wait_until not in EVENTS:
            raise InvalidArgument("wait_until", f"{wait_until!r:.50} is not one of {', '.join(EVENTS)}")
        if wait_for_selector is not None and not (isinstance(wait_for_selector, str) and wait_for_selector.strip()):
            raise InvalidArgument("wait_for_selector", "give a CSS selector, such as '#results li'")
        if self._is_closed:
            raise SandboxClosed(_CLOSED)
        context = self._context()
        whose = caller(), account(), context.hosts
        browser = self._warm.pop(whose, None)
        if browser is None or not browser.takes_calls:
            browser = self._start(context)
        self._warm[whose] = browser
        return await browser.visit(Visit(url, wait_for_selector, wait_until, timeout, screenshot))

    async def close(self) -> None:
        """End every browser, within a bounded time. Idempotent."""
        self._is_closed = True
        for browser in self._living:
            browser.end(_CLOSED)
        if self._living:
            await asyncio.wait([browser.task for browser in self._living], timeout=_END_WITHIN)

    def _start(self, context: ExecutionContext) -> _BrowserCell:
        if context.hosts is None:
            raise Denied("this sandbox has no network, so no page can be reached", remediation=HOW_TO_ALLOW)
        staying = [one for one in self._living if not one.why_ended]
        if len(staying) >= _MOST_BROWSERS:
            idle = next((one for one in self._warm.values() if one in staying and not one.calls), None)
            if idle is None:
                raise QueueFull(f"{len(staying)} browsers are in use, and no more may be", retry_after=10)
            idle.end("another caller needed one")
        alone = replace(context, limits=_LIMITS, folder=Folder())
        browser = _BrowserCell(alone, self._namespace)
        self._living.add(browser)
        browser.task.add_done_callback(lambda _: self._living.discard(browser))
        return browser


class _BrowserCell:
    """One browser in its cell, from start to end."""

    def __init__(self, context: ExecutionContext, namespace: str) -> None:
        self._program, entries = find_browser()
        request = make_command(
            "/bin/sh", ("-c", _SCRIPT, str(self._program), *_FLAGS), timeout=None, env={}, secrets=NO_SECRETS,
            namespace=namespace,
        )  # fmt: skip
        self._wrapped = Wrapped(
            request, entries, (), (SYSTEM_PATH,), Workspace("private"), WORKSPACE, RESERVE, heap=False
        )
        self._context = context
        self.calls = self._number = 0  # calls in progress; all calls so far
        self.why_ended = ""  # set when it has ended, or takes no more calls
        self._turns, self._quiet = asyncio.Semaphore(_MOST_PAGES), asyncio.Event()
        self._pipe = CdpPipe(self._kill)
        self._begun: asyncio.Future[Begun] = asyncio.get_running_loop().create_future()
        self._idle: asyncio.TimerHandle | None = None
        self.task = asyncio.ensure_future(self._live())  # noqa: TID251 - `end` ends it, `Browsers.close` awaits it
        self.task.add_done_callback(self._note_end)

    @property
    def takes_calls(self) -> bool:
        """Whether it can take another call."""
        return not (self.why_ended or self._pipe.why_ended or self.task.done()) and self._number < _MOST_CALLS

    def end(self, why: str) -> None:
        """End the browser and its calls. ``task`` is done when the cell is gone."""
        self.why_ended = self.why_ended or why
        if not self._begun.done():
            self.task.cancel()
        elif not self._begun.cancelled():
            self._pipe.end(why)

    def _kill(self) -> None:
        if self._begun.done() and not self._begun.cancelled():
            wait = _LEAVES_WITHIN if self._pipe.why_ended == ENDED else 0.0
            asyncio.get_running_loop().call_later(wait, self._begun.result().cell.kill, "closed")

    def _note_end(self, task: asyncio.Task[Execution]) -> None:
        self._begun.cancel()
        if not task.cancelled():
            task.exception()  # marks it as retrieved: callers get it from `_cause`, and the record has it

    def _is_asking(self) -> bool:
        has_begun = self._begun.done() and not self._begun.cancelled()
        return has_begun and self._begun.result().requester.pending_count > 0

    async def _live(self) -> Execution:
        """Run the browser as an execution, which is on record like any other."""
        context, (stdin, writable), (readable, stdout) = self._context, os.pipe(), os.pipe()
        streams = [stdin, stdout]

        def note_begun(begun: Begun) -> None:
            self._begun.set_result(begun)
            while streams:  # the cell has copies, so the pipes close when it ends
                os.close(streams.pop())

        try:
            await self._pipe.open(readable, writable)
            within = admit_wrapped(self._wrapped, context, None)
            return await execute(self._wrapped, within, context, Standard(stdin, stdout, stdout), note_begun)
        finally:
            while streams:
                os.close(streams.pop())
            self._pipe.end(ENDED)

    async def visit(self, visit: Visit) -> Rendered:
        """Render one page."""
        self.calls, self._number = self.calls + 1, self._number + 1
        number = self._number
        self._quiet.clear()
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with self._turns:
                rendered, has_files = await self._take(visit, number)
        finally:
            self.calls -= 1
            if not self.calls:
                self._quiet.set()
                wait = _IDLE_SECONDS if self.takes_calls else 0.0
                self._idle = asyncio.get_running_loop().call_later(wait, self.end, "nobody uses it")
        return replace(rendered, downloads=await self._hand_out(number)) if has_files else rendered

    async def _take(self, visit: Visit, number: int) -> tuple[Rendered, bool]:
        """Return the page, and whether it left files. Raises ``CasemateError``."""
        try:
            async with _limit_time(_START_WITHIN, self._is_asking):
                await asyncio.wait([self._begun])
                if self._begun.cancelled():
                    raise CdpEnded(ENDED)
                self._pipe.allow_more(afresh=self.calls == 1)
                await self._pipe.call("Browser.getVersion")
        except (TimeoutError, CdpEnded):
            self.end("it did not answer")
            raise await self._cause(visit) from None
        network = self._begun.result().network
        before, tab = network.crossings(), Tab(self._pipe, visit, number)
        try:
            async with _limit_time(visit.seconds, self._is_asking), tab.open_blank():
                rendered = await tab.take()
        except (TimeoutError, Unreached) as error:
            reason, remedy = ("tls", _CERTIFICATE) if "ERR_CERT" in str(error) else ("connect", "")
            unreached = visit.problem(reason, f"it cannot be reached: {error}", remedy)
            denied = _denial(tab, since(before, network.crossings()))
            raise denied or (tab.timeout() if isinstance(error, TimeoutError) else unreached) from None
        except CdpEnded:
            raise await self._cause(visit) from None
        except (Nonsense, CdpRefused, binascii.Error) as error:
            raise visit.problem("browser", f"the browser failed: {error}") from None
        finally:
            if not tab.is_left:
                self.end("a page could not be closed")
        if rendered.status == 403 and (denied := _denial(tab, since(before, network.crossings()))):
            raise denied
        return rendered, bool(tab.files)

    async def _cause(self, visit: Visit) -> CasemateError:
        """Return the error that says why the browser ended, or never started."""
        await asyncio.wait([self.task], timeout=_END_WITHIN)
        if self.why_ended == _CLOSED or not self.task.done() or self.task.cancelled():
            return SandboxClosed(_CLOSED)
        if isinstance(error := self.task.exception(), CasemateError):
            return error
        execution = self.task.result()
        if execution.status == "out_of_memory" and execution.cause:
            return visit.problem("memory", f"it ended the browser: {execution.cause.message}")
        why = f"the browser has ended ({execution.exit_code}): {self._pipe.why_ended}"
        return visit.problem("browser", why, f"Check whether it starts: {self._program} --version")

    async def _hand_out(self, number: int) -> tuple[Artifact, ...]:
        """Return a call's files. They are collected when the cell ends, so end the browser after its calls."""
        self.why_ended = self.why_ended or "its files were taken"
        await self._quiet.wait()
        self.end(self.why_ended)
        files, folder = (await asyncio.shield(self.task)).artifacts, f"{number}/"
        return tuple(replace(one, name=one.name.removeprefix(folder)) for one in files if one.name.startswith(folder))


def _denial(tab: Tab, crossings: tuple[Crossing, ...]) -> Denied | None:
    """Return the denial of a host that the page is at or was going to; None if no denial is the cause."""
    hosts = {canonical(host) for host in tab.hosts}
    for one in crossings:
        if one.decision == "denied" and one.host in hosts:
            where = f"{one.host}:{one.port}" if one.port else one.host
            return Denied(f"{where}: {one.reason}", remediation=HOW_TO_ALLOW)
    return None


@contextlib.asynccontextmanager
async def _limit_time(seconds: float, waits: Callable[[], bool]) -> AsyncIterator[None]:
    """Raise ``TimeoutError`` after ``seconds``. Time while ``waits()`` is true, for an approval, does not count."""
    timers: list[asyncio.TimerHandle] = []
    async with asyncio.timeout(seconds) as limit:

        def look() -> None:
            if waits() and not limit.expired():
                limit.reschedule((limit.when() or 0) + _LOOK_EVERY)
            timers[:] = [asyncio.get_running_loop().call_later(_LOOK_EVERY, look)]

        look()
        try:
            yield
        finally:
            timers[0].cancel()
