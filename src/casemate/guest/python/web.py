"""Fetches a page, or takes HTML, and converts it to text in a cell. Input and output are one JSON document each.

A hostile page can make parsers overflow, take very long or use all memory; the host learns that from how this process
ends. Each connection, even for a redirect, goes through the cell's network and its rules.
"""

import codecs
import http.client
import json
import re
import signal
import ssl
import sys
import zlib
from urllib.parse import quote, urldefrag, urljoin, urlsplit
from urllib.robotparser import RobotFileParser

TYPE_CHECKING = False  # importing typing takes time
if TYPE_CHECKING:
    from typing import Any

_MOST_BODY = 8 << 20  # bytes that a server sends
_MOST_DECODED = 16 << 20  # bytes after decoding
_MOST_TEXT = 1_000_000  # characters
_MOST_LINKS = 500
_MOST_REDIRECTS = 10
_MOST_PAGES = 1000  # of a PDF
_MOST_ROBOTS = 512 << 10  # bytes; more need not be read (RFC 9309)
_ROBOTS_WITHIN = 5
_MOST_DRAINED = 64 << 10  # bytes of a redirect's body, read to reuse its connection
_PROXY = ("198.18.0.1", 3128)  # the egress proxy; it connects to any name and port that is allowed
_AGENT = "casemate"
_HEADERS = {
    "User-Agent": f"{_AGENT}/1.0",
    "Accept": "text/html,application/xhtml+xml,application/pdf;q=0.9,text/*;q=0.8,application/json;q=0.8,*/*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
}
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|javascript)\Z|application/x-(?:ndjson|yaml)\Z")
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_LINK = re.compile(r"(?<!!)\[([^\[\]]{0,500})\]\(<?(https?://[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)")
_RELATIVE = re.compile(r"href\s*=\s*[\"']?\s*(?![\s\"'#]|[a-z][a-z0-9+.-]*:|/(?!/))", re.IGNORECASE)
_SHORT = 500  # characters
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class PageProblem(Exception):
    """Why there is no page: a code, a message, and the address that failed."""

    def __init__(self, reason: str, message: str, url: str = "") -> None:
        super().__init__(message)
        self.answer = {"problem": reason, "message": message, "url": url}


def main() -> None:
    """Read the order, carry it out, and print the result."""
    order = json.loads(sys.stdin.buffer.read())
    try:
        answer = {"fetch": fetch, "convert": convert}[order["do"]](order)
    except PageProblem as problem:
        answer = problem.answer
    sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


# -- over HTTP


class Connections:
    """HTTP requests in turn. Reuses the connection to the same server, because a new one may need approval."""

    def __init__(self) -> None:
        self._connection: "http.client.HTTPConnection | None" = None
        self._origin: "tuple[str, str, int] | None" = None

    def get(self, url: str, headers: "dict[str, str]", *, reconnect: bool = True) -> http.client.HTTPResponse:
        """Send one request. ``reconnect`` permits a new connection. Raises :class:`PageProblem`."""
        origin, target = split(url)
        is_open = self._connection is not None and self._connection.sock is not None
        if origin != self._origin or not is_open:
            if not reconnect:
                raise PageProblem("connect", "the connection is closed", url)
            self.close()
            kind = http.client.HTTPSConnection if origin[0] == "https" else http.client.HTTPConnection
            self._connection, self._origin = kind(*_PROXY), origin
            self._connection.set_tunnel(*origin[1:])
        assert self._connection is not None
        try:
            self._connection.request("GET", target, headers={**_HEADERS, **headers})
            return self._connection.getresponse()
        except ssl.SSLError as error:
            raise PageProblem(
                "tls", f"no secure connection: {getattr(error, 'verify_message', '') or error}", url
            ) from None
        except (OSError, http.client.NotConnected, http.client.RemoteDisconnected) as error:
            raise PageProblem("connect", f"no connection: {getattr(error, 'strerror', None) or error}", url) from None
        except (http.client.HTTPException, ValueError) as error:
            raise PageProblem("protocol", f"no answer in HTTP: {type(error).__name__} {error}"[:300], url) from None

    def close(self) -> None:
        """Close the connection, if any."""
        if self._connection is not None:
            self._connection.close()


def split(url: str) -> "tuple[tuple[str, str, int], str]":
    """Split into (scheme, host, port) and the request target. Raises :class:`PageProblem`."""
    try:
        parts = urlsplit(url)
        name, port = parts.hostname or "", parts.port
        host = name.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        raise PageProblem("url", "is not a valid address", url) from None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        raise PageProblem("url", "leads to an address that is not http(s), or has credentials", url)
    target = quote(parts.path or "/", safe="/%:=&~+!$,;'@()*") + (
        f"?{quote(parts.query, safe='/%:=&?~+!$,;@()*[]|')}" if parts.query else ""
    )
    return (parts.scheme, host, port or (443 if parts.scheme == "https" else 80)), target


def fetch(order: "dict[str, Any]") -> "dict[str, Any]":
    """Fetch ``url`` as text, unless the host's copy is current. Raises :class:`PageProblem`."""
    connections, url = Connections(), urldefrag(order["url"]).url
    response, url = follow(connections, url, order["kept"])
    page: "dict[str, Any]" = {"final_url": url, "status": response.status}
    if response.status == http.client.NOT_MODIFIED:
        response.read()
        return {**page, "unchanged": True, "robots": robots_of(connections, url)}
    declared = response.headers.get_content_type() if "content-type" in response.headers else ""
    charset = response.headers.get_content_charset() or ""
    if declared and not (declared in (*_HTML, "application/pdf") or _PLAIN.match(declared)):
        raise PageProblem("wrong_type", f"is {declared}, of which no text can be made", url)
    data = read_body(response, url)
    page["robots"] = robots_of(connections, url)
    connections.close()
    page["validators"] = [response.headers.get("etag", ""), response.headers.get("last-modified", "")]
    page["media_type"] = kind = declared or sniff(data, url)
    if kind == "application/pdf":
        return {**page, **text_of_pdf(data, url)}
    text = decode(data, charset, is_html=kind in _HTML)
    return {**page, **(text_of_html(text, url, whole=order["whole"]) if kind in _HTML else cut_text("", text))}


def follow(connections: Connections, url: str, kept: "dict[str, str]") -> "tuple[http.client.HTTPResponse, str]":
    """Follow redirects. Returns the final response and its URL. ``kept``: the host's copy and its validators."""
    for _ in range(_MOST_REDIRECTS + 1):
        headers = {}
        if kept.get("url") == url:
            pairs = (("If-None-Match", kept["etag"]), ("If-Modified-Since", kept["modified"]))
            headers = {name: value for name, value in pairs if value}
        response = connections.get(url, headers)
        place = response.headers.get("location")
        if response.status not in (301, 302, 303, 307, 308) or not place:
            return response, url
        try:
            url = urldefrag(urljoin(url, place.strip())).url
        except ValueError:
            raise PageProblem("url", "is redirected to an invalid address", url) from None
        try:
            response.read(_MOST_DRAINED)
        except (OSError, http.client.HTTPException):
            connections.close()
        if not response.isclosed():
            connections.close()
    raise PageProblem("redirects", f"is redirected more than {_MOST_REDIRECTS} times", url)


def read_body(response: http.client.HTTPResponse, url: str) -> bytes:
    """Read and decode the body. Raises :class:`PageProblem`."""
    encoding = response.headers.get("content-encoding", "").strip().lower().removeprefix("x-")
    if encoding not in ("", "identity", "gzip", "deflate"):
        raise PageProblem("encoding", f"has the content-encoding {encoding[:100]!r}, which was not asked for", url)
    try:
        is_large = (response.length or 0) > _MOST_BODY
        data = b"" if is_large else response.read(_MOST_BODY + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PageProblem("protocol", f"broke off: {type(error).__name__}", url) from None
    if is_large or len(data) > _MOST_BODY:
        raise PageProblem("too_large", f"has more than {_MOST_BODY:,} bytes", url)
    if response.length:
        raise PageProblem("protocol", f"broke off {response.length:,} bytes before its end", url)
    return decompress(data, encoding, url) if data and encoding in ("gzip", "deflate") else data


def decompress(data: bytes, encoding: str, url: str) -> bytes:
    """Decompress ``data``, up to a limit. Raises :class:`PageProblem`."""
    for bits in (47, -15) if encoding == "deflate" else (47,):  # some servers send deflate without the zlib header
        decoder = zlib.decompressobj(bits)
        try:
            out = decoder.decompress(data, _MOST_DECODED + 1)
        except zlib.error:
            continue
        if len(out) > _MOST_DECODED:
            raise PageProblem("too_large", f"decodes to more than {_MOST_DECODED:,} bytes", url)
        if decoder.eof:
            return out
        break
    raise PageProblem("encoding", f"is not whole, or not {encoding} as it says", url)


def robots_of(connections: Connections, url: str) -> str:
    """Return what the server's robots.txt says about ``url``, using only the open connection."""

    def stop(*_: object) -> None:
        raise OSError("it takes too long")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_ROBOTS_WITHIN)
    try:
        response = connections.get(urljoin(url, "/robots.txt"), {"Accept-Encoding": "identity"}, reconnect=False)
        if 400 <= response.status < 500:
            return "allowed"
        if response.status != http.client.OK:
            return "unknown"
        parser = RobotFileParser()
        parser.parse(response.read(_MOST_ROBOTS).decode("utf-8", "replace").splitlines())
        return "allowed" if parser.can_fetch(_AGENT, url) else "disallowed"
    except (PageProblem, OSError, http.client.HTTPException, ValueError):
        return "unknown"
    finally:
        signal.alarm(0)


# -- from bytes to text


def sniff(data: bytes, url: str) -> str:
    """Guess the type of a body that declares none. Raises :class:`PageProblem`."""
    start = data[:1024].lstrip().lower()
    if start.startswith(b"%pdf-"):
        return "application/pdf"
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "text/html"
    if b"\0" in start:
        raise PageProblem("wrong_type", "has no type and is not text", url)
    return "text/plain"


def decode(data: bytes, charset: str, *, is_html: bool) -> str:
    """Decode by the byte order mark, the declared charset or UTF-8, else as browsers do."""
    declared = _META.search(data[:2048]) if is_html else None
    named = declared[1].decode("ascii") if declared else ""
    marks = [name for mark, name in _MARKS if data.startswith(mark)]
    for name in (*marks, charset, "utf-8" if named.lower().startswith("utf-16") else named, "utf-8"):
        try:
            return data.decode(_read_as(name)).removeprefix("\ufeff")
        except (LookupError, UnicodeError, ValueError):
            continue
    try:
        return data.decode(_read_as(charset or named or "utf-8"), "replace")
    except (LookupError, UnicodeError, ValueError):
        return data.decode("windows-1252", "replace")


def _read_as(charset: str) -> str:
    """Map a charset as browsers do: Latin-1 means windows-1252."""
    name = codecs.lookup(charset).name
    return "windows-1252" if name in ("iso8859-1", "ascii") else name


def cut_text(title: str, text: str) -> "dict[str, Any]":
    """Collect a text and its links, cut to the limits."""
    text = text.strip()
    kept = text[:_MOST_TEXT]
    found = dict.fromkeys((one[2], one[1].strip()) for one in _LINK.finditer(kept))
    links = [{"text": words, "url": url} for url, words in list(found)[:_MOST_LINKS]]
    return {"title": title, "text": kept, "links": links, "truncated": len(kept) < len(text)}


def convert(order: "dict[str, Any]") -> "dict[str, Any]":
    """Convert HTML from the order to Markdown."""
    return text_of_html(order["html"], order["url"], whole=order["whole"])


def text_of_html(text: str, url: str, *, whole: bool) -> "dict[str, Any]":
    """Convert the main content to Markdown, or the whole page if requested or if no main content is found."""
    title = main = ""
    try:
        title, main = main_text(text, url, whole=whole)
    except Exception:  # a page may break a parser in any way
        main = ""
    return cut_text(title, main or whole_text(text, url))


def main_text(text: str, url: str, *, whole: bool) -> "tuple[str, str]":
    """Return the title, and Markdown of the main content unless the ``whole`` page is requested.

    If the result is short or has no heading, trafilatura tries again with all its heuristics.
    """
    import trafilatura

    title, main = "", ""
    for is_fast in (True, False):
        tree = trafilatura.load_html(text)
        if tree is None:
            break
        title = " ".join((tree.findtext(".//title") or "").split())[:1000]
        if whole:
            break
        if _RELATIVE.search(text):  # trafilatura resolves them against the host, not the page
            tree.make_links_absolute(url, handle_failures="ignore")
        if not is_fast:
            mark_content(tree)
        found = trafilatura.extract(
            tree, url=url, output_format="markdown", include_comments=False, include_links=True,
            include_formatting=True, include_tables=True, fast=is_fast,
        ) or ""  # fmt: skip
        main = found if _HEADING.search(found) or len(found) > len(main) else main
        if len(main) > _SHORT and _HEADING.search(main):
            break
    return title, main


def mark_content(tree: "Any") -> None:
    """Make trafilatura take the element with the most text as the content, if it has headings. On a page without
    semantic markup it would keep only paragraphs."""
    weights: "dict[Any, int]" = {}
    for paragraph in tree.iter("p"):
        parent = paragraph.getparent()
        weights[parent] = weights.get(parent, 0) + len(paragraph.text_content())
    content = max(weights, key=weights.__getitem__, default=None)
    if content is not None and content.xpath(".//h1|.//h2|.//h3|.//h4"):
        content.tag, content.attrib["class"] = "div", "post"


def whole_text(text: str, url: str) -> str:
    """Convert the whole page to Markdown, including menus and comments."""
    import html2text

    why = ""
    for base in (url, ""):  # html2text may fail when it resolves a broken link
        maker = html2text.HTML2Text(baseurl=base, bodywidth=0)
        maker.unicode_snob = maker.ignore_images = maker.backquote_code_style = True
        try:
            return str(maker.handle(text))
        except Exception as error:
            why = type(error).__name__
    raise PageProblem("unreadable", f"is HTML that cannot be read ({why})", url)


def text_of_pdf(data: bytes, url: str) -> "dict[str, Any]":
    """Extract the text of a PDF, page by page. Raises :class:`PageProblem`."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
        pages = []
        for number in range(min(len(document), _MOST_PAGES)):
            pages.append(document[number].get_textpage().get_text_range().replace("\r\n", "\n"))
            if sum(map(len, pages)) > _MOST_TEXT:
                break
        title = str(document.get_metadata_dict().get("Title", ""))[:1000]
    except pypdfium2.PdfiumError as error:
        raise PageProblem("unreadable", f"is a PDF that cannot be read: {error}", url) from None
    found = cut_text(title, "\n\n".join(pages))
    return {**found, "truncated": found["truncated"] or len(document) > len(pages)}
