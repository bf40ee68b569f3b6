"""What one look at a cell sees: real processes below this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from casemate.supervisor import cells, watch

MIB = 2**20


@contextmanager
def child(code: str) -> Iterator[int]:
    """A process that runs ``code``, says a word and waits; its number."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint('ready', flush=True)\nimport sys; sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.wait()
        process.stdin.close()
        process.stdout.close()


FAMILY = """
import os, time
for _ in range(3):
    r, w = os.pipe()
    if os.fork() == 0:
        {each}
        os.write(w, b"x"); time.sleep(1000)
    os.read(r, 1)
"""


def test_processes_and_threads_below_are_counted_and_the_first_is_not() -> None:
    with child(
        FAMILY.format(each="import threading; threading.Thread(target=time.sleep, args=(1000,)).start()")
    ) as pid:
        sight = watch.measure(pid)
        assert (len(sight.pids), sight.tasks) == (3, 6)


def test_grandchildren_and_children_of_threads_are_seen() -> None:
    code = """
import os, threading, time
r, w = os.pipe()
def work():
    if os.fork() == 0:
        if os.fork() == 0: os.write(w, b"x")
        time.sleep(1000)
    time.sleep(1000)
threading.Thread(target=work, daemon=True).start()
os.read(r, 1)
"""
    with child(code) as pid:
        assert len(watch.measure(pid).pids) == 2


def test_private_memory_is_summed_and_the_files_of_the_cell_are_not_counted_twice() -> None:
    with child(FAMILY.format(each="held = bytearray(30 << 20); held[::4096] = bytes([1]) * len(held[::4096])")) as pid:
        assert 90 * MIB < watch.measure(pid).memory(0) < 150 * MIB
    with child(
        "import mmap\nm = mmap.mmap(-1, 60 << 20)\nm[::4096] = bytes([1]) * len(m[::4096])" + FAMILY.format(each="")
    ) as pid:
        sight = watch.measure(pid)
        assert sight.memory(0) - sight.memory(1 << 40) == sight.shared
        assert sight.memory(1 << 40) < 40 * MIB


def _proportional(sight: watch.CellUsage, files: int) -> int:
    return watch.proportional(sight, files, lambda: True)


SHARED = "import mmap\nm = mmap.mmap(-1, {mib} << 20)\nm[::4096] = bytes([1]) * len(m[::4096])\n"
OWN = SHARED.format(mib=40).replace("\n", "; ")
SEEN = "assert m[::4096].count(1) == len(m[::4096])"  # so that it is mapped here, too


def test_shared_memory_of_many_is_told_from_memory_that_they_share() -> None:
    """The cheap measurement cannot distinguish them, so it must not report less memory than is used."""
    with child(FAMILY.format(each=OWN)) as pid:
        sight = watch.measure(pid)
        assert sight.shared < 45 * MIB
        assert 120 * MIB <= _proportional(sight, 0) <= sight.most_memory()
    with child(SHARED.format(mib=120) + FAMILY.format(each=SEEN)) as pid:
        sight = watch.measure(pid)
        assert sight.most_memory() >= 360 * MIB
        # A quarter of it is the first process's, which is looked at as an init: it is none of the three.
        assert 90 * MIB <= _proportional(sight, 0) < 150 * MIB


def test_files_of_the_cell_hide_no_memory_that_is_private() -> None:
    with child(FAMILY.format(each="held = bytearray(30 << 20); held[::4096] = bytes([1]) * len(held[::4096])")) as pid:
        assert _proportional(watch.measure(pid), 1 << 40) >= 90 * MIB
    with child(FAMILY.format(each=OWN)) as pid:
        sight = watch.measure(pid)
        assert _proportional(sight, 100 * MIB) == pytest.approx(_proportional(sight, 0) - 100 * MIB, abs=MIB)


@pytest.mark.parametrize("bound", ["_LARGE_TABLES", "_ALL_TABLES"])
def test_what_would_take_too_long_to_ask_counts_whole(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with child(SHARED.format(mib=60) + FAMILY.format(each=SEEN)) as pid:
        sight = watch.measure(pid)
        (_, tables, _), *_ = sorted(sight.claims, reverse=True)
        assert _proportional(sight, 0) < 100 * MIB
        monkeypatch.setattr(watch, bound, tables)  # of one process; the others' are alike
        assert _proportional(sight, 0) > 110 * MIB or bound == "_LARGE_TABLES"
        monkeypatch.setattr(watch, bound, 0)
        assert _proportional(sight, 0) >= 180 * MIB


def test_memory_is_read_no_further_once_there_are_too_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has who reads it wait while a process forks: in a storm for seconds, in which that grows."""
    monkeypatch.setattr(watch, "OFTEN", 0)
    with child(FAMILY.format(each="")) as pid:
        sight = watch.measure(pid)
        assert watch.proportional(sight, 0, lambda: False) == sight.tables < _proportional(sight, 0)


@contextmanager
def cell_of(pid: int) -> Iterator[tuple[cells.CellProcess, list[bool]]]:
    """A cell whose init is ``pid``, which may have two processes and no memory; and an item once it was ended."""
    ended: list[bool] = []
    limits = {"memory": 0, "disk": 0, "cpus": None, "cpu_time": None}
    request = {"id": "x", "limits": limits, "rlimits": {"DATA": None}, "awaits_order": False, "session": False}
    ready: Any = SimpleNamespace(
        pid=pid, group=None, status_fd=-1, processes=2, terminals_of=None, end=lambda: ended.append(True)
    )
    ready.open_pidfd = lambda: os.pidfd_open(pid)
    cell = cells.CellProcess({**request, "deadline": 60.0}, ready, SimpleNamespace(is_watched=False), 0)  # type: ignore[arg-type]
    yield cell, ended
    os.close(cell.pidfd)


def test_a_cell_of_too_many_processes_ends_before_its_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "proportional", lambda *_: pytest.fail("its memory was read"))
    with child(FAMILY.format(each="")) as pid, cell_of(pid) as (cell, ended):
        cell.keep_time(cell.next_look)
    assert (cell.reason, ended) == ("processes", [True])


@pytest.mark.parametrize(("took", "rest"), [(0.0, 0.0), (0.125, 1.25), (30.0, 2.0)])
def test_a_cell_rests_for_as_long_as_its_own_look_took_and_not_for_ever(
    took: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(cells, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cells.CellProcess, "_measure", lambda *_: clock.append(clock.pop() + took))
    with cell_of(os.getpid()) as (cell, _):
        clock[0] = 101.0
        cell.keep_time(100.5)  # half a second went by for another cell, which was looked at first
    assert cell.next_look == 101.0 + took + rest


def test_cpu_time_of_living_and_of_reaped_processes_is_summed() -> None:
    spin = "end = time.process_time() + 0.2\n        while time.process_time() < end: pass"
    with child(FAMILY.format(each=spin)) as pid:
        assert 0.5 < watch.measure(pid).cpu < 1.5
    spin = "end = time.process_time() + 0.3\\nwhile time.process_time() < end: pass\\nos._exit(0)"
    reaped = f"os.fork() or exec('{spin}'); os.wait()"
    with child(FAMILY.format(each=reaped)) as pid:
        assert 0.8 < watch.measure(pid).cpu < 2.5


def test_a_process_that_is_gone_or_alone_has_nothing_below() -> None:
    with child("") as pid:
        alone = watch.measure(pid)
    gone = watch.measure(pid)
    for sight in (alone, gone):
        assert (sight.pids, sight.tasks, sight.memory(0), sight.cpu) == ([], 0, 0, 0.0)


def test_a_name_with_spaces_and_parentheses_does_not_mislead() -> None:
    with child(FAMILY.format(each="open('/proc/self/comm', 'w').write(') R 1 (x y')")) as pid:
        sight = watch.measure(pid)
        assert (len(sight.pids), sight.tasks) == (3, 3)
