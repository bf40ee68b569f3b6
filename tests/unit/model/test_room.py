"""Whether one more cell starts, given what the machine has left."""

from __future__ import annotations

import pytest

from casemate.model.room import PATIENCE, Room, decide

MIB, GIB = 1 << 20, 1 << 30
LARGE = {"memory_total": 16 * GIB, "processes": 10_000}  # of which 256 MiB are spared for others


@pytest.mark.parametrize(("room", "begun", "running", "waited", "verdict"), [
    (Room(memory=288 * MIB, **LARGE), 0, 0, 0.0, ("start", "")),
    (Room(memory=288 * MIB - 1, **LARGE), 0, 0, 0.0, ("wait", "memory")),
    (Room(memory=288 * MIB, **LARGE), 1, 1, 0.0, ("wait", "memory")),
    (Room(memory=320 * MIB, **LARGE), 1, 1, 0.0, ("start", "")),
    (Room(memory=0, **LARGE), 0, 0, PATIENCE, ("refuse", "memory")),
    (Room(memory=0, **LARGE), 0, 1, 10 * PATIENCE, ("wait", "memory")),
    (Room(memory=39 * MIB, memory_total=128 * MIB, processes=99), 0, 0, 0.0, ("start", "")),  # 5 % of a small one
    (Room(memory=38 * MIB, memory_total=128 * MIB, processes=99), 0, 0, 0.0, ("wait", "memory")),
    (Room(memory=3 * GIB, memory_pressure=19, **LARGE), 0, 1, 0.0, ("start", "")),
    (Room(memory=3 * GIB, memory_pressure=20, **LARGE), 0, 1, 0.0, ("wait", "memory")),
    (Room(memory=3 * GIB, memory_pressure=99, **LARGE), 0, 0, 0.0, ("start", "")),  # it may be another's
    (Room(memory=4 * GIB, memory_pressure=99, **LARGE), 0, 1, 0.0, ("start", "")),  # a cell is at its own limit
    (Room(memory=8 * GIB, memory_total=16 * GIB, processes=16), 0, 0, 0.0, ("start", "")),
    (Room(memory=8 * GIB, memory_total=16 * GIB, processes=15), 0, 0, 0.0, ("wait", "processes")),
    (Room(memory=8 * GIB, memory_total=16 * GIB, processes=31), 1, 1, 0.0, ("wait", "processes")),
    (Room(memory=8 * GIB, memory_total=16 * GIB, processes=0), 0, 0, PATIENCE, ("refuse", "processes")),
])  # fmt: skip
def test_a_cell_starts_where_there_is_room_waits_for_what_may_come_and_is_refused_otherwise(
    room: Room, begun: int, running: int, waited: float, verdict: tuple[str, str]
) -> None:
    assert decide(room, begun, running, waited) == verdict
