"""``web``: searches, pages, and pages in a browser."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated

from casemate.api.options import Name
from casemate.model.call_options import USUAL_PAGE_SECONDS, Seconds
from casemate.model.operation import Audience, Between, Most, Principal, called_by, operation
from casemate.model.web import SearchHit, WaitUntil, WebLink, WebPage
from casemate.operations.sessions import Group

Query = Annotated[str, Most(1000)]
Address = Annotated[str, Most(8192)]
Hits = Annotated[int, Between(1, 100)]


@dataclass(frozen=True, slots=True)
class Download:
    """A file that a page has downloaded; ``base64``: its content."""

    name: str
    size: int
    sha256: str
    media_type: str
    base64: str


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page as a browser has rendered it; ``screenshot``: a picture in PNG, as base64."""

    url: str
    final_url: str
    status: int
    title: str
    text: str
    links: tuple[WebLink, ...]
    screenshot: str | None
    downloads: tuple[Download, ...]
    truncated: bool


class WebOperations(Group):
    """The web, under the rules of the sandbox's network."""

    @operation(audience=Audience.AGENT)
    async def search(self, query: Query, *, limit: Hits = 10, principal: Principal) -> list[SearchHit]:
        """Search the web with the engines that the policy names, until one has hits.

        ``query``: the words. ``limit``: how many hits at most.
        """
        with called_by(principal):
            return await self._shared.sandbox.web.search(query, limit=limit)

    @operation(audience=Audience.AGENT)
    async def fetch(
        self,
        url: Address,
        *,
        whole: bool = False,
        timeout: Seconds = USUAL_PAGE_SECONDS,  # noqa: ASYNC109 - the cell's, not the call's
        principal: Principal,
    ) -> WebPage:
        """Fetch a page, and give its main content as Markdown, or the text of a PDF. Hosts are asked about as those of
        programs are.

        ``url``: of http or https. ``whole``: all of a page, menus and comments included. ``timeout``: seconds, not
        counted while somebody is asked.
        """
        with called_by(principal):
            return await self._shared.sandbox.web.fetch(url, whole=whole, timeout=timeout)

    @operation(audience=Audience.AGENT)
    async def browse(
        self,
        url: Address,
        *,
        wait_for_selector: Name | None = None,
        wait_until: WaitUntil = "networkidle",
        timeout: Seconds = USUAL_PAGE_SECONDS,  # noqa: ASYNC109 - the cell's, not the call's
        screenshot: bool = False,
        principal: Principal,
    ) -> RenderedPage:
        """Open a page in a headless browser, and give what it has rendered as Markdown.

        ``url``: of http or https. ``wait_for_selector``: of CSS; the page is ready when something fits it.
        ``wait_until``: what it waits for before that. ``timeout``: seconds. ``screenshot``: with a picture.
        """
        with called_by(principal):
            page = await self._shared.sandbox.web.browse(
                url, wait_for_selector=wait_for_selector, wait_until=wait_until, timeout=timeout, screenshot=screenshot
            )
        files = tuple(
            Download(one.name, one.size, one.sha256, one.media_type, _base64(one.read_bytes()))
            for one in page.downloads
        )
        picture = None if page.screenshot is None else _base64(page.screenshot)
        return RenderedPage(
            page.url, page.final_url, page.status, page.title, page.text, page.links, picture, files, page.truncated
        )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
