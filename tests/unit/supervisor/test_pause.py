"""Whether everything below a process is stopped, and what is done where the kernel does not tell: real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import until
from tests.unit.supervisor.test_watch import FAMILY, child

from casemate.supervisor import cells, pause, watch

LIMITS = {"memory": 1 << 40, "disk": 1 << 20, "cpu_time": None, "cpus": 1.0}


@pytest.fixture
def family() -> Iterator[int]:
    """A process with three below it that go on."""
    with child(FAMILY.format(each="time.sleep(0.01)")) as pid:
        yield pid


def made_up(proc: Path, **tasks: str | None) -> list[int]:
    """A /proc of processes with one task each, which tells of their run times so; None: it has no such file."""
    for number, (name, told) in enumerate(tasks.items(), 100):
        task = proc / str(number) / "task" / str(number)
        task.mkdir(parents=True)
        (task / "comm").write_text(name)
        if told is not None:
            (task / "schedstat").write_text(told)
    return list(range(100, 100 + len(tasks)))


def test_run_times_are_added_up(tmp_path: Path) -> None:
    assert watch.run_time(made_up(tmp_path, one="5 7 1\n", other="20 0 3\n"), str(tmp_path)) == 25


@pytest.mark.parametrize("untold", [None, "", "0 0 0\n", "x y z\n"])
def test_a_kernel_that_does_not_say_it_of_every_task_says_nothing(tmp_path: Path, untold: str | None) -> None:
    assert watch.run_time(made_up(tmp_path, one="5 7 1\n", other=untold), str(tmp_path)) is None


def test_what_was_stopped_stands_still_until_it_is_woken(family: int) -> None:
    stop = pause.Pause(family)
    until(stop.stop)
    assert stop.is_unbroken()
    os.kill(watch.measure(family).pids[0], 18)
    while stop.is_unbroken():
        pass  # until it has run
    stop.resume()


def test_nothing_is_known_to_stand_still_where_the_kernel_does_not_tell(
    family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pause.can_be_verified()
    monkeypatch.setattr(watch, "run_time", lambda *_: None)
    stop = pause.Pause(family)
    until(stop.stop)  # it is stopped all the same
    assert not stop.is_unbroken()
    assert not pause.can_be_verified()
    stop.resume()


@pytest.mark.parametrize("told", [True, False])
def test_a_cell_is_paused_only_where_it_can_be_known_to_stand_still(
    family: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its clock would run on while it is stopped, and the answer would come too late for it."""
    if not told:
        monkeypatch.setattr(watch, "run_time", lambda *_: None)
    request = {"id": "x", "limits": LIMITS, "rlimits": {"DATA": None}, "awaits_order": False, "session": False}
    made: Any = SimpleNamespace(
        pid=family, group=None, status_fd=-1, has_own_network=True, processes=None, terminals_of=None
    )
    made.open_pidfd = lambda: os.pidfd_open(family)
    made.socket_memory = lambda _: 0
    scratch: Any = SimpleNamespace(files_bytes=lambda: 0, is_watched=False)
    cell = cells.CellProcess({**request, "deadline": 60.0}, made, scratch, 0)
    cell.pause()
    assert all(watch.all_tasks_in(pid, b"T") for pid in watch.measure(family).pids) == told
    deadline = cell.deadline
    cell.resume()
    assert (cell.deadline > deadline) == told
    cell.close_descriptors()
