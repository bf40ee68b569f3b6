"""What a program wrote, kept within a bound: the head and the tail of each stream, and the order of all. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Literal

Stream = Literal["stdout", "stderr"]
_MAX_SEGMENTS = 20_000  # changes between streams whose order is kept; beyond, text follows stream by stream


class _StreamText:
    """The first and last bytes of one stream."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self.head = bytearray()
        self.tail = bytearray()
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2

    def add(self, data: bytes) -> None:
        self.total += len(data)
        space = self._head_limit - len(self.head)
        if space > 0:
            self.head += data[:space]
            data = data[space:]
        self.tail += data[-self._tail_limit :] if len(data) > self._tail_limit else data
        if len(self.tail) > 2 * self._tail_limit:
            del self.tail[: -self._tail_limit]

    @property
    def cut(self) -> int:
        """How many bytes between head and tail are not kept."""
        return max(0, self.total - len(self.head) - self._tail_limit)

    def slice(self, start: int, end: int) -> bytes:
        """What is kept of the stream's bytes from ``start`` to ``end``."""
        head = self.head[start : min(end, len(self.head))]
        if end <= len(self.head):
            return bytes(head)
        tail_start = len(self.head) + self.cut
        kept_from = self.total - len(self.tail)
        first = max(start, tail_start)
        return bytes(head) + bytes(self.tail[max(0, first - kept_from) : max(0, end - kept_from)])


class Transcript:
    """Both streams and the results between them; ``limit`` bytes are kept of each stream."""

    def __init__(self, limit: int) -> None:
        self._streams: dict[Stream, _StreamText] = {"stdout": _StreamText(limit), "stderr": _StreamText(limit)}
        self._limit = limit
        self._order: list[tuple[Stream, int]] = []  # stream and bytes
        self._results: list[
            tuple[int, int]
        ] = []  # for each: after so many of these, the last of which had so many bytes

    def add(self, stream: Stream, data: bytes) -> None:
        """The program wrote ``data``."""
        self._streams[stream].add(data)
        if self._order and self._order[-1][0] == stream:
            self._order[-1] = (stream, self._order[-1][1] + len(data))
        elif len(self._order) < _MAX_SEGMENTS:
            self._order.append((stream, len(data)))

    def would_cut(self, stream: Stream, amount: int) -> bool:
        """Whether ``amount`` more bytes would be more than is kept of the stream."""
        return self._streams[stream].total + amount > self._limit

    def add_result(self) -> None:
        """The program displayed one more result."""
        self._results.append((len(self._order), self._order[-1][1] if self._order else 0))

    def forget_results(self) -> None:
        """The results so far are taken back."""
        self._results.clear()

    @property
    def is_truncated(self) -> bool:
        return any(kept.cut for kept in self._streams.values())

    def text_of(self, stream: Stream) -> str:
        """The stream as text; where something is cut, one line says how much."""
        kept = self._streams[stream]
        if not kept.cut:
            return _decode(kept.slice(0, kept.total))
        head, tail = kept.slice(0, len(kept.head)), kept.slice(len(kept.head), kept.total)
        return _decode(head) + f"\n[... {kept.cut} bytes cut ...]\n" + _decode(tail)

    def merge(self, results: list[str]) -> str:
        """All text in the order it came, with ``results`` in their places."""
        if any(kept.cut for kept in self._streams.values()):
            parts = [self.text_of("stdout"), self.text_of("stderr"), *results]
            return "\n".join(part.strip() for part in parts if part.strip())
        return "".join(self._list_in_order(results)).strip()

    def _list_in_order(self, results: list[str]) -> list[str]:
        at: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        parts: list[str] = []
        places = deque(self._results)
        shown = iter(results)
        while places and places[0][0] == 0:
            places.popleft()
            parts.append(_own_line(parts, next(shown)))
        for number, (stream, amount) in enumerate(self._order, 1):
            end = at[stream] + amount
            while places and places[0][0] == number:
                upto = end - amount + places.popleft()[1]
                parts.append(_decode(self._streams[stream].slice(at[stream], upto)))
                parts.append(_own_line(parts, next(shown)))
                at[stream] = upto
            parts.append(_decode(self._streams[stream].slice(at[stream], end)))
            at[stream] = end
        for stream, start in at.items():
            parts.append(_decode(self._streams[stream].slice(start, self._streams[stream].total)))
        return parts

    def raw(self) -> bytes:
        """All bytes in order, as long as nothing has been cut."""
        at: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        parts = []
        for stream, amount in self._order:
            parts.append(self._streams[stream].slice(at[stream], at[stream] + amount))
            at[stream] += amount
        parts += [self._streams[stream].slice(start, self._streams[stream].total) for stream, start in at.items()]
        return b"".join(parts)


def _own_line(parts: list[str], text: str) -> str:
    begins_line = not parts or parts[-1].endswith("\n") or not parts[-1]
    return ("" if begins_line else "\n") + text + "\n"


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
