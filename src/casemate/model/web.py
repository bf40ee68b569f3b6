"""What the web gave: hits of a search, a page that was fetched, and one that a browser has rendered. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from casemate.model.execution import Artifact

Robots = Literal["allowed", "disallowed", "unknown"]
WaitUntil = Literal["load", "domcontentloaded", "networkidle"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result of a search; ``engine`` found it. All of it is a stranger's text."""

    title: str
    url: str
    snippet: str
    engine: str


@dataclass(frozen=True, slots=True)
class WebLink:
    """A link of a page, with its whole address."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page that was fetched. All of it but ``url`` is a stranger's text.

    Attributes:
        url: What was asked for.
        final_url: Where it was, after redirects.
        status: Of HTTP; a page with 404 has a text, too.
        media_type: As the server says, without parameters; ``""`` where it does not.
        text: Markdown of an HTML page's main content, or of all of it; text of a PDF; other text as it is.
        links: The first of those in ``text``, whole addresses of http and https only.
        robots: What the host's robots.txt says of this address to programs. It is told, and not obeyed.
        from_cache: The server said that it has not changed since the caller fetched it last.
        truncated: ``text`` is not all of it.
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
    """A page as a browser has rendered it. All of it but ``url`` is a stranger's.

    Attributes:
        url: What was asked for.
        final_url: Where the browser was in the end.
        status: Of HTTP; 0 where the browser does not say.
        text: Markdown of the main content.
        links: The first of those in ``text``.
        screenshot: A picture in PNG, where it was asked for.
        downloads: Files that the page has downloaded.
        truncated: ``text`` is not all of it.
    """

    url: str
    final_url: str
    status: int
    title: str
    text: str
    links: tuple[WebLink, ...] = ()
    screenshot: bytes | None = field(default=None, repr=False)
    downloads: tuple[Artifact, ...] = ()
    truncated: bool = False
