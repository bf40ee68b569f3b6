"""What the machine has left, as the kernel's files tell it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator

import pytest

from casemate.model.room import Room
from casemate.walls import machine

MIB, GIB = 1 << 20, 1 << 30
PLAIN = {
    "/proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n",
    "/proc/loadavg": "0.00 0.01 0.05 2/300 4711",
    "/proc/sys/kernel/pid_max": "32768",
    "/proc/sys/kernel/threads-max": "60000",
}
V2 = "/sys/fs/cgroup/user.slice/casemate.service/"
V1 = "/sys/fs/cgroup/memory/docker/1/memory."
Told = Callable[..., Room]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What a look finds where the kernel tells this; nobody else's limits hold."""

    def look(files: dict[str, str] | None = None, *, user: int = 0, most: int = -1) -> Room:
        texts = {**PLAIN, **(files or {})}
        monkeypatch.setattr(machine, "read", lambda path: texts.get(path, "").encode())
        monkeypatch.setattr(os, "getuid", lambda: user)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
        machine._groups.cache_clear()
        machine._most_tasks.cache_clear()
        return machine.look()

    yield look
    monkeypatch.undo()
    machine._groups.cache_clear()
    machine._most_tasks.cache_clear()


def test_without_limits_it_is_what_the_machine_has(told: Told) -> None:
    assert told() == Room(4 * GIB, 8 * GIB, 0, 32768 - 300)


def test_pressure_is_told_where_the_kernel_tells_it(told: Told) -> None:
    text = "some avg10=23.71 avg60=0.02 avg300=0.10 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
    assert told({"/proc/pressure/memory": text}).memory_pressure == 23


def test_the_tightest_of_the_cgroups_above_it_holds_without_what_is_merely_cached(told: Told) -> None:
    room = told({
        "/proc/self/cgroup": "0::/user.slice/casemate.service\n",
        f"{V2}memory.max": "max", f"{V2}memory.high": "max", f"{V2}memory.current": f"{100 * MIB}",
        "/sys/fs/cgroup/user.slice/memory.max": f"{GIB}", "/sys/fs/cgroup/user.slice/memory.high": f"{512 * MIB}",
        "/sys/fs/cgroup/user.slice/memory.current": f"{500 * MIB}",
        "/sys/fs/cgroup/user.slice/memory.stat": f"anon 1\ninactive_file {88 * MIB}\nactive_file 7\n",
        f"{V2}pids.max": "64", f"{V2}pids.current": "60",
    })  # fmt: skip
    assert room == Room(100 * MIB, 512 * MIB, 0, 4)


def test_of_version_1_what_is_beneath_a_group_counts_and_a_container_sees_its_own_as_the_first(told: Told) -> None:
    def files(folder: str) -> dict[str, str]:
        return {
            "/proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/1\n8:pids:/docker/1\n0::/\n",
            f"{folder}limit_in_bytes": f"{256 * MIB}", f"{folder}usage_in_bytes": f"{200 * MIB}",
            f"{folder}stat": f"inactive_file 1\ntotal_inactive_file {50 * MIB}\n",
        }  # fmt: skip

    assert told(files(V1)) == told(files("/sys/fs/cgroup/memory/memory.")) == Room(106 * MIB, 256 * MIB, 0, 32468)
    assert told({**files(V1), f"{V1}limit_in_bytes": "9223372036854771712"}).memory == 4 * GIB


def test_a_user_is_held_to_its_limit_of_processes_and_root_is_not(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < machine._own_tasks() < 32768
    monkeypatch.setattr(machine, "_own_tasks", lambda: 150)
    assert told(user=1000, most=10_000).processes == 10_000 - 300  # as if all were its own: that is room enough
    assert told(user=1000, most=400).processes == 400 - 150
    assert told(user=1000, most=-1).processes == told(user=0, most=1).processes == 32768 - 300


def test_this_machine_says_something_that_can_be(told: Told) -> None:
    del told  # which has looked for nobody's limits: these are the real ones
    room = machine.look()
    assert 0 < room.memory <= room.memory_total < 1 << 50
    assert 0 <= room.memory_pressure <= 100
    assert 0 < room.processes <= 1 << 22
