"""HTTP/2 (RFC 9113) as the relay reads it: frames, bodies in frames, and heads of requests. Pure, sans-io.

Frames are counted before h2 sees them, so that too much of what costs the other side more than the sender (resets,
CVE-2023-44487; CONTINUATION, CVE-2024-27316; pings, settings, empty frames, CVE-2019-9512 and following) ends the
connection, and so that the end of a server's connection (GOAWAY) does not cut off what it still answers.

Most of what h2 does costs by the frame, not by the byte, and peers send frames of 16 KiB. So frames of one body that
follow each other are put together before h2 sees them, and what h2 lets go at once is cut here into frames that the
other side takes. States, windows and lengths are h2's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from casemate.egress.injection import BodyRedaction
from casemate.policy.hosts import HTTPS, canonical

DATA, HEADER = 0, 9  # the kind, and bytes before each frame's payload
MOST_AT_ONCE = 1 << 18  # bytes that h2 is shown, or asked for, as one frame
_END_STREAM, _PADDED = 0x1, 0x8
_STREAM = 0x7FFFFFFF


class FrameJoiner:
    """Whole frames, in order. Those of one body become one, up to its end; a padded one, whose padding counts for
    windows, stays as it is, and so does every other frame."""

    def __init__(self) -> None:
        self._done: list[bytes | memoryview] = []
        self._parts: list[memoryview] = []  # of the body that may go on
        self._stream = self._length = 0

    def add(self, frame: memoryview) -> None:
        """``frame``: with its header; it must stay as it is until :meth:`take_all`."""
        kind, flags = frame[3], frame[4]
        if kind != DATA or flags & _PADDED:
            self._finish()
            self._done.append(frame)
            return
        stream = int.from_bytes(frame[5:HEADER]) & _STREAM
        length = len(frame) - HEADER
        if self._parts and (stream != self._stream or self._length + length > MOST_AT_ONCE):
            self._finish()
        self._stream = stream
        self._length += length
        self._parts.append(frame)
        if flags & _END_STREAM:
            self._finish()

    def take_all(self) -> bytes:
        """All of them."""
        self._finish()
        done, self._done = self._done, []
        return b"".join(done)

    def _finish(self) -> None:
        if len(self._parts) > 1:
            flags = self._parts[-1][4] & _END_STREAM
            self._done.append(_header(self._length, flags, self._stream))
            self._done.extend(part[HEADER:] for part in self._parts)
        else:
            self._done.extend(self._parts)
        self._parts = []
        self._length = 0


def cut(stream: int, data: bytes, most: int, *, is_last: bool) -> Iterator[bytes | memoryview]:
    """Frames of at most ``most`` bytes that say ``data``, at least one; the last ends the stream if it ``is_last``."""
    view = memoryview(data)
    for at in range(0, len(data) or 1, most):
        part = view[at : at + most]
        ends = is_last and at + most >= len(data)
        yield _header(len(part), _END_STREAM if ends else 0, stream)
        yield part


def _header(length: int, flags: int, stream: int) -> bytes:
    return length.to_bytes(3) + bytes([DATA, flags]) + stream.to_bytes(4)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_FRAME = 1 << 16  # bytes of one frame's payload, as is announced
_HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _CONTINUATION = 1, 3, 4, 7, 9
_MOST_CONTINUATIONS = 16  # of one head
_MOST_SETTINGS = 64 * 6  # bytes of one frame of them: there are ten kinds, and h2 takes its time for each
_MOST_RESETS = 200  # streams that are ended early, beyond those that ended well
_MOST_IDLE = 2000  # frames that carry nothing, beyond one for each KiB that was carried
_ERROR_NONE = 0


class FrameFlood(Exception):
    """More of what carries nothing than anybody needs."""


class NotHttp2(ValueError):
    """Not HTTP/2."""


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """``data``: whole frames, for h2; ``count``: their number; ``carried``: bytes of bodies in them; ``goes_away``: the
    last stream that the other side will still answer, where it has said so; that frame is not in ``data``."""

    data: bytes
    count: int
    carried: int
    goes_away: int | None


class Frames:
    """The frames that one side sends. ``begins``: what it must say before them; ``most_head``: bytes that one head may
    have as it comes, compressed, all of which are read in one step."""

    def __init__(self, begins: bytes = b"", most_head: int = MOST_FRAME) -> None:
        self._begins = begins
        self._most_head = most_head
        self._head = 0  # bytes of the head so far
        self._unread = bytearray()
        self._resets = self._idle = self._continuations = 0
        self._carried = 0  # bytes, in either direction
        self._ended = 0  # streams that ended well

    def count_carried(self, count: int) -> None:
        """As many bytes came from the other side, in one frame: that is answered by at least one."""
        self._carried += max(count, 1 << 10)

    def count_whole_stream(self) -> None:
        """A stream ended as it should."""
        self._ended += 1

    def take(self, data: bytes) -> FrameBatch:
        """The whole frames so far, those of a body that follow each other as one; a part of one is kept for later.
        Raises :class:`FrameFlood`, :class:`NotHttp2`."""
        self._unread += data
        at = self._preface()
        if self._begins:
            return FrameBatch(b"", 0, 0, None)
        start, count, carried = at, 0, 0
        goes_away = None
        joining = FrameJoiner()
        unread = memoryview(self._unread)
        while (end := _end_of_frame(unread, at)) is not None:
            kind, length = unread[at + 3], end - at - HEADER
            self._count(kind, length)
            count += 1
            carried += length if kind == DATA else 0
            if kind == _GOAWAY:
                goes_away = int.from_bytes(unread[at + HEADER : at + HEADER + 4]) & 0x7FFFFFFF
            else:
                joining.add(unread[at:end])
            at = end
        taken = bytes(unread[:start]) + joining.take_all()
        if at:
            self._unread = bytearray(unread[at:])  # another one: what is looked at cannot be shortened
        return FrameBatch(taken, count, carried, goes_away)

    def _preface(self) -> int:
        """How many bytes of it are there, once it is whole."""
        if not self._begins:
            return 0
        size = min(len(self._begins), len(self._unread))
        if self._unread[:size] != self._begins[:size]:
            raise NotHttp2("it does not begin as HTTP/2")
        if size < len(self._begins):
            return 0
        self._begins = b""
        return size

    def _count(self, kind: int, length: int) -> None:
        if kind == _CONTINUATION:
            self._continuations += 1
            if self._continuations > _MOST_CONTINUATIONS:
                raise FrameFlood("a head in too many frames")
        elif kind == _HEADERS:
            self._continuations = 0
        elif kind == DATA and length:
            self._carried += length
        else:
            self._idle += 1
        if kind == _RST_STREAM:
            self._resets += 1
        if kind == _SETTINGS and length > _MOST_SETTINGS:
            raise FrameFlood("too many settings")
        if kind in (_HEADERS, _CONTINUATION):
            self._head = length + (self._head if kind == _CONTINUATION else 0)
            if self._head > self._most_head:
                raise FrameFlood(f"a head of more than {self._most_head} bytes")
        if self._resets > _MOST_RESETS + self._ended:
            raise FrameFlood("too many streams were ended early")
        if self._idle > _MOST_IDLE + (self._carried >> 10) + 4 * self._ended:
            raise FrameFlood("too many frames that carry nothing")


def _end_of_frame(unread: memoryview, at: int) -> int | None:
    """Where the frame that begins there ends; None where it is not whole."""
    if len(unread) - at < HEADER:
        return None
    length = int.from_bytes(unread[at : at + 3])
    if length > MOST_FRAME:
        raise NotHttp2(f"a frame of {length} bytes")
    end = at + HEADER + length
    return end if end <= len(unread) else None


def goaway(last: int, code: int = _ERROR_NONE) -> bytes:
    """A frame that says that no stream after ``last`` will be answered."""
    return b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + last.to_bytes(4) + code.to_bytes(4)


_MOST_FIELDS = 256
_METHOD = re.compile(rb"[A-Z]{1,20}\Z")
_PATH = re.compile(rb"(?:/[!\"$-~]*|\*)\Z")  # origin form, without a fragment
_AUTHORITY = re.compile(rb"([0-9A-Za-z._-]+)(?::([0-9]{1,5}))?\Z")
_NAME = re.compile(rb":?[!#$%&'*+.^_`|~0-9a-z-]+\Z")  # RFC 9110, section 5.1, in small letters
_VALUE = re.compile(rb"[^\x00\r\n]*\Z")
_NOT_PASSED_ON = (b"host", b"proxy-authorization", b"proxy-connection", b"http2-settings")


class BadRequestHead(ValueError):
    """Not the head of a request for this host that everybody reads the same way."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """``path`` with its query; ``fields`` without those that say for whom it is."""

    method: str
    path: str
    fields: list[tuple[bytes, bytes]]

    def serialize(self, authority: str, fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The head for the server ``authority``, with ``fields``."""
        return [
            (b":method", self.method.encode()),
            (b":scheme", b"https"),
            (b":authority", authority.encode()),
            (b":path", self.path.encode()),
            *((name.lower(), value) for name, value in fields if name.lower() not in _NOT_PASSED_ON),
        ]


@dataclass(slots=True)
class StreamPair:
    """A stream of the client's and one of the server's. ``watch`` gets the parts of the request's body; those of
    the answer's go through ``hide``."""

    client: int
    server: int
    watch: Callable[[bytes], None] | None
    hide: BodyRedaction | None = None
    has_asked: bool = False
    has_answered: bool = False

    def other(self, *, is_client: bool) -> int:
        """The other side's stream, for the client or the server."""
        return self.server if is_client else self.client


def head_of(headers: Iterable[tuple[bytes, bytes]], name: str, port: int) -> RequestHead:
    """The head of a request that must be for ``name`` at ``port``. Raises :class:`BadRequestHead`."""
    pseudo, hosts, fields = _parts(headers)
    if b":authority" in pseudo:
        hosts.append(pseudo.pop(b":authority"))
    if pseudo.keys() != {b":method", b":scheme", b":path"} or not hosts:
        raise BadRequestHead("its pseudo-fields are not those of a request")
    if pseudo[b":scheme"] != b"https":
        raise BadRequestHead("its scheme is not https")
    if any(_place(host) != (name, port) for host in hosts):
        raise BadRequestHead("it names another host")
    method, path = pseudo[b":method"], pseudo[b":path"]
    if not _METHOD.match(method) or method == b"CONNECT":
        raise BadRequestHead("its method is none")
    if not _PATH.match(path) or (path == b"*" and method != b"OPTIONS"):
        raise BadRequestHead("its path is none")
    return RequestHead(method.decode(), path.decode(), fields)


def _parts(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[dict[bytes, bytes], list[bytes], list[tuple[bytes, bytes]]]:
    """Pseudo-fields, values of Host, and what is passed on."""
    pseudo: dict[bytes, bytes] = {}
    fields: list[tuple[bytes, bytes]] = []
    hosts: list[bytes] = []
    for field, value in ((bytes(one), bytes(two)) for one, two in headers):
        if not _NAME.match(field) or not _VALUE.match(value) or field in pseudo:
            raise BadRequestHead("a field that is none, or comes twice")
        if field.startswith(b":"):
            pseudo[field] = value
        elif field == b"host":
            hosts.append(value)
        elif field not in _NOT_PASSED_ON:
            fields.append((field, value))
    if len(fields) > _MOST_FIELDS:
        raise BadRequestHead(f"more than {_MOST_FIELDS} header fields")
    return pseudo, hosts, fields


def _place(authority: bytes) -> tuple[str | None, int]:
    match = _AUTHORITY.match(authority)
    if match is None:
        return None, 0
    return canonical(match[1].decode()), HTTPS if match[2] is None else int(match[2])
