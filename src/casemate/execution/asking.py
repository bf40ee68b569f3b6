"""The approvals of one run or step: its way to the plane, as long as it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from casemate.approvals.channels import StreamChannel
from casemate.approvals.requester import Origin, Requester

if TYPE_CHECKING:
    from casemate.execution.emitter import Emitter
    from casemate.execution.house import House
    from casemate.model.request import Request
    from casemate.redaction.redaction import Redaction


@asynccontextmanager
async def asking(
    house: House, request: Request, emitter: Emitter | None, redaction: Redaction | None = None
) -> AsyncIterator[Requester]:
    """What the doors of ``request``'s cell ask. When this is left, nothing of it crosses any more."""
    approvals = house.approvals()
    stream = StreamChannel(emitter.emit, lambda: emitter.is_followed) if emitter else None
    asker = approvals.requester(
        Origin(request.namespace, request.session, request.id), stream, redaction, asks=house.asks
    )
    if emitter and stream:
        emitter.on_left = lambda: approvals.drop_channel(stream)
        emitter.has_begun = True
    try:
        yield asker
    finally:
        await asker.end()
        if emitter:
            emitter.on_left = None  # nothing waits any more for whoever follows it
