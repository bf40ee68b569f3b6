"""One execution as the stream of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from casemate.execution import pipeline
from casemate.execution.emitter import Emitter
from casemate.execution.house import House
from casemate.model.events import Event
from casemate.model.request import Request


async def events(request: Request, house: House) -> AsyncGenerator[Event]:
    """Events of one execution, whose task ends when the consumer leaves."""
    emitter = Emitter()
    # The task is this generator's own: awaited or cancelled below, whatever happens.
    task = asyncio.ensure_future(pipeline.execute(request, house, emitter))  # noqa: TID251
    task.add_done_callback(lambda _: emitter.close())
    try:
        async for event in emitter.events():
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
