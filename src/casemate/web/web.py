"""``sandbox.web``: search, fetch pages, browse."""

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
_SEARCH_WITHIN = 60.0  # seconds for all engines; each has ten
_MOST_KEPT, _MOST_KEPT_TEXT = 256, 8 << 20  # cached pages, and characters of all of them
_MOST_VALIDATOR = 300  # characters
_ROBOTS: tuple[Robots, ...] = ("allowed", "disallowed", "unknown")


@dataclass(frozen=True, slots=True)
class _KeptPage:
    """A cached page of one caller, with the validators for conditional requests (RFC 9110, section 13)."""

    page: WebPage
    etag: str
    modified: str


class Web:
    """Web access for agents, under the sandbox's network rules.

    Each method raises ``InvalidArgument``, which names the argument; ``Denied`` if a network rule or an approver
    refuses a host; ``Unavailable`` if a package or the browser is missing; ``WebUnavailable`` if there is no page, with
    a stable word as ``reason``; and what :meth:`casemate.Sandbox.run` raises.
    """

    def __init__(
        self,
        context: Callable[[], ExecutionContext],
        hosts: Callable[[], HostRules | None],
        slot: Callable[[], AbstractAsyncContextManager[object]],
        namespace: str,
        terms: Mapping[str, Any] | None,
    ) -> None:
        """``hosts``: returns what the caller may reach, which for a cell can be less than the sandbox may; ``slot``:
        opens a slot for one cell; ``terms``: the policy's ``web`` section."""
        self._sandbox_context, self._hosts = context, hosts
        self._slot = slot
        self._namespace = namespace
        self._engines = None if terms is None else Engines(terms)
        self._kept: OrderedDict[tuple[str, str, bool], _KeptPage] = OrderedDict()
        self._browsers: Browsers | None = None

    @operation(audience=Audience.AGENT)
    async def search(self, query: Query, *, limit: Hits = 10) -> list[SearchHit]:
        """Search the web: the operator's SearXNG first, then the engines that the policy lists, until one has hits.

        The search runs in its own cell, which reaches only these hosts. An engine that failed is skipped for a while.

        Args:
            query: The search terms.
            limit: The maximum number of hits, from 1 to 100.

        Returns:
            The hits in the engine's order; empty if nothing was found.

        Raises:
            Unavailable: The policy has no ``web`` section, or a package is missing.
            WebUnavailable: No engine answered; the message has the error of each.
        """
        if not isinstance(query, str) or not query.strip() or len(query) > _MOST_QUERY:
            raise InvalidArgument("query", f"give 1 to {_MOST_QUERY} characters")
        if type(limit) is not int or not 1 <= limit <= _MOST_HITS:
            raise InvalidArgument("limit", f"{limit!r} is not a whole number from 1 to {_MOST_HITS}")
        engines, context = self._engines, self._context()
        if engines is None:
            raise Unavailable("this sandbox cannot search: its policy has no web section", remediation=_HOW_TO_SEARCH)
        if context.hosts is None:
            raise Denied("this sandbox has no network, so it cannot search")
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
        """Fetch a page and convert it to text. Redirects are under the same network rules as the first URL.

        An approver decides about a host that no rule covers; without an approver it is denied.

        Args:
            url: An http or https URL without credentials.
            whole: Return all of an HTML page, with menus and comments, not only its main content.
            timeout: Time limit in seconds, not counting the wait for an approval.

        Returns:
            The page, for any HTTP status.
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
        """Render a page in a headless browser in a cell, and convert it to text.

        Args:
            url: An http or https URL without credentials.
            wait_for_selector: A CSS selector; the page is ready when an element matches it.
            wait_until: ``"load"``, ``"domcontentloaded"``, or ``"networkidle"`` for no requests during half a second.
            timeout: Time limit in seconds, not counting the wait for an approval.
            screenshot: Whether to take a screenshot.

        Returns:
            The page, with its downloads.
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
        return replace(self._sandbox_context(), hosts=self._hosts())

    async def close(self) -> None:
        """End the browsers and clear the cache."""
        self._kept.clear()
        if self._browsers is not None:
            await self._browsers.close()

    def _page_in(
        self, said: Mapping[str, Any], url: str, key: tuple[str, str, bool], kept: _KeptPage | None
    ) -> WebPage:
        robots: Robots = next((one for one in _ROBOTS if one == said.get("robots")), "unknown")
        if said.get("unchanged") is True and kept is not None:
            self._kept.move_to_end(key)
            return replace(kept.page, robots=robots, from_cache=True)
        status, final = said.get("status"), address_in(said.get("final_url"))
        if type(status) is not int or not 100 <= status <= 999 or not final or said.get("unchanged"):
            raise WebUnavailable(url, f"{url}: the program that reads it returned no page", reason="unreadable")
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
