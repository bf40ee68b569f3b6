"""Bodies in frames of HTTP/2 (RFC 9113, section 6.1), as few for h2 to look at as may be. Pure, sans-io.

Most of what h2 does costs by the frame, not by the byte, and peers send frames of 16 KiB. So frames of one body that
follow each other are put together before h2 sees them, and what h2 has let go at once is cut here into frames that the
other side takes. States, windows and lengths are h2's business in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator

DATA, HEADER = 0, 9  # the kind, and bytes before each frame's payload
MOST_AT_ONCE = 1 << 18  # bytes that h2 is shown, or asked for, as one frame
_END_STREAM, _PADDED = 0x1, 0x8
_STREAM = 0x7FFFFFFF


class Joining:
    """Whole frames, in order. Those of one body become one, up to its end; a padded one, whose padding counts for
    windows, stays as it is, and so does every other frame."""

    def __init__(self) -> None:
        self._done: list[bytes | memoryview] = []
        self._parts: list[memoryview] = []  # of the body that may go on
        self._stream = self._length = 0

    def add(self, frame: memoryview) -> None:
        """``frame``: with its header; it must stay as it is until :meth:`taken`."""
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

    def taken(self) -> bytes:
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
