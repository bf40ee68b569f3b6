"""Work that tells of itself, as the stream of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from casemate.execution.emitter import Emitter

if TYPE_CHECKING:
    from casemate.model.events import Event


async def events(work: Callable[[Emitter], Coroutine[Any, Any, object]]) -> AsyncGenerator[Event]:
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
