"""Puts what a step says through three pipes into the order in which it was said. Pure.

Text comes through two pipes and everything else as frames through a third. Each frame says how many bytes had been
written into the other two before, so that nobody in the cell has to wait for the host to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from casemate.sessions.protocol import Said

if TYPE_CHECKING:
    from casemate.walls.wall import Stream

Text = tuple["Stream", bytes]


class Order:
    """The order of one step."""

    def __init__(self) -> None:
        self._read: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._waiting: deque[Said] = deque()  # frames, for text that was written before them
        self.heard = 0  # frames so far
        self._held: deque[Text] = deque()  # text that was written after the first of them

    @property
    def waits(self) -> bool:
        """Whether a frame waits for text that was written before it."""
        return bool(self._waiting)

    def text(self, stream: Stream, data: bytes) -> Iterator[Text | Said]:
        """``data`` has come from one of the step's pipes: what is in order now."""
        yield from self._take(deque([(stream, data)]))

    def said(self, said: Said) -> Iterator[Said]:
        """A frame has come: itself, or nothing as long as it waits."""
        self._waiting.append(said)
        self.heard += 1
        yield from self._due()

    def settle(self, upto: int = 1 << 62) -> Iterator[Text | Said]:
        """No more text will come that was written before the first ``upto`` frames."""
        while self._waiting and self.heard - len(self._waiting) < upto:
            said = self._waiting.popleft()
            if said.at is not None:
                self._read = {"stdout": said.at[0], "stderr": said.at[1]}  # from here on its own bytes are counted
            yield said
            yield from self._take(self._release())

    def _take(self, texts: deque[Text]) -> Iterator[Text | Said]:
        while texts:
            stream, data = texts.popleft()
            room = self._missing(self._waiting[0], stream) if self._waiting else len(data)
            if room <= 0:
                self._held.append((stream, data))
                continue
            self._read[stream] += len(data[:room])
            yield stream, data[:room]
            if data[room:]:
                texts.appendleft((stream, data[room:]))
            if self._waiting and self._is_due(self._waiting[0]):
                yield from self._due()
                texts.extendleft(reversed(self._release()))

    def _due(self) -> Iterator[Said]:
        while self._waiting and self._is_due(self._waiting[0]):
            yield self._waiting.popleft()

    def _release(self) -> deque[Text]:
        held, self._held = self._held, deque()
        return held

    def _is_due(self, said: Said) -> bool:
        return not said.comes_after_all and all(self._missing(said, stream) <= 0 for stream in self._read)

    def _missing(self, said: Said, stream: Stream) -> int:
        if said.at is None or said.comes_after_all:
            return 1 << 62
        return said.at[0 if stream == "stdout" else 1] - self._read[stream]
