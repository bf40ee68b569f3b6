"""Runs work of other event loops in the connections' thread, and waits for results without waking a loop.

A change of thread costs about a tenth of a millisecond, so frequent callers run in the connections' thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from casemate.errors import Fault

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]


class LoopWork:
    """The work that runs in the loop for others. ``enter`` and ``abandon`` are thread-safe; ``cancel`` is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: set[Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, loop: asyncio.AbstractEventLoop, group: asyncio.TaskGroup, work: Work) -> WorkItem:
        """Start ``work`` in ``loop`` as a task of ``group``. Raises ``Fault`` if the loop is gone."""
        item = WorkItem(loop)
        with self._lock:
            self._pending.add(item.end)
        item.end.add_done_callback(self._discard)
        try:
            loop.call_soon_threadsafe(self._begin, item, group, work)
        except RuntimeError:
            self._discard(item.end)
            raise Fault("the thread of the connections to MCP servers is gone") from None
        return item

    def cancel(self) -> None:
        """Cancel all work. Later work fails, because the group has ended."""
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        """Fail all pending work, because the loop is gone."""
        with self._lock:
            left = tuple(self._pending)
        for end in left:
            _finish(end, Fault("the thread of the connections to MCP servers is gone"))

    def _begin(self, item: WorkItem, group: asyncio.TaskGroup, work: Work) -> None:
        working = _run(work, item.end)
        try:
            task = item.task = group.create_task(working)
        except RuntimeError:  # the group is ending
            working.close()
            _finish(item.end, Fault("the connections to MCP servers are ending"))
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: _finish(item.end, None))  # even if it was cancelled before it started

    def _discard(self, end: Future[None]) -> None:
        with self._lock:
            self._pending.discard(end)


class WorkItem:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.end: Future[None] = Future()  # done when the work has ended, with its exception
        self.end.set_running_or_notify_cancel()  # so that it cannot be cancelled
        self.task: asyncio.Task[None] | None = None
        self._loop = loop

    async def stay(self) -> None:
        """Wait for the end and raise the work's exception. A cancellation cancels the work and still waits, because
        the work uses the caller's objects until then."""
        is_cancelled = False
        while not self.end.done():
            try:
                await _wait(self.end)
            except asyncio.CancelledError:
                if not is_cancelled:  # only once: the work may need to clean up
                    with contextlib.suppress(RuntimeError):
                        self._loop.call_soon_threadsafe(self._cancel)
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError
        self.end.result()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


async def result_of(future: Future[T]) -> T:
    """Like ``asyncio.wrap_future``, but a result that is ready, or set in this thread, does not wake the loop."""
    if not future.done():
        try:
            await _wait(future)
        except asyncio.CancelledError:
            future.cancel()
            raise
    if future.cancelled():
        raise asyncio.CancelledError
    return future.result()


async def _wait(future: Future[T]) -> None:
    """Wait until ``future`` is done. Cancelling this does not cancel it."""
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def on_done(_: Future[T]) -> None:
        if threading.get_ident() == here:
            wake()
        else:
            with contextlib.suppress(RuntimeError):  # the waiter's loop is gone
                loop.call_soon_threadsafe(wake)

    future.add_done_callback(on_done)
    await waiter


async def _run(work: Work, end: Future[None]) -> None:
    """Run ``work``. Its errors go to ``end`` and do not end the group."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - `stay` raises it
        _finish(end, error)


def _finish(end: Future[None], error: Exception | None) -> None:
    if end.done():
        return
    if error is None:
        end.set_result(None)
    else:
        end.set_exception(error)
