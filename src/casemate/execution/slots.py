"""Turns of executions: so many at once, and the others wait."""

from __future__ import annotations

import asyncio
from typing import Literal


class Slots(asyncio.Semaphore):
    """Lets so many executions go on at once, and knows how many do and how many ``waiting`` would."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.running = self.waiting = 0

    async def acquire(self) -> Literal[True]:
        """As of :class:`asyncio.Semaphore`."""
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
