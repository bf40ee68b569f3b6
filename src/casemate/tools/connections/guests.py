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


class Guests:
    """Who works in a loop that is not its own. ``enter``, ``abandon``: in any thread; ``cancel``: in the loop's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: set[Future[None]] = set()  # of those that have not ended
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, loop: asyncio.AbstractEventLoop, group: asyncio.TaskGroup, work: Work) -> Guest:
        """Have ``work`` begun in ``loop``, where ``group`` is. Raises ``Fault`` where it is gone."""
        guest = Guest(loop)
        with self._lock:
            self._ends.add(guest.ended)
        guest.ended.add_done_callback(self._left)
        try:
            loop.call_soon_threadsafe(self._begin, guest, group, work)
        except RuntimeError:
            self._left(guest.ended)
            raise Fault("the thread of the connections to MCP servers is gone") from None
        return guest

    def cancel(self) -> None:
        """End all that are there; those that come later have no group to be in."""
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        """The loop is gone: nobody need wait for anything there."""
        with self._lock:
            left = tuple(self._ends)
        for ended in left:
            _end(ended, Fault("the thread of the connections to MCP servers is gone"))

    def _begin(self, guest: Guest, group: asyncio.TaskGroup, work: Work) -> None:
        working = _kept(work, guest.ended)
        try:
            task = guest.task = group.create_task(working)
        except RuntimeError:  # it is ending
            working.close()
            _end(guest.ended, Fault("the connections to MCP servers are ending"))
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: _end(guest.ended, None))  # also where it was cancelled before it began

    def _left(self, ended: Future[None]) -> None:
        with self._lock:
            self._ends.discard(ended)


class Guest:
    """One piece of work. ``ended`` is done when nothing of it goes on, with what it raised."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # only its end ends it
        self.task: asyncio.Task[None] | None = None
        self._loop = loop

    async def stay(self) -> None:
        """Until it has ended. Cancelling this ends it, which is waited for all the same: what it was lent is its own
        before. Raises what it raised."""
        is_cancelled = False
        while not self.ended.done():
            try:
                await _done(self.ended)
            except asyncio.CancelledError:
                if not is_cancelled:  # once is enough, however impatient: it may have something to tidy up
                    with contextlib.suppress(RuntimeError):
                        self._loop.call_soon_threadsafe(self._cancel)
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError
        self.ended.result()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


async def arrived(future: Future[T]) -> T:
    """As ``asyncio.wrap_future``, but that what is there already, or comes in this thread, wakes no loop."""
    if not future.done():
        try:
            await _done(future)
        except asyncio.CancelledError:
            future.cancel()
            raise
    if future.cancelled():
        raise asyncio.CancelledError
    return future.result()


async def _done(future: Future[T]) -> None:
    """Wait until ``future`` is done, whatever with; it is not cancelled with this."""
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    waiter: asyncio.Future[None] = loop.create_future()

    def told() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def came(_: Future[T]) -> None:
        if threading.get_ident() == here:
            told()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited with it
                loop.call_soon_threadsafe(told)

    future.add_done_callback(came)
    await waiter


async def _kept(work: Work, ended: Future[None]) -> None:
    """``work``, of which nothing that goes wrong is anybody else's end."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - whoever waits for it has it
        _end(ended, error)


def _end(ended: Future[None], error: Exception | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
