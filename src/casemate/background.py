"""Runs of their own that go on when whoever began them goes away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from casemate.sessions.long_run import Run

if TYPE_CHECKING:
    from casemate.execution.emitter import Emitter
    from casemate.model.request import Request
    from casemate.rooms import Rooms


def begin(request: Request, rooms: Rooms) -> Run:
    """Begin ``request`` in a fresh cell, and give the run, which ends with the sandbox at the latest.

    Raises ``QueueFull``.
    """
    rooms.slot().check_room()
    emitters: list[Emitter] = []

    async def work(emitter: Emitter) -> None:
        from casemate.execution import pipeline

        emitters.append(emitter)
        async with rooms.slot():
            rooms.check_open()
            await pipeline.execute(request, rooms.house, emitter)

    run = Run(
        request.id,
        work,
        partial(_end_cell, emitters),
        lambda asked: rooms.approvals.answerer(asked),  # noqa: PLW0108 - made when something is asked
    )
    rooms.background.add(run)
    return run


def _end_cell(emitters: list[Emitter]) -> bool:
    """Whether there was a cell to end."""
    end = emitters[0].end_cell if emitters else None
    if end is None:
        return False
    end()
    return True
