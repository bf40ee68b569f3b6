"""Pages of a simple index: read as an index sends them, and written for installers with addresses at the gateway.

Sources: PEP 503 and 691 (pages), 592 (yanked), 658 and 714 (metadata), 700 (sizes).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "text/html"
ACCEPT = f"{JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_MOST_FILES = 50_000
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadPage(ValueError):
    """An index sent an invalid page."""


@dataclass(frozen=True, slots=True)
class PageLink:
    """A file that a page links to."""

    filename: str
    url: str
    sha256: str = ""  # empty if the page does not state it
    size: int | None = None  # in bytes, None if the page does not state it
    requires_python: str | None = None
    yanked: str | bool = False  # the reason; True if none is given
    # SHA-256 of the metadata file, at ``url`` plus ``.metadata``; empty if not stated, None if there is no such file.
    metadata: str | None = None
    page: str = ""  # the address of the page
    algorithm: str = "sha256"
    # The hash by ``algorithm``, if the page states that instead of a SHA-256.
    digest: str = ""

    @property
    def is_wheel(self) -> bool:
        """Whether it is installed without running its code."""
        return self.filename.endswith(".whl")

    @property
    def is_source(self) -> bool:
        """Whether it has to be built."""
        return self.filename.endswith((".tar.gz", ".zip"))


def read(body: bytes, media_type: str, url: str) -> list[PageLink]:
    """The links of the page at ``url``, without unusable ones. Raises :class:`BadPage`."""
    try:
        found = _of_json(body, url) if "json" in media_type else _of_html(body, url)
    except BadPage:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, AssertionError) as error:
        raise BadPage(f"the page at {urlsplit(url).hostname} cannot be read: {type(error).__name__}") from None
    return [link for link in found if _FILENAME.fullmatch(link.filename) and _is_address(link.url)]


def write(name: str, links: Iterable[tuple[PageLink, str]], *, as_json: bool) -> bytes:
    """Write a page of ``links``, each with its path at the gateway."""
    return _json_of(name, links) if as_json else _html_of(name, links)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def _check_number(files: int) -> None:
    if files > _MOST_FILES:
        raise BadPage(f"the page lists more than {_MOST_FILES} files")


def _of_json(body: bytes, url: str) -> list[PageLink]:
    files = json.loads(body)["files"]
    _check_number(len(files))
    return [_link_of(file, url) for file in files]


def _link_of(file: dict[str, Any], url: str) -> PageLink:
    size, yanked, python = file.get("size"), file.get("yanked", False), file.get("requires-python")
    metadata = file.get("core-metadata", file.get("dist-info-metadata", False))
    return PageLink(
        filename=str(file["filename"]),
        url=urldefrag(urljoin(url, str(file["url"]))).url,
        sha256=_sha256_in(file.get("hashes")),
        size=size if isinstance(size, int) and not isinstance(size, bool) and size >= 0 else None,
        requires_python=python if isinstance(python, str) else None,
        yanked=yanked if isinstance(yanked, str | bool) else False,
        metadata=_sha256_in(metadata) if metadata else None,
        page=url,
    )


def _sha256_in(hashes: object) -> str:
    found = hashes.get("sha256") if isinstance(hashes, dict) else None
    return found.lower() if isinstance(found, str) and _SHA256.fullmatch(found.lower()) else ""


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "base" and not self.base:
            self.base = dict(attrs).get("href") or ""
        elif tag == "a":
            self.found.append(dict(attrs))
            _check_number(len(self.found))


def _of_html(body: bytes, url: str) -> list[PageLink]:
    parser = _Anchors()
    parser.feed(body.decode("utf-8", "replace"))
    base = urljoin(url, parser.base)
    return [_link_at(anchor, base, url) for anchor in parser.found if anchor.get("href")]


def _link_at(anchor: dict[str, str | None], base: str, url: str) -> PageLink:
    address, fragment = urldefrag(urljoin(base, anchor["href"] or ""))
    algorithm, _, digest = fragment.partition("=")
    said = next((anchor[key] for key in ("data-core-metadata", "data-dist-info-metadata") if key in anchor), None)
    metadata = None if said is None else _sha256_in(dict([said.partition("=")[::2]]))
    return PageLink(
        filename=unquote(urlsplit(address).path.rpartition("/")[2]),
        url=address,
        sha256=_sha256_in({algorithm: digest}),
        requires_python=anchor.get("data-requires-python"),
        yanked=(anchor["data-yanked"] or True) if "data-yanked" in anchor else False,
        metadata=metadata,
        page=url,
    )


def _json_of(name: str, links: Iterable[tuple[PageLink, str]]) -> bytes:
    files = []
    for link, path in links:
        file: dict[str, Any] = {"filename": link.filename, "url": path, "yanked": link.yanked}
        file["hashes"] = {"sha256": link.sha256} if link.sha256 else {}
        if link.size is not None:
            file["size"] = link.size
        if link.requires_python is not None:
            file["requires-python"] = link.requires_python
        if link.metadata is not None:
            file["core-metadata"] = {"sha256": link.metadata} if link.metadata else True
        files.append(file)
    return json.dumps({"meta": {"api-version": "1.0"}, "name": name, "files": files}).encode()


def _html_of(name: str, links: Iterable[tuple[PageLink, str]]) -> bytes:
    quoted: Callable[[object], str] = lambda text: html.escape(str(text), quote=True)  # noqa: E731
    lines = [f"<!DOCTYPE html><html><head><title>{quoted(name)}</title></head><body>"]
    for link, path in links:
        marks = [f'href="{quoted(path + (f"#sha256={link.sha256}" if link.sha256 else ""))}"']
        if link.requires_python is not None:
            marks.append(f'data-requires-python="{quoted(link.requires_python)}"')
        if link.yanked is not False:
            marks.append(f'data-yanked="{quoted(link.yanked if isinstance(link.yanked, str) else "")}"')
        if link.metadata is not None:
            marks.append(f'data-core-metadata="{f"sha256={link.metadata}" if link.metadata else "true"}"')
        lines.append(f"<a {' '.join(marks)}>{quoted(link.filename)}</a><br>")
    return "\n".join([*lines, "</body></html>"]).encode()
