"""Frames from a program in a cell: a four-byte length, then JSON. A hostile cell may send anything else."""

from __future__ import annotations

MAX_FRAME = 16 << 20  # bytes; a large picture in base64
_LENGTH = 4
_STEP_END = b'{"type":"done","step":'  # start of the frame that ends a step, in every language
_STEP_HEAD = len(_STEP_END) + 8  # bytes


class FrameError(ValueError):
    """The cell sent an invalid frame. Nothing after it can be parsed."""


class FrameReader:
    """Splits a byte stream into whole frames, or into the first ``most`` bytes of each."""

    def __init__(self, most: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._most = most
        self._unwanted = 0  # bytes still to skip

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by ``data``. Raises :class:`FrameError`."""
        self._buffer += data
        frames: list[bytes] = []
        while True:
            passed = min(self._unwanted, len(self._buffer))
            del self._buffer[:passed]
            self._unwanted -= passed
            if len(self._buffer) < _LENGTH:
                return frames
            length = int.from_bytes(self._buffer[:_LENGTH], "big")
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes")
            end = _LENGTH + min(length, self._most)
            if len(self._buffer) < end:
                return frames
            frames.append(bytes(self._buffer[_LENGTH:end]))
            del self._buffer[:end]
            self._unwanted = _LENGTH + length - end


class StepEnds:
    """Finds the ends of steps in an interpreter's output before the host sees them. The interpreter may lie: only the
    time at which files are sent to the host depends on them."""

    def __init__(self) -> None:
        self._reader = FrameReader(_STEP_HEAD)

    def feed(self, data: bytes) -> list[int]:
        """The numbers of the steps that end in ``data``."""
        try:
            heads = self._reader.feed(data)
        except FrameError:  # the host ends the cell for it
            self._reader = FrameReader(_STEP_HEAD)
            return []
        numbers = (head.removeprefix(_STEP_END).partition(b",")[0] for head in heads if head.startswith(_STEP_END))
        return [int(number) for number in numbers if number.isdigit()]
