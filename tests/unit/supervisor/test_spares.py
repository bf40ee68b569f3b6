"""When a supervisor makes the first process of another cell ahead."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator

import pytest

from casemate.supervisor import cgroups, identity, spare, spares


class Clock:
    """One that stands still."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Made:
    """A process that waits, in place of a cell's first."""

    def __init__(self) -> None:
        self.pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})

    def discard(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Made]]:
    """All that were made."""
    all_of_them: list[Made] = []

    def make(*_: object) -> Made:
        all_of_them.append(Made())
        return all_of_them[-1]

    monkeypatch.setattr(spare, "Unborn", lambda *_: None)
    monkeypatch.setattr(spare, "make", make)
    yield all_of_them
    for one in all_of_them:
        one.discard()


def test_after_the_first_another_is_made_a_moment_later_and_after_those_that_follow_at_once(
    made: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "time", clock := Clock())
    kept = spares.Spares(identity.Identity(0, 0, mapped=False), cgroups.Cgroups(None, None))
    kept.prepare()
    assert (len(made), kept.next_time()) == (1, math.inf)
    kept.take()
    kept.prepare()
    assert len(made) == 1
    assert clock.now < kept.next_time() < math.inf
    clock.now = kept.next_time()
    kept.prepare()
    assert (len(made), kept.next_time()) == (2, math.inf)
    for number in (3, 4):
        kept.take()
        kept.prepare()
        assert (len(made), kept.next_time()) == (number, math.inf)


def test_a_second_cell_that_is_wanted_sooner_is_not_made_to_wait(
    made: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "time", Clock())
    kept = spares.Spares(identity.Identity(0, 0, mapped=False), cgroups.Cgroups(None, None))
    taken = [kept.take() for _ in range(2)]
    assert [one.pid for one in taken] == [one.pid for one in made]
    kept.prepare()
    assert len(made) == 3
