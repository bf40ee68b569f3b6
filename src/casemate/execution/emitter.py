"""Carries events to a consumer: bounded, in order, from any thread to one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casemate.model.events import Event

_HIGH_WATER = 1 << 20  # bytes of events that wait before the cell's pipes are no longer read


class Emitter:
    """Carries events to whoever iterates over it, until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._arrived = asyncio.Event()
        self._events: deque[tuple[Event | None, int]] = deque()  # None: the end
        self._waiting = 0  # bytes
        self._lock = threading.Lock()
        self.on_room: Callable[[], None] | None = None  # called when a full queue has room again
        self.is_followed = True  # by somebody who could answer what it asks
        self.on_unfollowed: Callable[[], None] | None = None  # called when nobody follows it any more
        self.has_begun = False  # the run whose events it carries
        self.end_cell: Callable[[], None] | None = None  # of a run of its own: ends it as cancelled

    def close(self) -> None:
        """There will be no more events."""
        self.emit(None, 0)

    def set_followed(self, is_followed: bool) -> None:
        """Whether anybody who could answer follows the events from now on."""
        was_followed, self.is_followed = self.is_followed, is_followed
        if was_followed and not is_followed and self.on_unfollowed:
            self.on_unfollowed()

    def emit(self, event: Event | None, size: int) -> None:
        """Hand on ``event``, which takes about ``size`` bytes. From any thread; never blocks."""
        with self._lock:
            self._events.append((event, size))
            self._waiting += size
        if threading.get_ident() == self._thread:
            self._arrived.set()
        else:
            self._loop.call_soon_threadsafe(self._arrived.set)

    def is_full(self) -> bool:
        return self._waiting > _HIGH_WATER

    async def events(self) -> AsyncIterator[Event]:
        """Every event in order, until the end."""
        while (event := await self._next()) is not None:
            yield event

    async def _next(self) -> Event | None:
        while not self._events:
            await self._arrived.wait()
            self._arrived.clear()
        with self._lock:
            event, size = self._events.popleft()
            was_full = self.is_full()
            self._waiting -= size
        if was_full and not self.is_full() and self.on_room:
            self.on_room()
        return event


async def stream_events(work: Callable[[Emitter], Coroutine[Any, Any, object]]) -> AsyncGenerator[Event]:
    """Events of ``work``, whose task is cancelled when the consumer leaves; then what it raises."""
    emitter = Emitter()
    # The task is this generator's own: awaited or cancelled below, whatever happens.
    task = asyncio.ensure_future(work(emitter))  # noqa: TID251
    task.add_done_callback(lambda _: emitter.close())
    try:
        async for event in emitter.events():
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
