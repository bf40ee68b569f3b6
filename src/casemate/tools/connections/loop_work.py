"""Work of other event loops in the thread of the connections, and results that come without waking a loop.

Each change of thread costs a tenth of a millisecond or so: who calls servers again and again does so from within.
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
    """Who works in a loop that is not its own. ``enter``, ``abandon``: in any thread; ``cancel``: in the loop's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: set[Future[None]] = set()  # of those that have not ended
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, loop: asyncio.AbstractEventLoop, group: asyncio.TaskGroup, work: Work) -> WorkItem:
        """Have ``work`` begun in ``loop``, where ``group`` is. Raises ``Fault`` where it is gone."""
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
        """End all that are there; those that come later have no group to be in."""
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        """The loop is gone: nobody need wait for anything there."""
        with self._lock:
            left = tuple(self._pending)
        for end in left:
            _finish(end, Fault("the thread of the connections to MCP servers is gone"))

    def _begin(self, item: WorkItem, group: asyncio.TaskGroup, work: Work) -> None:
        working = _run(work, item.end)
        try:
            task = item.task = group.create_task(working)
        except RuntimeError:  # it is ending
            working.close()
            _finish(item.end, Fault("the connections to MCP servers are ending"))
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: _finish(item.end, None))  # also where it was cancelled before it began

    def _discard(self, end: Future[None]) -> None:
        with self._lock:
            self._pending.discard(end)


class WorkItem:
    """One piece of work. ``end`` is done when nothing of it goes on, with what it raised."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.end: Future[None] = Future()
        self.end.set_running_or_notify_cancel()  # only its end ends it
        self.task: asyncio.Task[None] | None = None
        self._loop = loop

    async def stay(self) -> None:
        """Until it has ended. Cancelling this ends it, which is waited for all the same: what it was lent is its own
        before. Raises what it raised."""
        is_cancelled = False
        while not self.end.done():
            try:
                await _wait(self.end)
            except asyncio.CancelledError:
                if not is_cancelled:  # once is enough, however impatient: it may have something to tidy up
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
    """As ``asyncio.wrap_future``, but that what is there already, or comes in this thread, wakes no loop."""
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
    """Wait until ``future`` is done, whatever with; it is not cancelled with this."""
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def on_done(_: Future[T]) -> None:
        if threading.get_ident() == here:
            wake()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited with it
                loop.call_soon_threadsafe(wake)

    future.add_done_callback(on_done)
    await waiter


async def _run(work: Work, end: Future[None]) -> None:
    """``work``, of which nothing that goes wrong is anybody else's end."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - whoever waits for it has it
        _finish(end, error)


def _finish(end: Future[None], error: Exception | None) -> None:
    if end.done():
        return
    if error is None:
        end.set_result(None)
    else:
        end.set_exception(error)
