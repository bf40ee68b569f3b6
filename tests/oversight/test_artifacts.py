"""Artifacts of the last runs, found by a run's id."""

from __future__ import annotations

import pytest

from casemate import InvalidArgument, Sandbox
from casemate.artifacts import kept
from casemate.artifacts.kept import Artifacts

LEAVE = "open('a.txt', 'w').write('one'); open('b.bin', 'wb').write(b'x' * {})"


async def test_what_a_run_and_a_step_left_is_found_by_their_ids(sandbox: Sandbox) -> None:
    run = await sandbox.run(LEAVE.format(3))
    assert await sandbox.artifacts.list(run.id) == list(run.artifacts)
    assert await sandbox.artifacts.read(run.id, "a.txt") == b"one"
    async with sandbox.session() as session:
        step = await session.run(LEAVE.format(5))
    assert await sandbox.artifacts.read(step.id, "b.bin") == b"x" * 5


async def test_the_oldest_make_room_for_those_that_come(sandbox: Sandbox) -> None:
    runs = [await sandbox.run(LEAVE.format(100)) for _ in range(4)]
    some, small = Artifacts(runs=3), Artifacts(size=250)
    for run in runs:
        some.keep(run)
        small.keep(run)
    for artifacts, expected in ((some, [False, True, True, True]), (small, [False, False, True, True])):
        there = []
        for run in runs:
            try:
                there.append(bool(await artifacts.list(run.id)))
            except InvalidArgument:
                there.append(False)
        assert there == expected
    small.keep(large := await sandbox.run(LEAVE.format(300)))
    with pytest.raises(InvalidArgument, match="kept"):
        await small.list(large.id)
    assert await small.read(runs[-1].id, "a.txt") == b"one"
    assert await sandbox.artifacts.list(large.id)
    assert kept.MOST_BYTES >= 64 << 20
