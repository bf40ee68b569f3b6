"""The last words of a server: what it said where it may say anything, for whoever wonders why it is gone."""

from __future__ import annotations

from collections import deque

from casemate.visible import visible

_MOST_BYTES = 8 << 10
_MOST_LINES = 20
_LONGEST_LINE = 500  # characters


class LastWords:
    """Keeps the end of a stream of bytes, bounded, and lines that casemate notes itself."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._has_lost = False

    def heard(self, data: bytes) -> None:
        """More of it."""
        self._has_lost = self._has_lost or len(data) > _MOST_BYTES
        self._pieces.append(data[-_MOST_BYTES:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= _MOST_BYTES:
            self._size -= len(self._pieces.popleft())
            self._has_lost = True

    def note(self, line: str) -> None:
        """A line of casemate's own among them."""
        self.heard(f"\n[{line}]\n".encode(errors="replace"))

    def text(self) -> str:
        """Its last lines; control and formatting characters are shown as their codes."""
        lines = b"".join(self._pieces).decode(errors="replace").splitlines()
        kept = [shortened(visible(line.strip()), _LONGEST_LINE) for line in lines if line.strip()]
        return ("…" if self._has_lost else "") + "\n".join(kept[-_MOST_LINES:])


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters of ``text``, with an ellipsis where it was cut: what finds secrets looks for the
    beginning of one there."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
