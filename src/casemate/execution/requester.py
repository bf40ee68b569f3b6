"""The requester of one run or step: what asks the approval broker, as long as the run goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from casemate.approvals.channels import StreamChannel
from casemate.approvals.requester import Origin, Requester

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.execution.emitter import Emitter
    from casemate.model.plan import Request
    from casemate.redaction.redaction import Redaction


@asynccontextmanager
async def open_requester(
    context: ExecutionContext, request: Request, emitter: Emitter | None, redaction: Redaction | None = None
) -> AsyncIterator[Requester]:
    """The requester of ``request``. When this is left, nothing of it crosses any more."""
    approvals = context.approvals()
    stream = StreamChannel(emitter.emit, lambda: emitter.is_followed) if emitter else None
    origin = Origin(request.namespace, request.session, request.id)
    requester = approvals.requester(origin, stream, redaction, asks=context.asks)
    if emitter and stream:
        emitter.on_unfollowed = lambda: approvals.drop_channel(stream)
        emitter.has_begun = True
    try:
        yield requester
    finally:
        await requester.end()
        if emitter:
            emitter.on_unfollowed = None  # nothing waits any more for whoever follows it
