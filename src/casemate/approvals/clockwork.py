"""One thread that does one thing after the other, now or at its time: so that deciding waits for no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_END_WITHIN = 10.0  # seconds that the thread has to do what was asked of it before the end


class Later:
    """Something to be done at its time, unless it is cancelled."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        """It need not be done any more."""
        self.is_cancelled = True


class Clockwork:
    """``failed`` is called in the thread with what a job has raised. The thread starts with the first job, and ends
    with `close`."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._changed = threading.Condition()
        self._now: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._later: list[tuple[float, int, Later, Callable[..., object], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def soon(self, do: Callable[..., object], *arguments: Any) -> bool:
        """Have ``do`` called after what was asked for before; False when it was closed. From any thread."""
        with self._changed:
            if self._is_closed:
                return False
            self._now.append((do, arguments))
            self._run()
        return True

    def later(self, seconds: float, do: Callable[..., None], *arguments: Any) -> Later:
        """Have ``do`` called in so many seconds, but not after `close`. From any thread."""
        handle = Later()
        with self._changed:
            if not self._is_closed:
                when = time.monotonic() + seconds
                heapq.heappush(self._later, (when, next(self._count), handle, do, arguments))
                self._run()
        return handle

    async def caught_up(self, seconds: float) -> None:
        """Wait until all is done that was asked for to be done now; no longer than ``seconds``."""
        done: Future[None] = Future()
        if self.soon(done.set_result, None):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(asyncio.wrap_future(done))

    @property
    def is_running(self) -> bool:
        """Whether anything was ever asked of it."""
        return self._thread is not None

    def close(self) -> None:
        """Do what was asked for to be done now, and end. Bounded; harmless when repeated. Blocks."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_WITHIN)

    def _run(self) -> None:
        """There is something new. Under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="casemate-approvals", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            do, arguments = job
            try:
                do(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever goes wrong, the thread goes on; what waits is denied
                self._failed(error)

    def _next(self) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
        with self._changed:
            while True:
                if self._now:
                    return self._now.popleft()
                if self._is_closed:
                    return None
                while self._later and self._later[0][2].is_cancelled:
                    heapq.heappop(self._later)
                now = time.monotonic()
                if self._later and self._later[0][0] <= now:
                    return self._later[0][3], heapq.heappop(self._later)[4]
                self._changed.wait(self._later[0][0] - now if self._later else None)
