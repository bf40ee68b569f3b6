"""When a session that nobody uses ends by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Lifetime:
    """Calls ``over`` when no step ran for ``idle`` seconds, or ``total`` seconds after its making while none runs."""

    def __init__(self, idle: float | None, total: float | None, over: Callable[[], None]) -> None:
        self._idle = idle
        self._end = None if total is None else time.monotonic() + total
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    def rest(self) -> None:
        """No step runs from now on."""
        self.stop()
        times = [] if self._idle is None else [self._idle]
        if self._end is not None:
            times.append(max(0.0, self._end - time.monotonic()))
        if times:
            self._timer = asyncio.get_running_loop().call_later(min(times), self._over)

    def stop(self) -> None:
        """A step begins, or the session has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
