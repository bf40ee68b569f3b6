"""Turns of executions: so many at once, so many more that wait, and beyond that a refusal that says when to retry."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Literal

from casemate.errors import QueueFull

MOST_WAITING = 1000  # each is little more than its request; whoever comes after them had better wait elsewhere
_LONGEST = 60.0  # seconds: nobody is sent away for longer
_RECENT = 0.2  # how much the last turn counts when it is said how often one comes


class Slots(asyncio.Semaphore):
    """Lets so many executions go on at once, and knows how many do and how many ``waiting`` would.

    ``refused`` is told of the first that finds no room, and again when there was some meanwhile.
    """

    def __init__(self, most: int, refused: Callable[[QueueFull], None] = lambda _: None) -> None:
        super().__init__(most)
        self.running = self.waiting = 0
        self._refused = refused
        self._is_full = False
        self._every = 0.0  # seconds from one end of an execution to the next, while somebody waited
        self._last_end: float | None = None

    def check_room(self) -> None:
        """Raises ``QueueFull`` where one more may not even wait."""
        if self.waiting < MOST_WAITING:
            self._is_full = False
            return
        full = QueueFull(
            f"{self.running} executions run and {self.waiting} wait: no more may wait",
            retry_after=self._room_within(),
        )
        if not self._is_full:
            self._is_full = True
            self._refused(full)
        raise full

    async def acquire(self) -> Literal[True]:
        """As of :class:`asyncio.Semaphore`. Raises ``QueueFull``."""
        if self.locked():
            self.check_room()
        self.waiting += 1
        try:
            await super().acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        return True

    def release(self) -> None:
        """As of :class:`asyncio.Semaphore`."""
        super().release()
        self.running -= 1
        now = time.monotonic()
        if self.waiting and self._last_end is not None:
            self._every += (_RECENT if self._every else 1.0) * (now - self._last_end - self._every)
        self._last_end = now

    def _room_within(self) -> float:
        """About how many seconds it takes until the next in line has its turn, as it went so far."""
        return float(min(_LONGEST, max(1, math.ceil(self._every))))
