"""Runs casemate's own programs on hostile pages in a cell: their orders, and their untrusted answers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from casemate.errors import Denied, InvalidArgument, Unavailable, WebUnavailable
from casemate.execution import pipeline
from casemate.execution.admit import deadline_of
from casemate.execution.request import make_request
from casemate.model.call_options import USUAL_PAGE_SECONDS
from casemate.model.limits import Limits
from casemate.model.web import WebLink
from casemate.policy.hosts import HTTP, HTTPS, NO_RULE, canonical
from casemate.version import how_to_install
from casemate.visible import is_plain

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.model.execution import Execution

MOST_TEXT = 1_000_000  # characters of a page
_MOST_LINKS = 500
_MOST_ADDRESS = 8192
_MOST_WORDS = 1000
_LIMITS = Limits(memory="1GiB", output="16MiB", full_output="16MiB", disk="64MiB")
PARSERS = ("trafilatura", "html2text", "pypdfium2")  # preloaded, before a page arrives
_PRELOAD = (*PARSERS, "_casemate.web")
SEARCHERS = ("ddgs",)
_PROGRAM = "from _casemate import {0}\n{0}.main()\n"


class ProgramOrder(NamedTuple):
    program: str  # of the guest
    modules: tuple[str, ...]  # needed by the program
    url: str  # of the page, or the search: for errors and the record
    order: Mapping[str, Any]  # its input
    seconds: float  # its time limit


def checked_address(url: object) -> str:
    """Return ``url``. Raises ``InvalidArgument`` if it is not a plain http(s) URL."""
    if not isinstance(url, str) or len(url) > _MOST_ADDRESS or not is_plain(url) or " " in url:
        raise InvalidArgument("url", f"give an address such as 'https://example.org/page', not {str(url)[:200]!r}")
    try:
        host, _ = place_of(url)
    except ValueError as error:
        raise InvalidArgument("url", f"{url[:200]!r} is not a valid address: {error}") from None
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise InvalidArgument("url", f"{scheme or url[:200]!r} is not http or https; other schemes are not supported")
    if "@" in urlsplit(url).netloc:
        raise InvalidArgument("url", "contains credentials, which would be recorded; remove them")
    if not host:
        raise InvalidArgument("url", f"{url[:200]!r} names no host")
    return url


def place_of(url: str) -> tuple[str, int]:
    """Return host and port of a URL. Raises ``ValueError``."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (HTTPS if parts.scheme == "https" else HTTP)


class PageText(NamedTuple):
    title: str
    text: str
    links: tuple[WebLink, ...]
    truncated: bool


async def markdown_of(
    html: str, url: str, context: ExecutionContext, namespace: str, *, whole: bool = False
) -> PageText:
    """Convert a hostile page to Markdown in a cell without a network. ``whole``: all of it, not only its main content.
    Raises ``WebUnavailable`` if it cannot be read."""
    seconds = deadline_of(context.limits, USUAL_PAGE_SECONDS)
    order = ProgramOrder("web", PARSERS, url, {"do": "convert", "html": html, "url": url, "whole": whole}, seconds)
    return text_in(await run_program(order, replace(context, hosts=None), namespace))


async def run_program(order: ProgramOrder, context: ExecutionContext, namespace: str) -> Mapping[str, Any]:
    """Run a program and return its answer. Its cell gets nothing from the caller; ``context`` sets its network. Raises
    ``Unavailable`` if a module is missing, ``Denied`` if a host was refused, and ``WebUnavailable``."""
    if missing := [name for name in order.modules if importlib.util.find_spec(name) is None]:
        raise Unavailable(f"{', '.join(missing)} is not installed", remediation=how_to_install("web"))
    request = make_request(
        _PROGRAM.format(order.program), "python", timeout=order.seconds, stdin=json.dumps(order.order),
        namespace=namespace, metadata={"web": str(order.order.get("do", "search")), "url": order.url[:_MOST_WORDS]},
    )  # fmt: skip
    preload = _PRELOAD if order.modules == PARSERS else ()
    alone = replace(context.for_own_program(_LIMITS), environment=None, preload=preload)
    execution = await pipeline.execute(request, alone)
    if execution.status == "timeout":
        raise WebUnavailable(order.url, f"{order.url}: took longer than {order.seconds:g} s", reason="timeout")
    try:
        said = json.loads(execution.stdout) if execution.ok and not execution.truncated else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        why = execution.cause.message if execution.cause else "it gave no answer"
        raise WebUnavailable(order.url, f"{order.url}: the program that reads it failed: {why}", reason="unreadable")
    if isinstance(said.get("problem"), str) or said.get("status") == 403:
        _check_permitted(order.url, said, execution, context)
    if isinstance(said.get("problem"), str):
        place = address_in(said.get("url")) or order.url
        reason, message = words_in(said["problem"])[:40], words_in(said.get("message"))
        raise WebUnavailable(place, f"{place}: {message}", reason=reason)
    return said


def _check_permitted(url: str, said: Mapping[str, Any], execution: Execution, context: ExecutionContext) -> None:
    """Raise ``Denied`` if the network's rules or an approver are why there is no page."""
    for one in execution.crossings:
        if one.decision == "denied":
            raise Denied(f"{one.host}{f':{one.port}' if one.port else ''}: {one.reason}", remediation=HOW_TO_ALLOW)
    if said.get("problem") != "connect":
        return
    host, port = place_of(address_in(said.get("url")) or url)
    if context.hosts is None or not (
        context.hosts.allows(canonical(host) or host, port) or context.may_ask(stream=False)
    ):
        none = "this sandbox has network='none'" if context.hosts is None else NO_RULE
        raise Denied(f"{host}:{port}: {none}", remediation=HOW_TO_ALLOW)


HOW_TO_ALLOW = (
    "The sandbox or the service can allow hosts by allowed_domains, network: public, rules or an approver, and this "
    "machine's own services by allow_local."
)


# -- parts of untrusted answers, within bounds


def words_in(value: object, most: int = _MOST_WORDS) -> str:
    """Return a text as one line; empty for anything else."""
    return " ".join(value[:most].split()) if isinstance(value, str) else ""


def address_in(value: object) -> str:
    """Return an http(s) URL; empty for anything else."""
    if not isinstance(value, str) or len(value) > _MOST_ADDRESS or not is_plain(value):
        return ""
    return value if value.startswith(("http://", "https://")) else ""


def text_in(said: Mapping[str, Any]) -> PageText:
    """Return the text of a page, and its links."""
    text, links = said.get("text"), said.get("links")
    found = [
        WebLink(words_in(one.get("text")), url)
        for one in (links if isinstance(links, list) else [])[:_MOST_LINKS]
        if isinstance(one, dict) and (url := address_in(one.get("url")))
    ]
    kept = text[:MOST_TEXT] if isinstance(text, str) else ""
    return PageText(words_in(said.get("title")), kept, tuple(found), said.get("truncated") is True)
