"""Groups that count the memory and cpu of a cell: real ones where there are any, silence where there are none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from casemate.supervisor import cgroups

MIB = 2**20


@pytest.fixture
def groups() -> Iterator[cgroups.Cgroups]:
    found = cgroups.find(f"test{os.getpid()}")
    try:
        yield found
    finally:
        found.remove()


def test_what_is_offered_is_described_and_leaves_nothing(groups: cgroups.Cgroups) -> None:
    offered = groups.describe()
    assert set(offered) == {"memory", "cpu"}
    assert all(kind in (None, "cgroup v1", "cgroup v2") for kind in offered.values())


@pytest.mark.user_only
def test_an_ordinary_user_gets_a_group_only_where_one_was_handed_over(groups: cgroups.Cgroups) -> None:
    if Path("/sys/fs/cgroup/memory").exists():  # v1, which is never handed over
        assert groups.memory is None


@pytest.mark.root_only
def test_only_groups_of_dead_processes_of_this_pid_namespace_are_swept() -> None:
    living = cgroups.find(f"{os.getpid()}-a")
    if living.memory is None:
        pytest.skip("needs a memory cgroup: a kernel and a container that have one")
    parent = living.memory.parent
    owner = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # while it lives, no other casemate sweeps its group
    left = living.memory.group.replace(f"{os.getpid()}-a", f"{owner.pid}-b")
    os.mkdir(left, dir_fd=parent)
    try:
        find = "from casemate.supervisor import cgroups; cgroups.find('test').remove()"
        subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", find], check=True)
        assert {living.memory.group, left} <= set(os.listdir(parent))
        owner.communicate()
        cgroups.find("test").remove()
        assert living.memory.group in os.listdir(parent)
        assert left not in os.listdir(parent)
    finally:
        living.remove()


def group_of(groups: cgroups.Cgroups, name: str) -> cgroups.CellCgroup:
    """A group of 64 MiB and half a core."""
    group = groups.create(name)
    if group is None or groups.memory is None:
        pytest.skip("needs a memory cgroup: a kernel and a container that have one")
    group.limit(memory=64 * MIB, cpus=0.5)
    return group


def member(group: cgroups.CellCgroup, code: str) -> subprocess.Popen[bytes]:
    """A process that enters ``group`` and then runs ``code``."""
    entries = group.open_procs()
    enter = f"import os; [os.write(entry, b'0') for entry in {entries}]; {code}"
    try:
        return subprocess.Popen([sys.executable, "-c", enter], pass_fds=entries, stdout=subprocess.PIPE)
    finally:
        for entry in entries:
            os.close(entry)


@pytest.mark.root_only
def test_memory_beyond_the_limit_is_refused_by_the_kernel_and_told(groups: cgroups.Cgroups) -> None:
    group = group_of(groups, "hog")
    hog = member(group, "held = [bytes([1]) * (1 << 20) for _ in range(200)]")
    hog.communicate()
    assert hog.returncode == -signal.SIGKILL
    assert group.out_of_memory()
    assert group.remove()


@pytest.mark.root_only
def test_a_modest_process_is_not_out_of_memory_and_its_group_can_be_removed(groups: cgroups.Cgroups) -> None:
    group = group_of(groups, "modest")
    modest = member(group, "held = bytes([1]) * (1 << 20)")
    modest.communicate()
    assert modest.returncode == 0
    assert not group.out_of_memory()
    assert group.remove()
    assert group.remove(), "removing twice is harmless"


@pytest.mark.root_only
def test_a_group_in_which_something_lives_is_kept_for_later(groups: cgroups.Cgroups) -> None:
    group = group_of(groups, "busy")
    process = member(group, "print('in', flush=True); import time; time.sleep(1000)")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        assert not group.remove()
    finally:
        process.kill()
        process.communicate()
    assert group.remove()
