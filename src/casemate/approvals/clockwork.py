"""One thing after the other, now or at its time, in a thread of its own: so that deciding waits for no event loop.

What takes no time may be done by whoever asks for it, as long as nothing else is done or waits: then it has its turn at
once, as if the thread had been that fast.
"""

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
        self._aside: deque[Callable[..., object]] = deque()
        self._later: list[tuple[float, int, Later, Callable[..., object], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._at_it: int | None = None  # the thread whose turn it is
        self._is_awaited = False  # the end of that turn
        self._is_closed = False

    def at_once(self, do: Callable[..., object], *arguments: Any) -> bool:
        """Call ``do``, which must neither block nor take long, in this thread; False, and nothing is done, where
        something else is done or waits to be, and after `close`. From any thread."""
        with self._changed:
            if self._is_closed or self._at_it is not None or self._now:
                return False
            self._at_it = threading.get_ident()
        try:
            self._do(do, arguments)
        finally:
            with self._changed:
                self._at_it = None
                if self._is_awaited:
                    self._changed.notify_all()
        return True

    def soon(self, do: Callable[..., object], *arguments: Any) -> bool:
        """Have ``do`` called after what was asked for before; False when it was closed. From any thread."""
        with self._changed:
            if self._is_closed:
                return False
            self._now.append((do, arguments))
            self._run()
        return True

    def later(self, seconds: float, do: Callable[..., object], *arguments: Any) -> Later:
        """Have ``do`` called in so many seconds, but not after `close`, when it is cancelled from the start. From any
        thread."""
        handle = Later()
        with self._changed:
            if self._is_closed:
                handle.cancel()
            else:
                when = time.monotonic() + seconds
                heapq.heappush(self._later, (when, next(self._count), handle, do, arguments))
                self._run()
        return handle

    def aside(self, do: Callable[[], object]) -> bool:
        """Have ``do`` called when there is nothing else to do; False when it was closed. It has no turn, so that others
        may have theirs meanwhile. From any thread."""
        with self._changed:
            if self._is_closed:
                return False
            self._aside.append(do)
            self._run()
        return True

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
            self._changed.notify_all()
            thread = self._thread
            if self._at_it == threading.get_ident() or thread is threading.current_thread():
                return  # who is at something need not wait for itself
            if thread is None:
                self._await_turn(_END_WITHIN)
        if thread is not None:
            thread.join(_END_WITHIN)

    def _run(self) -> None:
        """There is something new. Under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="casemate-approvals", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _await_turn(self, seconds: float | None = None) -> None:
        """Wait until nobody is at anything. Under the lock."""
        self._is_awaited = True
        self._changed.wait_for(lambda: self._at_it is None, seconds)
        self._is_awaited = False

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._do(*job)

    def _do(self, do: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            do(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, others go on; what waits is denied
            self._failed(error)

    def _next(self) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
        """The next job, with which it is the thread's turn unless it is one aside; None at the end. The turn before is
        over."""
        mine = threading.get_ident()
        with self._changed:
            if self._at_it == mine:
                self._at_it = None
            while True:
                self._await_turn()
                if self._now or self._is_due():
                    self._at_it = mine
                    return self._now.popleft() if self._now else heapq.heappop(self._later)[3:]
                if self._aside:
                    return self._aside.popleft(), ()
                if self._is_closed:
                    return None
                self._changed.wait(self._later[0][0] - time.monotonic() if self._later else None)

    def _is_due(self) -> bool:
        """Whether it is time for something. Under the lock."""
        while self._later and self._later[0][2].is_cancelled:
            heapq.heappop(self._later)
        return bool(self._later) and self._later[0][0] <= time.monotonic()
