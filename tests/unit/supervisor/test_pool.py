"""When a supervisor preforks the first process of another cell."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Iterator
from unittest import mock

import pytest

from casemate.supervisor import cgroups, namespaced, pool, wire


class Clock:
    """One that the test sets."""

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

    def make(*_: object, **_options: object) -> Made:
        all_of_them.append(Made())
        return all_of_them[-1]

    monkeypatch.setattr(pool, "PendingCell", lambda *_: None)
    monkeypatch.setattr(namespaced.NamespaceMaker, "prefork", make)
    yield all_of_them
    for one in all_of_them:
        one.discard()


def test_after_the_first_another_is_made_a_moment_later_and_after_those_that_follow_at_once(
    made: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "time", clock := Clock())
    cells = pool.CellPool(namespaced.NamespaceMaker("user", range(1)), cgroups.Cgroups(None, None))
    cells.prepare()
    assert (len(made), cells.next_time()) == (1, math.inf)
    cells.take()
    cells.prepare()
    assert len(made) == 1
    assert clock.now < cells.next_time() < math.inf
    clock.now = cells.next_time()
    cells.prepare()
    assert (len(made), cells.next_time()) == (2, math.inf)
    for number in (3, 4):
        cells.take()
        cells.prepare()
        assert (len(made), cells.next_time()) == (number, math.inf)


def test_a_second_cell_that_is_wanted_sooner_is_not_made_to_wait(
    made: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "time", Clock())
    cells = pool.CellPool(namespaced.NamespaceMaker("user", range(1)), cgroups.Cgroups(None, None))
    taken = [cells.take() for _ in range(2)]
    assert [one.pid for one in taken] == [one.pid for one in made]
    cells.prepare()
    assert len(made) == 3


def test_a_ready_cell_that_says_nothing_is_waited_for_no_longer_than_that() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, mock.patch.object(wire, "ANSWER_WITHIN", 10):
        made = pool.ReadyCell.__new__(pool.ReadyCell)
        made.channel, made.network_namespace = ours, -1
        with pytest.raises(OSError, match="in time"):
            made.wait_prepared()
