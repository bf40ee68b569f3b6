"""The supervisor in a container: when it rests, and what it finds in what an interpreter says."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from casemate.supervisor import cgroups, pool
from casemate.supervisor.frames import StepEnds


def frame(text: str) -> bytes:
    return len(text.encode()).to_bytes(4, "big") + text.encode()


def done(step: int) -> bytes:
    return frame(f'{{"type":"done","step":{step},"at":[0,0],"exit":0,"new":[],"gone":[]}}')


def test_the_end_of_a_step_is_found_wherever_a_read_cuts_it() -> None:
    result = frame('{"type":"result","text":"' + "x" * 200 + '"}')
    said = b"".join([frame("{}"), frame('{"type":"ready"}'), done(1), result, done(23)])
    chance = random.Random(1)
    for _ in range(200):
        ends, at, found = StepEnds(), 0, []
        while at < len(said):
            size = chance.randrange(1, 60)
            found += ends.feed(said[at : at + size])
            at += size
        assert found == [1, 23]


def test_what_only_looks_like_the_end_of_a_step_is_none() -> None:
    inner = '{"type":"done","step":7,'
    said = frame('{"type":"result","bundle":' + inner) + frame('{"type":"done","step":x,')
    assert StepEnds().feed(said + done(8)) == [8]


def test_a_supervisor_whose_cell_was_handed_out_has_nothing_to_do_at_any_time() -> None:
    pending: list[pool.PendingCell] = []

    def prefork(made: pool.PendingCell, _program: bytes) -> Any:
        pending.append(made)
        return made

    maker: Any = SimpleNamespace(
        identities=SimpleNamespace(take=object), seccomp_program=lambda **_: b"", prefork=prefork
    )
    cells = pool.CellPool(maker, cgroups.Cgroups(None, None), ahead=False)
    cells.take()
    cells.prepare()
    assert cells.next_time() == float("inf")
    assert len(pending) == 1
    pending[0].discard()
