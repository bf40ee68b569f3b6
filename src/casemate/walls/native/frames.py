"""Control frames from inside a cell: four bytes of length, then that many bytes. Sans-io and bounded."""

from __future__ import annotations

MAX_FRAME = 16 << 20  # bytes; a large picture in base64
_HEADER = 4


class FrameError(ValueError):
    """The cell sent something that is no frame; nothing after it can be understood."""


class FrameReader:
    """Takes bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by ``data``. Raises :class:`FrameError`."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER:
            length = int.from_bytes(self._buffer[:_HEADER], "big")
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes")
            if len(self._buffer) < _HEADER + length:
                break
            frames.append(bytes(self._buffer[_HEADER : _HEADER + length]))
            del self._buffer[: _HEADER + length]
        return frames
