"""A cell's turns at the work that takes the door's time: reading what is said on its connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_SHARE = 0.25  # of the loop's time that one cell may take, on average
_BURST = 0.05  # seconds of work that it may take at once
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class Turns:
    """Of one cell, whose connections take them one after the other, in the order in which they ask: one small step, and
    then everything else is looked at. So cells share the door's time, however many connections each has.

    Steps are counted by the processor time that they took; a cell that took more than its share waits.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._taken = 0.0  # seconds of work, less what the share has allowed since
        self._seen = self._loop.time()

    async def take(self, step: Callable[_Given, _Made], *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        """What ``step`` gives or raises, when it is its turn. It must be short."""
        async with self._lock:
            await asyncio.sleep(self._wait())
            begun = time.thread_time()
            try:
                return step(*args, **kwargs)
            finally:
                self._taken += time.thread_time() - begun

    def worked(self, seconds: float) -> None:
        """So many seconds of work were done without a turn, because it had to be done at once."""
        self._taken += seconds

    def _wait(self) -> float:
        """Seconds until the next step may be taken; 0 is after everything else that is ready."""
        now = self._loop.time()
        self._taken = max(0.0, self._taken - (now - self._seen) * _SHARE)
        self._seen = now
        return max(0.0, self._taken - _BURST) / _SHARE
