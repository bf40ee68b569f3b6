"""One call's page, in its own browser context: opened, awaited, read, closed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.errors import InvalidArgument, WebUnavailable
from casemate.model.plan import WORKSPACE
from casemate.web.cdp import CdpEnded, CdpPipe, CdpRefused, Nonsense, part
from casemate.web.cells import address_in, place_of, words_in

if TYPE_CHECKING:
    from casemate.model.execution import Artifact
    from casemate.model.web import WaitUntil

WIDTH, HEIGHT = 1280, 800  # pixels of a page and of its screenshot
EVENTS = {"load": "load", "domcontentloaded": "DOMContentLoaded", "networkidle": "networkIdle"}
_LOOK_EVERY = 0.05  # seconds between checks for the selector
_LEAVE_WITHIN = 2.0  # seconds to close a page; a browser that takes longer is ended
_PNG = b"\x89PNG\r\n\x1a\n"
_FACTS = "({title: document.title, status: performance.getEntriesByType('navigation')[0].responseStatus})"
_PATIENCE = (
    "Give a longer timeout, or wait for less: leave out wait_for_selector, or give wait_until='load' or "
    "'domcontentloaded'. Neither waits for requests that the page sends later."
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered page. All of it is untrusted."""

    url: str
    status: int = 0  # of HTTP; 0 if the browser does not say
    title: str = ""
    html: str = ""  # the document as rendered
    screenshot: bytes | None = None  # a PNG of the first screen, if asked for
    downloads: tuple[Artifact, ...] = ()


class Visit(NamedTuple):
    url: str
    selector: str | None
    wait_until: WaitUntil
    seconds: float
    screenshot: bool

    def problem(self, reason: str, message: str, remediation: str = "") -> WebUnavailable:
        """Make the error that says why there is no page."""
        return WebUnavailable(self.url, f"{self.url}: {message}", reason=reason, remediation=remediation)


class Unreached(Exception):
    """A page could not be reached. Holds the browser's message."""


class Tab:
    """One page. ``number`` names the folder of its downloads."""

    def __init__(self, pipe: CdpPipe, visit: Visit, number: int) -> None:
        self.files: dict[str, bool] = {}  # downloads by id, and whether each is over
        self.hosts = {place_of(visit.url)[0]}  # where it was, or was going
        self.awaited, self.is_left = "an answer", False  # what it waits for; whether the browser has closed it
        self._pipe, self._visit, self._folder = pipe, visit, f"{WORKSPACE}/{number}"
        self._target = self._session = self._loader = ""
        self._loaders: set[str] = set()
        self._reached: set[str] = set()  # events of the current page
        self._problem: Exception | None = None
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def open_blank(self) -> AsyncIterator[None]:
        """Open a blank page. Raises ``InvalidArgument`` for an invalid selector, and what :class:`CdpPipe` raises."""
        pipe = self._pipe
        own = part(await pipe.call("Target.attachToBrowserTarget"), "sessionId", kind=str)
        pipe.handlers[own] = self._hear
        try:
            made = await pipe.call("Target.createBrowserContext", own, disposeOnDetach=True)
            context = {"browserContextId": part(made, "browserContextId", kind=str)}
            where = {"behavior": "allow", "downloadPath": self._folder, "eventsEnabled": True}
            await pipe.call("Browser.setDownloadBehavior", own, **context, **where)
            size = {"width": WIDTH, "height": HEIGHT}
            made = await pipe.call("Target.createTarget", own, url="about:blank", **context, **size)
            self._target = part(made, "targetId", kind=str)
            made = await pipe.call("Target.attachToTarget", own, targetId=self._target, flatten=True)
            self._session = part(made, "sessionId", kind=str)
            pipe.handlers[self._session] = self._hear
            for method in ("Page.enable", "Inspector.enable"):
                await self._call(method)
            await self._call("Page.setLifecycleEventsEnabled", enabled=True)  # before it navigates
            try:
                await self._fits()
            except CdpRefused:
                told = f"{self._visit.selector:.100} is not a CSS selector, such as '#results li'"
                raise InvalidArgument("wait_for_selector", told) from None
            yield
        finally:
            for session in (own, self._session):
                pipe.handlers.pop(session, None)
            with contextlib.suppress(TimeoutError, CdpRefused, CdpEnded):
                async with asyncio.timeout(_LEAVE_WITHIN):
                    await pipe.call("Target.detachFromTarget", sessionId=own)
                    self.is_left = True

    async def take(self) -> Rendered:
        """Navigate, wait until the page is ready and its downloads are over, and return it. Raises ``Unreached``,
        ``WebUnavailable``, and what :class:`CdpPipe` raises."""
        said = await self._call("Page.navigate", url=self._visit.url)
        words = words_in(said.get("errorText"), 100)
        if said.get("isDownload") is True:
            await self._until(lambda: bool(self.files), "a download")
            rendered = Rendered(self._visit.url)
        elif words == "net::ERR_ABORTED":  # no event follows
            raise Unreached(words)
        else:
            rendered = await self._take_when_ready(part(said, "loaderId", kind=str), words)
        await self._until(lambda: all(self.files.values()), "the end of a download")
        return rendered

    def timeout(self) -> WebUnavailable:
        """Make the error that says what the page still waited for."""
        return self._visit.problem("timeout", f"{self.awaited} did not come in {self._visit.seconds:g} s", _PATIENCE)

    async def _call(self, method: str, **params: object) -> dict[str, Any]:
        return await self._pipe.call(method, self._session, **params)

    async def _until(self, holds: Callable[[], bool], awaited: str) -> None:
        while self._problem is not None or not holds():
            if self._problem is not None:
                raise self._problem
            self.awaited = awaited
            self._changed.clear()
            await self._changed.wait()

    async def _take_when_ready(self, loader: str, words: str) -> Rendered:
        """Return the page of ``loader``, or the one that it redirects to; ``words``: the error of an error page."""
        event, selector = EVENTS[self._visit.wait_until], self._visit.selector
        while True:
            await self._until(lambda: loader in self._loaders and event in self._reached, f"the event {event!r}")
            self.awaited = "its content" if selector is None else f"an element that matches {selector!r:.100}"
            try:
                await self._place(words)
                if await self._fits():
                    return await self._take_now(words)
            except CdpRefused as error:  # the page has changed meanwhile
                self.awaited = f"its content ({error})"
            await asyncio.sleep(_LOOK_EVERY)

    async def _place(self, words: str) -> str:
        """Return the page's URL. Raises ``Unreached`` for an error page, ``WebUnavailable`` if it is not http(s)."""
        frame = part(await self._call("Page.getFrameTree"), "frameTree", "frame", kind=dict)
        url = frame.get("unreachableUrl") or frame.get("url")
        try:
            self.hosts.add(place_of(place := address_in(url))[0])
        except ValueError:
            place = ""
        if not place:
            told = f"it went to {words_in(url, 100)!r}, which is not an http or https address"
            raise self._visit.problem("url", told)
        if frame.get("unreachableUrl"):
            raise Unreached(f"{words or 'it went to'} {place:.200}")
        return place

    async def _root(self) -> int:
        return part(await self._call("DOM.getDocument", depth=0), "root", "nodeId", kind=int)

    async def _fits(self) -> bool:
        if self._visit.selector is None:
            return True
        found = await self._call("DOM.querySelector", nodeId=await self._root(), selector=self._visit.selector)
        return part(found, "nodeId", kind=int) != 0

    async def _take_now(self, words: str) -> Rendered:
        self.awaited, picture = "its content", None
        html = part(await self._call("DOM.getOuterHTML", nodeId=await self._root()), "outerHTML", kind=str)
        said = await self._call("Runtime.evaluate", expression=_FACTS, returnByValue=True)
        facts = value if isinstance(value := part(said, "result", kind=dict).get("value"), dict) else {}
        if self._visit.screenshot:
            said = await self._call("Page.captureScreenshot", format="png", optimizeForSpeed=True)
            picture = base64.b64decode(part(said, "data", kind=str))
            if not picture.startswith(_PNG):
                raise Nonsense("its picture is not a PNG")
        status = facts["status"] if type(facts.get("status")) is int and 100 <= facts["status"] <= 999 else 0
        return Rendered(await self._place(words), status, words_in(facts.get("title")), html, picture)

    def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        """Handle an event of the tab's sessions. Raises ``Nonsense``."""
        match method:
            case "":
                self._problem = CdpEnded(self._pipe.why_ended)
            case "Inspector.targetCrashed":
                self._problem = self._visit.problem("crash", "its process in the browser has crashed")
            case "Page.lifecycleEvent" if params.get("frameId") == self._target:
                loader, name = part(params, "loaderId", kind=str), part(params, "name", kind=str)
                if name == "init":
                    self._loader, self._reached = loader, set()
                    self._loaders.add(loader)
                elif loader == self._loader:
                    self._reached.add(name)
            case "Page.javascriptDialogOpening":
                self._pipe.tell("Page.handleJavaScriptDialog", self._session, accept=False)
            case "Browser.downloadWillBegin":
                self.files[part(params, "guid", kind=str)] = False
            case "Browser.downloadProgress" if params.get("state") != "inProgress":
                self.files[part(params, "guid", kind=str)] = True
        self._changed.set()
