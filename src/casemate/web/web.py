"""``sandbox.web``: searches, pages, and pages in a browser."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from casemate.errors import Denied, InvalidArgument, Unavailable, WebUnavailable
from casemate.execution.admit import deadline_of
from casemate.execution.request import check_timeout
from casemate.model.call_options import USUAL_PAGE_SECONDS, Seconds
from casemate.model.execution import Download
from casemate.model.kinds import Address, Name
from casemate.model.operation import Audience, Between, Most, caller, operation
from casemate.model.web import BrowsedPage, Robots, SearchHit, WaitUntil, WebPage
from casemate.policy.hosts import HTTPS, HostRules
from casemate.web.cells import (
    PARSERS,
    SEARCHERS,
    ProgramOrder,
    address_in,
    checked_address,
    markdown_of,
    run_program,
    text_in,
    words_in,
)
from casemate.web.search import SEARXNG, Engines

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.web.browser import Browsers

_MOST_QUERY = 1000  # characters
_MOST_HITS = 100
_MOST_SNIPPET = 2000  # characters
Query = Annotated[str, Most(_MOST_QUERY)]
Hits = Annotated[int, Between(1, _MOST_HITS)]
_SEARCH_WITHIN = 60.0  # seconds for all engines, each of which has ten
_MOST_KEPT, _MOST_KEPT_TEXT = 256, 8 << 20  # pages, and characters of them all
_MOST_VALIDATOR = 300  # characters
_ROBOTS: tuple[Robots, ...] = ("allowed", "disallowed", "unknown")


@dataclass(frozen=True, slots=True)
class _KeptPage:
    """A page of one caller's, and by what its server knows whether it has changed."""

    page: WebPage
    etag: str
    modified: str


class Web:
    """What agents may have of the web, under the network rules of the sandbox.

    Each method raises ``InvalidArgument``, which names the argument; ``Denied`` if a rule of the network or an approver
    does not permit a host; ``Unavailable`` if a package or the browser is missing; ``WebUnavailable``, whose ``reason``
    is a stable word, if there is no page; and what :meth:`casemate.Sandbox.run` raises.
    """

    def __init__(
        self,
        context: Callable[[], ExecutionContext],
        hosts: Callable[[], HostRules | None],
        slot: Callable[[], AbstractAsyncContextManager[object]],
        namespace: str,
        terms: Mapping[str, Any] | None,
    ) -> None:
        """``hosts``: what the caller may reach, which is less than the sandbox where a cell calls; ``slot``: a turn for
        one cell; ``terms``: ``web`` of the policy."""
        self._sandbox_context, self._hosts = context, hosts
        self._slot = slot
        self._namespace = namespace
        self._engines = None if terms is None else Engines(terms)
        self._kept: OrderedDict[tuple[str, str, bool], _KeptPage] = OrderedDict()
        self._browsers: Browsers | None = None

    @operation(audience=Audience.AGENT)
    async def search(self, query: Query, *, limit: Hits = 10) -> list[SearchHit]:
        """Search the web: the operator's SearXNG first, then the engines that the policy lists, until one has hits.

        Only these hosts are reached, in a cell of its own. An engine that failed is left alone for a while.

        Args:
            query: The words.
            limit: How many hits at most, from 1 to 100.

        Returns:
            The hits in the engine's order; none where nothing was found.

        Raises:
            Unavailable: The policy has no ``web`` section, or a package is missing.
            WebUnavailable: No engine has answered; it names what each said.
        """
        if not isinstance(query, str) or not query.strip() or len(query) > _MOST_QUERY:
            raise InvalidArgument("query", f"give 1 to {_MOST_QUERY} characters")
        if type(limit) is not int or not 1 <= limit <= _MOST_HITS:
            raise InvalidArgument("limit", f"{limit!r} is not a whole number from 1 to {_MOST_HITS}")
        engines, context = self._engines, self._context()
        if engines is None:
            raise Unavailable(
                "this sandbox searches nowhere: its policy has no web section", remediation=_HOW_TO_SEARCH
            )
        if context.hosts is None:
            raise Denied("this sandbox has no network, so it searches nowhere")
        of_sandbox = self._sandbox_context().hosts
        own = context.hosts._replace(within=context.hosts.within[len(of_sandbox.within) if of_sandbox else 0 :])
        known = engines.order()
        names = [
            name for name in known if not any(own.beyond(at.host, at.port or HTTPS) for at in engines.hosts([name]))
        ]
        if known and not names:
            raise Denied("the allowed_domains of this run or session name no host of a search engine")
        if not names:
            raise WebUnavailable("", f"every engine has failed lately: {engines.reasons()}", reason="search")
        hosts = HostRules(engines.hosts(names), context.hosts.denied, private=context.hosts.private)
        told = {"engines": names, "searxng": engines.searxng, "query": query, "limit": limit}
        modules = SEARCHERS if names != [SEARXNG] else ()
        order = ProgramOrder(
            "web_search", modules, f"search: {query[:100]}", told, min(_SEARCH_WITHIN, context.limits.wall)
        )
        async with self._slot():
            said = await run_program(order, replace(context, hosts=hosts, asks=False), self._namespace)
        hits = _hits_in(said.get("hits"), limit)
        failed, empty = said.get("failed"), said.get("empty")
        told_failed = {
            name: words_in(failed[name], 300) for name in names if isinstance(failed, dict) and name in failed
        }
        answered = [name for name in names if isinstance(empty, list) and name in empty]
        tried = len(told_failed) + len(answered)
        engines.note(told_failed, [*answered, *(names[tried : tried + 1] if hits else ())])
        if not hits and not answered:
            raise WebUnavailable("", f"no engine has answered: {engines.reasons()}", reason="search")
        return hits

    @operation(audience=Audience.AGENT)
    async def fetch(self, url: Address, *, whole: bool = False, timeout: Seconds = USUAL_PAGE_SECONDS) -> WebPage:  # noqa: ASYNC109
        """Fetch a page, and make text of it. Each redirect is under the same rules of the network as the first address.

        What may not be reached without asking is asked about; nothing is allowed unless the sandbox says so.

        Args:
            url: An address of http or https, without credentials.
            whole: All of an HTML page, menus and comments included, not its main content alone.
            timeout: Seconds that it may take, not counted while somebody is asked.

        Returns:
            The page, whatever the server's status.
        """
        checked_address(url)
        context, key = self._context(), (caller(), url, whole is True)
        seconds = deadline_of(context.limits, check_timeout(timeout))
        kept = self._kept.get(key)
        known = {"url": kept.page.final_url, "etag": kept.etag, "modified": kept.modified} if kept else {}
        told = {"do": "fetch", "url": url, "whole": whole is True, "kept": known}
        async with self._slot():
            order = ProgramOrder("web", PARSERS, url, told, seconds)
            said = await run_program(order, context, self._namespace)
        return self._page_in(said, url, key, kept)

    @operation(audience=Audience.AGENT)
    async def browse(
        self,
        url: Address,
        *,
        wait_for_selector: Name | None = None,
        wait_until: WaitUntil = "networkidle",
        timeout: Seconds = USUAL_PAGE_SECONDS,  # noqa: ASYNC109
        screenshot: bool = False,
    ) -> BrowsedPage:
        """Open a page in a headless browser in a cell of its own, and make text of what it has rendered.

        Args:
            url: An address of http or https, without credentials.
            wait_for_selector: A CSS selector; the page is ready when something fits it.
            wait_until: ``"load"``, ``"domcontentloaded"``, or ``"networkidle"`` for no requests during half a second.
            timeout: Seconds that it may take.
            screenshot: Whether to take a picture of it.

        Returns:
            The page, with what it has downloaded.
        """
        if self._browsers is None:
            from casemate.web.browser import Browsers

            self._browsers = Browsers(self._context, self._namespace)
        seconds = deadline_of(self._context().limits, check_timeout(timeout))
        page = await self._browsers.browse(
            url, wait_for_selector=wait_for_selector, wait_until=wait_until, timeout=seconds,
            screenshot=screenshot is True,
        )  # fmt: skip
        async with self._slot():
            text = await markdown_of(page.html, page.url, self._context(), self._namespace)
        return BrowsedPage(
            url, page.url, page.status, page.title, text.text, text.links, page.screenshot,
            tuple(Download(one.name, one.size, one.sha256, one.media_type, one.content) for one in page.downloads),
            text.truncated,
        )  # fmt: skip

    def _context(self) -> ExecutionContext:
        """The terms of a call: the sandbox's, with the caller's own hosts."""
        return replace(self._sandbox_context(), hosts=self._hosts())

    async def close(self) -> None:
        """End the browsers, and forget what was kept."""
        self._kept.clear()
        if self._browsers is not None:
            await self._browsers.close()

    def _page_in(
        self, said: Mapping[str, Any], url: str, key: tuple[str, str, bool], kept: _KeptPage | None
    ) -> WebPage:
        """The page that a program says it found."""
        robots: Robots = next((one for one in _ROBOTS if one == said.get("robots")), "unknown")
        if said.get("unchanged") is True and kept is not None:
            self._kept.move_to_end(key)
            return replace(kept.page, robots=robots, from_cache=True)
        status, final = said.get("status"), address_in(said.get("final_url"))
        if type(status) is not int or not 100 <= status <= 999 or not final or said.get("unchanged"):
            raise WebUnavailable(url, f"{url}: what was to read it has given no page", reason="unreadable")
        title, text, links, truncated = text_in(said)
        kind = words_in(said.get("media_type"), 100)
        page = WebPage(url, final, status, kind, title, text, links, robots, truncated=truncated)
        self._keep(key, page, said.get("validators"))
        return page

    def _keep(self, key: tuple[str, str, bool], page: WebPage, validators: Any) -> None:
        self._kept.pop(key, None)
        pair = validators if isinstance(validators, list) and len(validators) == 2 else ["", ""]
        etag, modified = (
            one if isinstance(one, str) and len(one) <= _MOST_VALIDATOR and one.isascii() and one.isprintable() else ""
            for one in pair
        )
        if page.status == 200 and (etag or modified):
            self._kept[key] = _KeptPage(page, etag, modified)
        while len(self._kept) > _MOST_KEPT or sum(len(one.page.text) for one in self._kept.values()) > _MOST_KEPT_TEXT:
            self._kept.popitem(last=False)


_HOW_TO_SEARCH = (
    'Give it a policy with a SearXNG, or with engines: {"web": {"searxng": "https://searx.example.org"}}, or '
    '{"web": {"engines": ["duckduckgo", "mojeek"]}}.'
)


def _hits_in(said: object, limit: int) -> list[SearchHit]:
    """The hits that a program says it found."""
    return [
        SearchHit(
            words_in(one.get("title")),
            url,
            words_in(one.get("snippet"), _MOST_SNIPPET),
            words_in(one.get("engine"), 100),
        )
        for one in (said if isinstance(said, list) else [])[:limit]
        if isinstance(one, dict) and (url := address_in(one.get("url")))
    ]
