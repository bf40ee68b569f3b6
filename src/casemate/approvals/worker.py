"""A thread that runs jobs in order, at once or at a given time, so that decisions wait for no event loop of the
application.

The thread runs its own event loop. A short job may also run in the submitting thread, if no other job runs or waits.
This does not change the order of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Any

from casemate.event_loop import polling_loop

_END_WITHIN = 10.0  # seconds for the thread to finish jobs submitted before the end


class Worker:
    """``on_error`` gets a job's exception, in the thread that runs the job. The worker's thread starts when first
    needed and ends with `close`. Jobs do not see context variables of the code that submits them."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._turn = threading.Lock()  # held by the thread that runs a job
        self._runner = 0  # the id of the thread that runs a job
        self._lock = threading.Lock()  # guards the fields below
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._waiting_count = 0  # jobs submitted but not started
        self._is_closed = False

    def run_inline(self, job: Callable[..., object], *arguments: Any) -> bool:
        """Run ``job``, which must not block or take long, in this thread. False, without running it, if another job
        runs or waits, or after `close`. Thread-safe."""
        with self._lock:
            if self._is_closed or self._waiting_count or not self._turn.acquire(blocking=False):
                return False
        self._run_job(job, arguments)
        return True

    def submit(self, job: Callable[..., object], *arguments: Any) -> bool:
        """Run ``job`` after those submitted before. False after `close`. Thread-safe."""
        with self._lock:
            if self._is_closed:
                return False
            self._waiting_count += 1
            self._post(0, self._begin_job, job, arguments)
        return True

    def submit_later(self, seconds: float, job: Callable[..., object], *arguments: Any) -> bool:
        """Run ``job`` after so many seconds, unless `close` comes first. False after `close`. Thread-safe."""
        with self._lock:
            if not self._is_closed:
                self._post(seconds, self._take_turn, job, arguments)
            return not self._is_closed

    def submit_beside(self, seconds: float, job: Callable[[], object]) -> bool:
        """Run ``job``, which must not raise, in the thread after so many seconds, unless `close` comes first. False
        after `close`. `run_inline` may run jobs at the same time. Thread-safe."""
        with self._lock:
            if not self._is_closed:
                self._post(seconds, job)
            return not self._is_closed

    async def drain(self, seconds: float) -> None:
        """Wait for all jobs submitted so far, for at most ``seconds``."""
        done: Future[None] = Future()
        if self.submit(done.set_result, None):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(asyncio.wrap_future(done))

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def close(self) -> None:
        """Run the submitted jobs and end. Blocks for a bounded time. May be called by a job."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            if self._loop is not None and is_first:
                self._post(0, self._take_turn, self._loop.stop, ())
        if threading.get_ident() == self._runner or threading.current_thread() is self._thread:
            return
        if self._thread is not None:
            self._thread.join(_END_WITHIN)
        elif self._turn.acquire(timeout=_END_WITHIN):  # wait for a job in another thread
            self._turn.release()

    def _post(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Make the thread call this after so many seconds. Needs the lock."""
        if self._loop is None:
            self._loop = polling_loop()
            self._thread = threading.Thread(
                target=self._work, args=(self._loop,), name="casemate-approvals", daemon=True
            )
            self._thread.start()
        if seconds > 0:
            arguments = (seconds, call, *arguments)
            call = self._loop.call_later
        self._loop.call_soon_threadsafe(call, *arguments, context=Context())

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.closing(loop):
            loop.run_forever()

    def _begin_job(self, job: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._turn.acquire()
        with self._lock:
            self._waiting_count -= 1
        self._run_job(job, arguments)

    def _take_turn(self, job: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._turn.acquire()
        self._run_job(job, arguments)

    def _run_job(self, job: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """Run the job, and release the turn that this thread holds."""
        self._runner = threading.get_ident()
        try:
            job(*arguments)
        except Exception as error:  # noqa: BLE001 - after an error, other jobs still run; requests that wait are denied
            self._on_error(error)
        finally:
            self._runner = 0
            self._turn.release()
