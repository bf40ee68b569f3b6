"""Frames of HTTP/2 (RFC 9113, section 4), counted before anybody acts on them. Pure, sans-io.

h2 reads what they say. Here they are told apart so that floods of what costs the other side more than the sender
(resets, CVE-2023-44487; CONTINUATION, CVE-2024-27316; pings, settings, empty frames, CVE-2019-9512 and following) end
the connection, and so that the end of a server's connection (GOAWAY) does not cut off what it still answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from casemate.egress.bodies import DATA, HEADER, Joining

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_FRAME = 1 << 16  # bytes of one frame's payload, as is announced
_HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _CONTINUATION = 1, 3, 4, 7, 9
_MOST_CONTINUATIONS = 16  # of one head
_MOST_SETTINGS = 64 * 6  # bytes of one frame of them: there are ten kinds, and h2 takes its time for each
_MOST_RESETS = 200  # streams that are ended early, beyond those that ended well
_MOST_IDLE = 2000  # frames that carry nothing, beyond one for each KiB that was carried
_ERROR_NONE = 0


class Flood(Exception):
    """More of what carries nothing than anybody needs."""


class NoFrames(ValueError):
    """Not HTTP/2."""


@dataclass(frozen=True, slots=True)
class Taken:
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

    def carried(self, count: int) -> None:
        """As many bytes came from the other side, in one frame: that is answered by at least one."""
        self._carried += max(count, 1 << 10)

    def ended_well(self) -> None:
        """A stream ended as it should."""
        self._ended += 1

    def take(self, data: bytes) -> Taken:
        """The whole frames so far, those of a body that follow each other as one; a part of one is kept for later.
        Raises :class:`Flood`, :class:`NoFrames`."""
        self._unread += data
        at = self._preface()
        if self._begins:
            return Taken(b"", 0, 0, None)
        start, count, carried = at, 0, 0
        goes_away = None
        joining = Joining()
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
        taken = bytes(unread[:start]) + joining.taken()
        if at:
            self._unread = bytearray(unread[at:])  # another one: what is looked at cannot be shortened
        return Taken(taken, count, carried, goes_away)

    def _preface(self) -> int:
        """How many bytes of it are there, once it is whole."""
        if not self._begins:
            return 0
        size = min(len(self._begins), len(self._unread))
        if self._unread[:size] != self._begins[:size]:
            raise NoFrames("it does not begin as HTTP/2")
        if size < len(self._begins):
            return 0
        self._begins = b""
        return size

    def _count(self, kind: int, length: int) -> None:
        if kind == _CONTINUATION:
            self._continuations += 1
            if self._continuations > _MOST_CONTINUATIONS:
                raise Flood("a head in too many frames")
        elif kind == _HEADERS:
            self._continuations = 0
        elif kind == DATA and length:
            self._carried += length
        else:
            self._idle += 1
        if kind == _RST_STREAM:
            self._resets += 1
        if kind == _SETTINGS and length > _MOST_SETTINGS:
            raise Flood("too many settings")
        if kind in (_HEADERS, _CONTINUATION):
            self._head = length + (self._head if kind == _CONTINUATION else 0)
            if self._head > self._most_head:
                raise Flood(f"a head of more than {self._most_head} bytes")
        if self._resets > _MOST_RESETS + self._ended:
            raise Flood("too many streams were ended early")
        if self._idle > _MOST_IDLE + (self._carried >> 10) + 4 * self._ended:
            raise Flood("too many frames that carry nothing")


def _end_of_frame(unread: memoryview, at: int) -> int | None:
    """Where the frame that begins there ends; None where it is not whole."""
    if len(unread) - at < HEADER:
        return None
    length = int.from_bytes(unread[at : at + 3])
    if length > MOST_FRAME:
        raise NoFrames(f"a frame of {length} bytes")
    end = at + HEADER + length
    return end if end <= len(unread) else None


def goaway(last: int, code: int = _ERROR_NONE) -> bytes:
    """A frame that says that no stream after ``last`` will be answered."""
    return b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + last.to_bytes(4) + code.to_bytes(4)
