"""Results from the web: search hits, fetched pages, and pages rendered by a browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from casemate.model.execution import Download

Robots = Literal["allowed", "disallowed", "unknown"]
WaitUntil = Literal["load", "domcontentloaded", "networkidle"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One search result, found by ``engine``. All of it is untrusted text."""

    title: str
    url: str
    snippet: str
    engine: str


@dataclass(frozen=True, slots=True)
class WebLink:
    """A link in a page, with its absolute address."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class WebPage:
    """A fetched page. All of it except ``url`` is untrusted text.

    Attributes:
        url: The requested address.
        final_url: The address after redirects.
        status: Of HTTP; a page with 404 has a text, too.
        media_type: From the server, without parameters; ``""`` if it sends none.
        text: Markdown of an HTML page's main content, or of all of it; text of a PDF; other text unchanged.
        links: The first of those in ``text``; only absolute addresses with http and https.
        robots: What the host's robots.txt says to programs about this address. It is reported, not obeyed.
        from_cache: Whether the server said that it has not changed since the caller last fetched it.
        truncated: Whether ``text`` is cut.
    """

    url: str
    final_url: str
    status: int
    media_type: str
    title: str
    text: str
    links: tuple[WebLink, ...] = ()
    robots: Robots = "unknown"
    from_cache: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class BrowsedPage:
    """A page as a browser rendered it. All of it except ``url`` is untrusted.

    Attributes:
        url: The requested address.
        final_url: The browser's last address.
        status: Of HTTP; 0 if the browser does not report it.
        text: Markdown of the main content.
        links: The first of those in ``text``.
        screenshot: A PNG picture, if it was requested.
        downloads: Files that the page downloaded.
        truncated: Whether ``text`` is cut.
    """

    url: str
    final_url: str
    status: int
    title: str
    text: str
    links: tuple[WebLink, ...] = ()
    screenshot: bytes | None = field(default=None, repr=False, metadata={"in_document": True})
    downloads: tuple[Download, ...] = ()
    truncated: bool = False
