"""When a session that nobody uses ends by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lifetime:
    """Calls ``over``, with what is over, when nobody used the session for ``idle`` seconds, or nobody uses it ``total``
    seconds after its making. It begins with the first use. ``began``, ``last_used``: of the monotonic clock."""

    def __init__(self, idle: float | None, total: float | None, over: Callable[[str], None]) -> None:
        self.began = self.last_used = time.monotonic()
        self._idle = idle
        self._end = None if total is None else time.monotonic() + total
        self._over = over
        self._users = 0
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Meanwhile it does not end by itself."""
        if not self._users and self._end is not None and time.monotonic() > self._end:
            self._over("lifetime")
        self._users += 1
        self._stop()
        try:
            yield
        finally:
            self._users -= 1
            self.last_used = time.monotonic()
            if not self._users and not self._is_over:
                self._rest()

    def end(self) -> None:
        """The session has ended."""
        self._is_over = True
        self._stop()

    def _rest(self) -> None:
        times = [] if self._idle is None else [(self._idle, "idle_timeout")]
        if self._end is not None:
            times.append((max(0.0, self._end - time.monotonic()), "lifetime"))
        if times:
            self._timer = asyncio.get_running_loop().call_later(min(times)[0], self._over, min(times)[1])

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
