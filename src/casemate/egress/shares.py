"""How cells share what the egress proxy has: its descriptors, and its processor time."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_LEAST_SHARES = 4  # into which they are divided, however few cells there are
_UNLIMITED = 1 << 16  # descriptors of a process that has no limit


class DescriptorPool:
    """How many all cells of an egress proxy may hold: half of what this process may have, so that cells cannot take
    them all from the application."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.all = (_UNLIMITED if soft == resource.RLIM_INFINITY else soft) // 2
        self.left = self.all
        self.shares = 0

    def share(self) -> DescriptorShare:
        """One cell's."""
        self.shares += 1
        return DescriptorShare(self)


class DescriptorShare:
    """What one cell may hold of ``pot``: as much as every other, so that it cannot take them all from these."""

    def __init__(self, pot: DescriptorPool) -> None:
        self._pot = pot
        self._held = 0

    @property
    def most(self) -> int:
        """How many it may hold now."""
        return self._pot.all // max(_LEAST_SHARES, self._pot.shares)

    def take(self, count: int) -> bool:
        """Whether it may hold ``count`` more; it does, then."""
        if self._held + count > self.most or count > self._pot.left:
            return False
        self._held += count
        self._pot.left -= count
        return True

    def give(self, count: int) -> None:
        """They are closed again."""
        self._held -= count
        self._pot.left += count

    def end(self) -> None:
        """Nobody takes of it any more. What it still holds is given as it is closed."""
        self._pot.shares -= 1


_SHARE = 0.25  # of the loop's time that one cell may take, on average
_BURST = 0.05  # seconds of work that it may take at once
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class TimeShare:
    """Of one cell, whose connections take them one after the other, in the order in which they ask: one small step, and
    then everything else is looked at. So cells share the egress proxy's time, however many connections each has.

    Steps are counted by the processor time that they took; a cell that took more than its share waits.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._taken = 0.0  # seconds of work, less what the share has allowed since
        self._seen = self._loop.time()

    async def run(self, step: Callable[_Given, _Made], *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        """What ``step`` gives or raises, when it is its turn. It must be short."""
        async with self._lock:
            await asyncio.sleep(self._wait())
            begun = time.thread_time()
            try:
                return step(*args, **kwargs)
            finally:
                self._taken += time.thread_time() - begun

    def charge(self, seconds: float) -> None:
        """So many seconds of work were done without a turn, because it had to be done at once."""
        self._taken += seconds

    def _wait(self) -> float:
        """Seconds until the next step may be taken; 0 is after everything else that is ready."""
        now = self._loop.time()
        self._taken = max(0.0, self._taken - (now - self._seen) * _SHARE)
        self._seen = now
        return max(0.0, self._taken - _BURST) / _SHARE
