"""Runs of their own that go on when whoever began them goes away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from casemate.sessions.run import Run

if TYPE_CHECKING:
    from casemate.api.wiring import Rooms
    from casemate.execution.emitter import Emitter
    from casemate.model.request import Request


def begin(request: Request, rooms: Rooms, work: Callable[[Emitter], Awaitable[object]] | None = None) -> Run:
    """Begin ``request`` in a fresh cell, and give the run, which ends with the sandbox at the latest. ``work``: what is
    done instead, to the same end: an execution with the id of ``request``, of which the emitter is told.

    Raises ``QueueFull``.
    """
    rooms.slot().check_room()
    emitters: list[Emitter] = []
    doing = work or partial(_execute, request, rooms)

    async def noted(emitter: Emitter) -> None:
        emitters.append(emitter)
        await doing(emitter)

    run = Run(
        request.id,
        noted,
        partial(_end_cell, emitters),
        lambda asked: rooms.approvals.answer_function(asked),  # noqa: PLW0108 - made when something is asked
        is_step=False,
    )
    return rooms.background.add(run)


async def _execute(request: Request, rooms: Rooms, emitter: Emitter) -> None:
    from casemate.execution import pipeline

    async with rooms.slot():
        rooms.check_open()
        await pipeline.execute(request, rooms.house, emitter)


def _end_cell(emitters: list[Emitter]) -> bool:
    """Whether there was a cell to end."""
    end = emitters[0].end_cell if emitters else None
    if end is None:
        return False
    end()
    return True
