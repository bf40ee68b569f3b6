"""Runs of their own that go on when whoever began them goes away."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.sessions.run import Run

if TYPE_CHECKING:
    from casemate.api.wiring import Rooms
    from casemate.execution.emitter import Emitter
    from casemate.model.request import Request


def start_run(
    request: Request, rooms: Rooms, work: Callable[[Emitter], Coroutine[Any, Any, object]] | None = None
) -> Run:
    """Start ``request`` in a fresh cell. The run ends with the sandbox at the latest. ``work`` is done instead, to the
    same end: an execution with the id of ``request``, whose events the emitter gets.

    Raises ``QueueFull``.
    """
    rooms.slot().check_room()
    run = Run(
        request.id,
        work or partial(_execute, request, rooms),
        _end_cell,
        lambda request_id: rooms.approvals.answer_function(request_id),  # noqa: PLW0108 - made when something is asked
        is_step=False,
    )
    return rooms.background.add(run)


async def _execute(request: Request, rooms: Rooms, emitter: Emitter) -> None:
    from casemate.execution import pipeline

    async with rooms.slot():
        rooms.check_open()
        await pipeline.execute(request, rooms.house, emitter)


def _end_cell(emitter: Emitter | None) -> bool:
    """End the cell; whether there was one."""
    if emitter is None or emitter.end_cell is None:
        return False
    emitter.end_cell()
    return True
