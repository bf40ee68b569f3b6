"""How far a call is, told to the cell that waits for it: lines before its answer, the latest, a few a second."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from casemate.files.lines import Client, line_of
from casemate.tools.connections.answers import Progress

_PAUSE = 0.1  # seconds between two lines: as often as people can read them


@asynccontextmanager
async def telling(
    client: Client, redacted: Callable[[Any], Awaitable[Any]]
) -> AsyncIterator[Callable[[Progress], None]]:
    """What hears of progress, in any thread, and never blocks. ``client`` is sent ``{"progress": n, "total": m or null,
    "message": "..."}`` at once, then at most every tenth of a second; what it did not hear before is dropped for what
    came later, and the last is always sent. Where the client is gone, nobody is told."""
    latest = _Latest()
    sending = asyncio.ensure_future(_send(client, latest, redacted))  # noqa: TID251 - ended here in every case
    try:
        yield latest.hear
    except asyncio.CancelledError:
        sending.cancel()
        raise
    finally:
        latest.end()
        with contextlib.suppress(OSError):
            await sending


class _Latest:
    """The latest that was said and not sent."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._said: Progress | None = None
        self._wake = asyncio.Event()
        self.over = asyncio.Event()

    def hear(self, progress: Progress) -> None:
        """The server says this. In any thread."""
        with self._lock:
            is_known, self._said = self._said is not None, progress
        if not is_known:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and so is who listened
                self._loop.call_soon_threadsafe(self._wake.set)

    def end(self) -> None:
        """Nothing more will be said."""
        self.over.set()
        self._wake.set()

    async def taken(self) -> Progress | None:
        """The latest, when there is one; None at the end."""
        await self._wake.wait()
        if not self.over.is_set():
            self._wake.clear()
        with self._lock:
            said, self._said = self._said, None
        return said


async def _send(client: Client, latest: _Latest, redacted: Callable[[Any], Awaitable[Any]]) -> None:
    while (said := await latest.taken()) is not None or not latest.over.is_set():
        if said is None:
            continue
        told = {"progress": said.progress, "total": said.total, "message": said.message}
        await client.send(line_of(await redacted(told)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                await latest.over.wait()
