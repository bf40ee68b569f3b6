"""Events of an operation as server-sent events, to someone who may be slow, or go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError
from casemate.operations.failures import error_document
from casemate.remote.sse import PING, framed
from casemate.surfaces.http.exchange import Gone, json_pieces
from casemate.surfaces.http.turns import TURNS

if TYPE_CHECKING:
    from casemate.surfaces.http.exchange import Exchange

_PING_EVERY = 15.0  # seconds without an event
_BEGUN_AFTER = 0.05  # seconds; what fails earlier is an error of the request
_AT_ONCE = 64 * 1024  # bytes
_HEAD = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
_END = framed("end", {})


async def send_events(exchange: Exchange, events: AsyncGenerator[dict[str, Any]]) -> None:
    """Answer with ``events``; the next is only asked for when one has been taken. Ends with the event ``end``, or with
    ``error`` where there are no more because something failed. An error before the first is one of the request.

    Raises :class:`Gone`, and what the first event raises.
    """
    await exchange.unless_gone(_all(exchange, events))


async def _all(exchange: Exchange, events: AsyncGenerator[dict[str, Any]]) -> None:
    stream = _Stream(exchange)
    async with contextlib.aclosing(events):
        alive = asyncio.ensure_future(stream.keep_alive())  # noqa: TID251 - cancelled and waited for below
        try:
            async for event in events:
                await TURNS.take()
                await stream.give(event)
            await stream.write(_END)
        except CasemateError as error:
            if not exchange.status:
                raise
            await stream.write(framed("error", error_document(error)))
        finally:
            alive.cancel()
            await asyncio.wait([alive])
    await exchange.end()


class _Stream:
    """One writer at a time, and a sign of life where there is nothing to write."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._turn = asyncio.Lock()
        self._written = 0

    async def give(self, event: dict[str, Any]) -> None:
        """One event; a large one, such as an outcome, in pieces."""
        cursor = event.get("cursor")
        before = f"{f'id: {cursor}' + chr(10) if cursor is not None else ''}event: event\ndata: ".encode("ascii")
        async with self._turn:
            await self._begin()
            held = before
            async for piece in json_pieces(event):
                if len(held) > _AT_ONCE:
                    await self._exchange.more(held)
                    held = b""
                held += piece
            await self._exchange.more(held + b"\n\n")

    async def write(self, data: bytes) -> None:
        """What is no event of the operation's."""
        async with self._turn:
            await self._begin()
            await self._exchange.more(data)

    async def keep_alive(self) -> None:
        """Begin the answer soon, whether anything happens or not, and say something now and then."""
        await asyncio.sleep(_BEGUN_AFTER)
        while True:
            before = self._written
            await asyncio.sleep(0 if not self._exchange.status else _PING_EVERY)
            if before == self._written:
                try:
                    await self.write(PING)
                except Gone:
                    return  # whoever writes next is told, too

    async def _begin(self) -> None:
        self._written += 1
        if not self._exchange.status:
            await self._exchange.begin(200, _HEAD)
