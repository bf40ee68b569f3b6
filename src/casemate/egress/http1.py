"""HTTP/1.1 requests, parsed strictly and rewritten, and answers, followed to their end (RFC 9112). Pure, sans-io.

Some input that h11 accepts is refused first: bare LF or CR, folded lines, NUL, a length together with an encoding. The
server gets the parsed request, not the cell's bytes, so that both sides agree on its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import h11

MOST_HEAD = 1 << 15  # bytes of a request line and its header fields
MOST_ANSWER_HEAD = 1 << 17  # bytes of a status line and its header fields
_MOST_FIELDS = 256
_MOST_ANSWER_FIELDS = 1000
_MOST_AT_ONCE = 1 << 16  # bytes of a body in one step
_MOST_LINES = 512  # lines in one step: the cost of chunks and trailers depends on their number
_MOST_FRAMING = 1 << 13  # bytes of a chunk's first line, or of all trailers
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n|\0|\r\n[ \t]|\A[\r\n \t]")
_BEGINS = b"HTTP/1."
_AUTHORITY = re.compile(rb"([^:@/?#\\\[\]]+)(?::([0-9]{1,5}))?\Z")
_URL = re.compile(rb"http://([^/?#]*)(/[^#]*|\?[^#]*)?\Z", re.IGNORECASE)
_END_OF_HEAD = re.compile(rb"\n\r?\n")  # the same as h11's
_ORIGIN = re.compile(rb"/[^#]*\Z")
# Fields of one connection, or rewritten below.
_NOT_PASSED_ON = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te"),
    *(b"trailer", b"host", b"content-length", b"transfer-encoding", b"upgrade", b"http2-settings"),
}


class BadRequest(ValueError):
    """The request is invalid or ambiguous."""


class BadAnswer(ValueError):
    """The answer is invalid."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The parsed head of a request."""

    method: str
    path: str  # for the server, with its query
    version: bytes
    host: str  # of the Host field
    port: int | None  # of the Host field
    url_host: str | None  # of a target that is a URL or, for CONNECT, an authority
    url_port: int | None
    fields: tuple[tuple[bytes, bytes], ...]
    length: int | None  # bytes of the body, None if it is chunked
    upgrades: bool
    closes: bool
    size: int  # bytes of the head

    def passed_on(self) -> list[tuple[bytes, bytes]]:
        """Return the fields that do not belong to the connection."""
        return [(name, value) for name, value in self.fields if name.lower() not in _NOT_PASSED_ON]

    def serialize(self, authority: str, fields: list[tuple[bytes, bytes]]) -> bytes:
        """Return the head for the server ``authority``, a name with any unusual port, with ``fields``."""
        lines = [b"%s %s HTTP/%s" % (self.method.encode(), self.path.encode(), self.version)]
        lines.append(b"Host: " + authority.encode())
        lines += [name + b": " + value for name, value in fields if name.lower() not in _NOT_PASSED_ON]
        if self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.length or self.method in ("POST", "PUT", "PATCH"):
            lines.append(b"Content-Length: %d" % self.length)
        if self.upgrades:
            lines.append(b"Upgrade: websocket\r\nConnection: Upgrade")
        else:
            lines.append(b"Connection: close" if self.closes else b"Connection: keep-alive")
        return b"\r\n".join(lines) + b"\r\n\r\n"


class RequestReader:
    """Parses one request: its head, then its body."""

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_FRAMING)
        self._chunked = False
        self.watch: Callable[[bytes], None] | None = None  # gets each parsed part of the body

    def head(self, data: bytes) -> HttpRequest | None:
        """Parse the head at the start of ``data``; None if it is incomplete. Raises :class:`BadRequest`."""
        end = data.find(b"\r\n\r\n")
        head = data[: end + 4 if end >= 0 else len(data)]
        if len(head) > MOST_HEAD:
            raise BadRequest(f"its head has more than {MOST_HEAD} bytes")
        if _BARE.search(head if end >= 0 else head.rstrip(b"\r")):
            raise BadRequest("a line of its head does not end, or begins, as a line must")
        if head.count(b"\n") > _MOST_FIELDS + 2:
            raise BadRequest(f"more than {_MOST_FIELDS} header fields")
        if end < 0:
            return None
        try:
            self._h11.receive_data(head)
            event = self._h11.next_event()
        except h11.RemoteProtocolError:  # h11's message may contain the client's text
            raise BadRequest("its head is not valid HTTP/1.1 (RFC 9112)") from None
        if not isinstance(event, h11.Request):
            raise BadRequest("not a request")
        request = _check_request(event, len(head))
        self._chunked = request.length is None
        return request

    def step(self, data: bytes | bytearray) -> int:
        """Return how many of the first bytes of ``data`` to give to :meth:`body` at once."""
        return _one_step(data) if self._chunked else _MOST_AT_ONCE

    def body(self, data: bytes) -> tuple[bytes, bool, bytes]:
        """Parse more of the body. Returns what to write to the server, whether the body is complete, and the bytes of
        the next request. Raises :class:`BadRequest`."""
        written = bytearray()
        try:
            if data:
                self._h11.receive_data(data)
            while True:
                event = self._h11.next_event()
                if isinstance(event, h11.Data):
                    if self.watch is not None:
                        self.watch(bytes(event.data))
                    written += b"%x\r\n%s\r\n" % (len(event.data), event.data) if self._chunked else event.data
                elif isinstance(event, h11.EndOfMessage):
                    written += b"0\r\n\r\n" if self._chunked else b""
                    return bytes(written), True, self._h11.trailing_data[0]
                else:
                    return bytes(written), False, b""
        except h11.RemoteProtocolError:
            raise BadRequest("its body is not valid HTTP/1.1 (RFC 9112)") from None


class AnswerReader:
    """Follows the answer to one request to find its end. The caller passes the answer on unchanged or, with
    ``keeps_body``, as :meth:`take` returns it: whole heads, and a body without chunk boundaries."""

    def __init__(self, request: HttpRequest, *, keeps_body: bool = False) -> None:
        self._keeps_body = keeps_body
        self._heads, self._read = bytearray(), bytearray()
        self._trailers: list[tuple[bytes, bytes]] = []
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_FRAMING)
        self._has_body = request.method != "HEAD"
        upgrade = [("Upgrade", "websocket"), ("Connection", "Upgrade")] if request.upgrades else []
        self._h11.send(h11.Request(method=request.method, target="/", headers=[("Host", "x"), *upgrade]))
        self._h11.send(h11.EndOfMessage())
        self._unread = bytearray()
        self._looked = 0  # bytes searched for the end of the head
        self.in_chunks = False  # the head is over and the body is chunked
        self.plain = 0  # bytes of the body still to come; they need not be fed
        self.is_open = False  # the body ends with the connection
        self.is_whole = False
        self.switches = False  # to another protocol, now
        self.closes = False  # the server closes the connection, or must not be used again

    def feed(self, data: bytes = b"") -> bool:
        """Add ``data`` and parse one short step. Returns whether another can follow. Raises :class:`BadAnswer`."""
        self._unread += data
        try:
            goes_on = self._chunks() if self.in_chunks else self._head()
        except h11.RemoteProtocolError:
            raise BadAnswer("it is not valid HTTP (RFC 9112)") from None
        is_known = self.is_whole or self.plain or self.is_open or self.switches
        return goes_on and bool(self._unread) and not is_known

    def take(self) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
        """Return the unchanged whole heads and the body since the last call, and the trailers."""
        heads, self._heads = bytes(self._heads), bytearray()
        body, self._read = bytes(self._read), bytearray()
        is_known = self.is_whole or self.plain or self.is_open or self.switches
        if is_known and not self.in_chunks:
            body, self._unread = bytes(self._unread), bytearray()
        return heads, body, self._trailers

    def _head(self) -> bool:
        """Parse one head. All but the last are interim. Returns whether it was complete."""
        if not self._unread.startswith(_BEGINS[: len(self._unread)]):
            raise BadAnswer("it does not start like an HTTP answer")
        end = _END_OF_HEAD.search(self._unread, max(0, self._looked - 2))
        size = len(self._unread) if end is None else end.end()
        if size > MOST_ANSWER_HEAD or self._unread.count(b"\n", 0, size) > _MOST_ANSWER_FIELDS + 2:
            raise BadAnswer("its head is too long")
        if end is None:
            self._looked = size
            return False
        self._h11.receive_data(bytes(self._unread[:size]))
        if self._keeps_body:
            self._heads += self._unread[:size]
        del self._unread[:size]
        self._looked = 0
        event = self._h11.next_event()
        if isinstance(event, h11.InformationalResponse):
            self.switches = event.status_code == 101
        elif isinstance(event, h11.Response):
            self._take_head(event)
        else:
            raise BadAnswer("it has no head")
        return True

    def _take_head(self, event: h11.Response) -> None:
        fields = dict(event.headers)
        tokens = [token.strip() for token in fields.get(b"connection", b"").lower().split(b",")]
        self.closes = b"close" in tokens or (event.http_version == b"1.0" and b"keep-alive" not in tokens)
        if not self._has_body or event.status_code in (204, 304):
            length = 0
        elif b"transfer-encoding" in fields:
            self.in_chunks = True  # h11 finds the end
            return
        elif b"content-length" not in fields:
            self.is_open = True
            return
        else:
            length = int(fields[b"content-length"])
        there = len(self._unread)
        if there < length:
            self.plain = length - there
        else:
            self._end(there > length)

    def _chunks(self) -> bool:
        """Parse some chunks. Returns whether more input can be parsed."""
        size = _one_step(self._unread)
        self._h11.receive_data(bytes(self._unread[:size]))
        del self._unread[:size]
        while not isinstance(event := self._h11.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return True
            if self._keeps_body and isinstance(event, h11.Data):
                self._read += event.data
        self._trailers = list(event.headers.raw_items())
        self._end(bool(self._unread or self._h11.trailing_data[0]))
        return False

    def _end(self, has_more: bool) -> None:
        """Mark the answer as complete. Bytes that follow belong to no request."""
        self.is_whole = True
        self.closes = self.closes or has_more


def _one_step(data: bytes | bytearray) -> int:
    """Return how many of the first bytes of ``data`` to parse at once."""
    size = min(len(data), _MOST_AT_ONCE)
    while data.count(b"\n", 0, size) > _MOST_LINES:
        size //= 2
    return size


def _check_request(event: h11.Request, size: int) -> HttpRequest:
    fields = tuple(event.headers.raw_items())
    names = [name.lower() for name, _ in fields]
    by_name = dict(event.headers)
    if len(fields) > _MOST_FIELDS:
        raise BadRequest(f"more than {_MOST_FIELDS} header fields")
    if names.count(b"host") != 1 and not (event.method == b"CONNECT" and b"host" not in names):  # http.client omits it
        raise BadRequest("it needs exactly one Host")
    if event.http_version not in (b"1.1", b"1.0"):
        raise BadRequest("neither HTTP/1.1 nor HTTP/1.0")
    encoded = b"transfer-encoding" in names
    if encoded and (
        b"content-length" in names or event.http_version == b"1.0" or names.count(b"transfer-encoding") > 1
    ):
        raise BadRequest("it gives its length in two ways")
    url_host, url_port, path = _target(event.method, event.target)
    host, port = _authority(by_name.get(b"host", event.target))
    tokens = [
        token.strip() for token in b",".join(v for n, v in event.headers if n == b"connection").lower().split(b",")
    ]
    upgrades = b"upgrade" in tokens and by_name.get(b"upgrade", b"").lower() == b"websocket"
    return HttpRequest(
        method=event.method.decode(),
        path=path.decode(),
        version=event.http_version,
        host=host,
        port=port,
        url_host=url_host,
        url_port=url_port,
        fields=fields,
        length=None if encoded else int(by_name.get(b"content-length", b"0")),
        upgrades=upgrades and event.http_version == b"1.1",
        closes=b"close" in tokens or (event.http_version == b"1.0" and b"keep-alive" not in tokens),
        size=size,
    )


def _target(method: bytes, target: bytes) -> tuple[str | None, int | None, bytes]:
    """Return the target's host and port, if any, and the path for the server."""
    if method == b"CONNECT":
        return *_authority(target), b""
    url = _URL.match(target)
    if url is not None:
        rest = url[2] or b"/"
        return *_authority(url[1]), rest if rest.startswith(b"/") else b"/" + rest
    if _ORIGIN.match(target) or (method == b"OPTIONS" and target == b"*"):
        return None, None, target
    raise BadRequest("its target is neither a path nor an http:// URL")


def _authority(text: bytes) -> tuple[str, int | None]:
    match = _AUTHORITY.match(text)
    if match is None or (match[2] is not None and not 0 < int(match[2]) < 1 << 16):
        raise BadRequest("its host is not a name with an optional port (IPv6 addresses are not supported)")
    return match[1].decode("latin-1"), None if match[2] is None else int(match[2])
