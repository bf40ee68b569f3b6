"""A cell that only waits for answers stands still, and its clock with it."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from casemate.approvals.clockwork import Clockwork

QUIET = 0.1  # seconds in which the cell sent no request and no answer came (docs/how-to/approvals.md)


class Pausable(Protocol):
    """What this needs of a cell."""

    def pause(self) -> None:
        """Stop everything in it, and its clock."""
        ...

    def go_on(self) -> None:
        """Let it go on."""
        ...


class Pausing:
    """Of one run or step. `attach` and `end` from any thread, the others in the plane's."""

    def __init__(self, clockwork: Clockwork) -> None:
        self._clockwork = clockwork
        self._cell: Pausable | None = None
        self._lock = threading.Lock()  # nothing is paused after `end`
        self._is_over = False
        self._is_paused = False
        self._looks = False
        self._pending = 0
        self._since = 0.0  # when the last request or answer was

    def attach(self, cell: Pausable) -> None:
        """The cell is there."""
        self._cell = cell

    def asked(self, pending: int) -> None:
        """The cell sent a request; ``pending``: how many of it wait now."""
        self._pending, self._since = pending, time.monotonic()
        self._look_later(QUIET)

    def answered(self, pending: int) -> None:
        """An answer came."""
        with self._lock:
            if self._is_paused and self._cell:
                self._cell.go_on()
            self._is_paused = False
        self.asked(pending)

    def end(self) -> None:
        """The run or step is over, or is to end."""
        with self._lock:
            self._is_over = True
            if self._is_paused and self._cell:
                self._cell.go_on()
            self._is_paused = False

    def _look_later(self, seconds: float) -> None:
        if self._pending and not self._looks and not self._is_paused:
            self._looks = True
            self._clockwork.later(seconds, self._look)

    def _look(self) -> None:
        self._looks = False
        missing = self._since + QUIET - time.monotonic()
        if missing > 0:
            self._look_later(missing)
            return
        with self._lock:
            if self._pending and self._cell and not self._is_over and not self._is_paused:
                self._is_paused = True
                self._cell.pause()
