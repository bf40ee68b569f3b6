"""Waiting for something with a client that waits, too: progress, questions, cancellation, and an answer in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from casemate.surfaces.mcp.asking import answer_asked, ask_now, questions
from casemate.surfaces.mcp.call import Call, Resumed

if TYPE_CHECKING:
    from mcp_types import CallToolResult, InputRequiredResult

    from casemate.surfaces.mcp.work import State, Work

    Answer = Callable[[State], Awaitable[CallToolResult]]

_EACH = 1.0  # seconds between two reports of progress


async def follow(
    call: Call, work: Work, answer: Answer, first: State | None = None, *, ends: bool = True
) -> CallToolResult | InputRequiredResult:
    """The ``answer`` when ``work`` is done, when the client's user must be asked between two calls, or when the call's
    patience is over; the work goes on in the two latter cases. ``first``: a state that is known already. ``ends``: the
    work is ended if this call is cancelled.
    """
    try:
        if call.resumed is not None:
            await answer_asked(call)
        return await _follow(call, work, answer, first)
    except anyio.get_cancelled_exc_class():
        if ends:
            with anyio.CancelScope(shield=True):
                await work.cancel()
        raise


async def _follow(call: Call, work: Work, answer: Answer, first: State | None) -> CallToolResult | InputRequiredResult:
    seen: frozenset[str] = frozenset()
    state = first if first is not None else await work.wait(min(_EACH, call.left), seen)
    while not state.is_done:
        fresh = await questions(call, state.asked - seen) if call.can_ask() or call.can_ask("url") else []
        seen = state.asked
        if fresh and call.is_modern:
            from mcp_types import InputRequiredResult

            resumed = Resumed(work.handle, {one.id: one.hash for one in fresh}, call.progress)
            return InputRequiredResult(
                input_requests={one.id: one.request() for one in fresh}, request_state=resumed.sealed()
            )
        for question in fresh:
            await ask_now(call, question, work, seen)
        if call.left <= 0:
            break
        state = await work.wait(min(_EACH, call.left), seen)
        if not state.is_done:
            await call.tell("waits for an approval" if state.status == "waiting" else state.status)
    return await answer(state)
