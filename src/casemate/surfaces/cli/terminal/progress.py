"""How far something is that takes a while: one line on the terminal that is written over, and nothing elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Self

from casemate.model.limits import format_size

_EVERY = 0.1  # seconds
_CLEAR = "\r\x1b[K"


class Progress:
    """Shows on standard error, where that is a terminal and ``shows``; the line is gone when the block is left."""

    def __init__(self, *, shows: bool) -> None:
        self._shows = shows and sys.stderr.isatty()
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._last:
            self._write(_CLEAR)

    def files(self, number: int, size: int) -> None:
        """So many files, with so many bytes, are done."""
        self._show(f"files: {number}, {format_size(size)}")

    def bytes(self, reached: int) -> None:
        """So many bytes were fetched."""
        self._show(f"fetched {format_size(reached)}")

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if self._shows and now - self._last >= _EVERY:
            self._last = now
            self._write(f"{_CLEAR}casemate: {text}")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
