"""A cgroup with little memory: no cell is started beyond what is left in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from casemate.supervisor import cgroups

MIB = 2**20
PROGRAM = """
import sys
from casemate import QueueFull, sync
from casemate.walls import machine

print(machine.look().memory_total)
held = bytearray(b"x") * (machine.look().memory - (40 << 20))  # of which 12.8 are left to others
with sync.Sandbox(audit=sys.argv[1], preload=()) as sandbox:
    try:
        sandbox.run("echo begun", language="shell", start_within=1.0)
    except QueueFull as full:
        print(full.missing)
    del held
    print(sandbox.run("echo begun", language="shell", start_within=60.0).text)
"""


@pytest.mark.root_only
def test_in_a_cgroup_with_little_memory_a_cell_waits_until_there_is_some(tmp_path: Path) -> None:
    groups = cgroups.find(f"test{os.getpid()}")
    group = groups.create("small")
    if group is None or groups.memory is None:
        pytest.skip("needs a memory cgroup: a kernel and a container that have one")
    group.limit(memory=256 * MIB, cpus=2.0)
    entries = group.open_procs()
    enter = f"import os; [os.write(entry, b'0') for entry in {entries}]\n{PROGRAM}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", enter, str(tmp_path / "a")], pass_fds=entries, capture_output=True, check=False
        )
    finally:
        for entry in entries:
            os.close(entry)
        group.remove()
        groups.remove()
    assert done.stdout.decode().split() == [str(256 * MIB), "memory", "begun"], done.stderr
