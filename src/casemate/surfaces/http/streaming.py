"""Events of an operation as server-sent events, to someone who may be slow, or go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError
from casemate.operations.wire import error_document
from casemate.remote.sse import PING, framed
from casemate.surfaces.http.exchange import json_pieces

if TYPE_CHECKING:
    from casemate.surfaces.http.exchange import Exchange

_PING_EVERY = 15.0  # seconds without an event
_HEAD = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
_END = framed("end", {})


async def send_events(exchange: Exchange, events: AsyncGenerator[dict[str, Any]]) -> None:
    """Answer with ``events``; the next is only asked for when one has been taken. Ends with the event ``end``, or with
    ``error`` where there are no more because something failed. An error before the first is one of the request.

    Raises :class:`Gone`, and what the first event raises.
    """
    await exchange.unless_gone(_all(exchange, events))


async def _all(exchange: Exchange, events: AsyncGenerator[dict[str, Any]]) -> None:
    async with contextlib.aclosing(events):
        waiting = asyncio.ensure_future(anext(events, None))  # noqa: TID251 - waited for below, whatever happens
        try:
            while True:
                if not (await asyncio.wait([waiting], timeout=_PING_EVERY if exchange.status else 0.05))[0]:
                    await _begun(exchange)
                    await exchange.more(PING)
                    continue
                event = waiting.result()
                await _begun(exchange)
                if event is None:
                    await exchange.more(_END)
                    break
                await _send(exchange, event)
                waiting = asyncio.ensure_future(anext(events, None))  # noqa: TID251 - as above
        except CasemateError as error:
            if not exchange.status:
                raise
            await exchange.more(framed("error", error_document(error)))
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])
    await exchange.end()


async def _begun(exchange: Exchange) -> None:
    if not exchange.status:
        await exchange.begin(200, _HEAD)


async def _send(exchange: Exchange, event: dict[str, Any]) -> None:
    """One event; a large one, such as an outcome, in pieces."""
    cursor = event.get("cursor")
    await exchange.more(
        f"{f'id: {cursor}' + chr(10) if cursor is not None else ''}event: event\ndata: ".encode("ascii")
    )
    async for piece in json_pieces(event):
        await exchange.more(piece)
    await exchange.more(b"\n\n")
