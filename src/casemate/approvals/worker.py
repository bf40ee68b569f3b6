"""A thread that runs jobs one after the other, now or at a time, so that deciding waits for no event loop.

A short job may also run in the thread that submits it, as long as no other job runs or waits. The order of jobs is the
same as if the worker's thread had been that fast.
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

_END_WITHIN = 10.0  # seconds that the thread has for the jobs that were submitted before the end


class Timer:
    """A job that runs at its time unless it is cancelled."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        """The job will not run."""
        self.is_cancelled = True


class Worker:
    """``on_error`` is called in the thread with what a job raises. The thread starts with the first job and ends with
    `close`."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._idle_jobs: deque[Callable[..., object]] = deque()
        self._timers: list[tuple[float, int, Timer, Callable[..., object], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._running: int | None = None  # the thread that runs a job
        self._is_end_awaited = False  # the end of that job
        self._is_closed = False

    def run_inline(self, job: Callable[..., object], *arguments: Any) -> bool:
        """Run ``job``, which must neither block nor take long, in this thread. False, and nothing happens, where
        another job runs or waits, and after `close`. From any thread."""
        with self._changed:
            if self._is_closed or self._running is not None or self._jobs:
                return False
            self._running = threading.get_ident()
        try:
            self._run_job(job, arguments)
        finally:
            with self._changed:
                self._running = None
                if self._is_end_awaited:
                    self._changed.notify_all()
        return True

    def submit(self, job: Callable[..., object], *arguments: Any) -> bool:
        """Run ``job`` after those that were submitted before; False after `close`. From any thread."""
        with self._changed:
            if self._is_closed:
                return False
            self._jobs.append((job, arguments))
            self._wake()
        return True

    def submit_later(self, seconds: float, job: Callable[..., object], *arguments: Any) -> Timer:
        """Run ``job`` in so many seconds, but not after `close`: then its timer is cancelled from the start. From any
        thread."""
        timer = Timer()
        with self._changed:
            if self._is_closed:
                timer.cancel()
            else:
                when = time.monotonic() + seconds
                heapq.heappush(self._timers, (when, next(self._count), timer, job, arguments))
                self._wake()
        return timer

    def submit_idle(self, job: Callable[[], object]) -> bool:
        """Run ``job`` when there is no other; False after `close`. Jobs of `run_inline` may run beside it. From any
        thread."""
        with self._changed:
            if self._is_closed:
                return False
            self._idle_jobs.append(job)
            self._wake()
        return True

    async def drain(self, seconds: float) -> None:
        """Wait for all jobs that were submitted so far; no longer than ``seconds``."""
        done: Future[None] = Future()
        if self.submit(done.set_result, None):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(asyncio.wrap_future(done))

    @property
    def is_running(self) -> bool:
        """Whether it ever had a job."""
        return self._thread is not None

    def close(self) -> None:
        """Run the jobs that were submitted, and end. Bounded; harmless when repeated. Blocks."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
            if self._running == threading.get_ident() or thread is threading.current_thread():
                return  # a job need not wait for itself
            if thread is None:
                self._wait_for_job(_END_WITHIN)
        if thread is not None:
            thread.join(_END_WITHIN)

    def _wake(self) -> None:
        """Have the thread look for jobs. Under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="casemate-approvals", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _wait_for_job(self, seconds: float | None = None) -> None:
        """Wait until no job runs. Under the lock."""
        self._is_end_awaited = True
        self._changed.wait_for(lambda: self._running is None, seconds)
        self._is_end_awaited = False

    def _work(self) -> None:
        while (next_job := self._next_job()) is not None:
            self._run_job(*next_job)

    def _run_job(self, job: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            job(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, other jobs run; what waits is denied
            self._on_error(error)

    def _next_job(self) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
        """The next job, which counts as running from now on unless it is an idle one; None at the end. The job before
        is over."""
        this_thread = threading.get_ident()
        with self._changed:
            if self._running == this_thread:
                self._running = None
            while True:
                self._wait_for_job()
                if self._jobs or self._is_timer_due():
                    self._running = this_thread
                    return self._jobs.popleft() if self._jobs else heapq.heappop(self._timers)[3:]
                if self._idle_jobs:
                    return self._idle_jobs.popleft(), ()
                if self._is_closed:
                    return None
                self._changed.wait(self._timers[0][0] - time.monotonic() if self._timers else None)

    def _is_timer_due(self) -> bool:
        """Whether it is time for a job. Under the lock."""
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return bool(self._timers) and self._timers[0][0] <= time.monotonic()
