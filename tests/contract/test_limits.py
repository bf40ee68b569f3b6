"""Each limit, met: its status or cause, the limit and what was used in words, and everything there was until then."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.contract import programs

from casemate import Execution, InvalidArgument, Limits, sync

MIB = 2**20
BEGUN = "print('begun', flush=True); open('output/partial.txt', 'w').write('kept')\n"


@dataclass(frozen=True)
class Case:
    """A program that meets a limit, and what must be said of it."""

    code: str
    limits: Limits
    status: str
    cause: str
    said: str  # of the limit, in the message
    language: str = "python"


CHILDREN = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        held = bytearray(30 << 20); held[::4096] = bytes([1]) * len(held[::4096]); time.sleep(1000)
time.sleep(1000)
"""
MEMORY = Limits(memory="128MiB", disk="1MiB")
CASES = {
    "memory, one process": Case(
        BEGUN + "x = [bytes([1]) * (1 << 20) for _ in range(400)]", MEMORY, "out_of_memory", "memory_limit", "128 MiB"
    ),
    "memory, many processes": Case(BEGUN + CHILDREN, MEMORY, "out_of_memory", "memory_limit", "128 MiB"),
    "memory, Node's heap": Case(
        "require('fs').writeSync(1, 'begun\\n'); require('fs').writeFileSync('output/partial.txt', 'kept');"
        "const held = []; for (;;) held.push(new Array(1e5).fill(Math.random()))",
        Limits(memory="128MiB", disk="1MiB"), "out_of_memory", "memory_limit", "128 MiB", "node",
    ),
    "cpu_time": Case(BEGUN + "while True: pass", Limits(cpu_time=0.5), "killed", "cpu_limit", "0.5 s"),
    "cpu_time, many processes": Case(
        BEGUN + "import os\nfor _ in range(3):\n    if os.fork() == 0: break\nwhile True: pass",
        Limits(cpu_time=1), "killed", "cpu_limit", "1.0 s",
    ),
    "cpu_time, short-lived children": Case(
        "echo begun; printf kept > output/partial.txt; while :; do /bin/true; done",
        Limits(cpu_time=0.5), "killed", "cpu_limit", "0.5 s", "shell",
    ),
    "processes": Case(
        BEGUN + "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(1000)",
        Limits(processes=20), "failed", "process_limit", "limits.processes is 20",
    ),
    "processes, threads": Case(
        BEGUN + "import threading, time\n"
        "for _ in range(100): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        Limits(processes=20), "failed", "process_limit", "limits.processes is 20",
    ),
    "processes, threads of a program that exits at a refusal": Case(
        BEGUN + "import os, threading, time\ntry:\n    for _ in range(100):\n"
        "        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "except RuntimeError:\n    os._exit(4)",
        Limits(processes=20), "failed", "process_limit", "limits.processes is 20",
    ),
    "processes, Node": Case(
        "require('fs').writeSync(1, 'begun\\n'); require('fs').writeFileSync('output/partial.txt', 'kept');"
        "for (let n = 0; n < 100; n++) require('child_process').spawn('sleep', ['1000'])",
        Limits(processes=30), "failed", "process_limit", "limits.processes is 30", "node",
    ),
    "processes, a pool whose workers are gone at the end": Case(
        BEGUN + "import multiprocessing\nmultiprocessing.Pool(100)",
        Limits(processes=20), "failed", "process_limit", "limits.processes is 20",
    ),
    "processes, Shell": Case(
        "echo begun; printf kept > output/partial.txt; trap 'exit 9' ERR; set -e\n"
        "for n in $(seq 30); do sleep 1000 & done",
        Limits(processes=20), "failed", "process_limit", "limits.processes is 20", "shell",
    ),
    "disk": Case(
        BEGUN + "f = open('/tmp/x', 'wb', buffering=0)\nwhile True: f.write(bytes(1 << 20))",
        Limits(disk="16MiB"), "failed", "disk_limit", "16 MiB",
    ),
    "disk, Shell": Case(
        "echo begun; printf kept > output/partial.txt; head -c 100000000 /dev/zero > /dev/shm/x",
        Limits(disk="16MiB"), "failed", "disk_limit", "16 MiB", "shell",
    ),
    "inodes": Case(
        BEGUN + "for n in range(5000): open(f'/tmp/{n}', 'w')",
        Limits(inodes=100), "failed", "inode_limit", "limits.inodes is 100",
    ),
    "open_files": Case(
        BEGUN + "held = [open('/dev/null') for _ in range(500)]",
        Limits(open_files=100), "failed", "open_files_limit", "limits.open_files is 100",
    ),
    "open_files, Node": Case(
        "require('fs').writeSync(1, 'begun\\n'); require('fs').writeFileSync('output/partial.txt', 'kept');"
        "for (let n = 0; n < 500; n++) require('fs').openSync('/dev/null')",
        Limits(open_files=100), "failed", "open_files_limit", "limits.open_files is 100", "node",
    ),
    "wall": Case(BEGUN + "while True: pass", Limits(wall=1.7), "timeout", "timeout", "1.7 s"),
}  # fmt: skip


def check_kept(execution: Execution) -> None:
    assert execution.stdout.startswith("begun\n")
    kept = {artifact.name: artifact.read_bytes() for artifact in execution.artifacts}
    assert kept.get("output/partial.txt") == b"kept"


_OF_PROCESSES = {name: case for name, case in CASES.items() if name.startswith("processes")}
_OTHERS = {name: case for name, case in CASES.items() if name not in _OF_PROCESSES}


@pytest.mark.parametrize("case", _OTHERS.values(), ids=_OTHERS)
def test_a_limit_that_is_met_is_named_and_what_there_was_is_kept(
    sandbox: sync.Sandbox, case: Case, request: pytest.FixtureRequest
) -> None:
    _check_met(sandbox, case, request)


@pytest.mark.parametrize("case", _OF_PROCESSES.values(), ids=_OF_PROCESSES)
def test_a_limit_of_processes_that_is_met_is_named(
    sandbox: sync.Sandbox, case: Case, request: pytest.FixtureRequest
) -> None:
    _check_met(sandbox, case, request)


def _check_met(sandbox: sync.Sandbox, case: Case, request: pytest.FixtureRequest) -> None:
    if case.language == "node":
        request.getfixturevalue("_needs_node")
    execution = sandbox.run(case.code, language=case.language, limits=case.limits, timeout=60)
    assert execution.status == case.status, execution
    assert execution.cause is not None, execution
    assert execution.cause.code == case.cause
    assert case.said in execution.cause.message
    assert execution.cause.remediation
    check_kept(execution)


FULL_PIPE = "import os\nr, w = os.pipe()\nos.set_blocking(w, False)\nwhile True: os.write(w, bytes(4096))"


def test_a_full_pipe_is_not_told_as_too_many_processes(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(FULL_PIPE)
    assert "Resource temporarily unavailable" in execution.stderr
    assert (execution.status, execution.cause) == ("failed", None)
    with sandbox.session() as session:
        assert (session.run(FULL_PIPE).status, session.run(FULL_PIPE).cause) == ("failed", None)


@pytest.fixture
def _needs_node() -> None:
    from casemate.languages.catalogue import runtime_for

    if runtime_for("node").find_installation().missing:
        pytest.skip("needs node: apt-get install nodejs, or pip install '.[node]'")


@pytest.mark.parametrize("code", [programs.SPIN["python"], "import time; time.sleep(1000)"])
def test_a_timeout_says_the_limit_and_how_long_it_ran(sandbox: sync.Sandbox, code: str) -> None:
    execution = sandbox.run(code, timeout=0.6)
    assert (execution.status, execution.exit_code) == ("timeout", None)
    assert execution.cause is not None
    said = re.fullmatch(r"It ran for (\d+\.\d\d) s; the time limit is 0\.6 s\.", execution.cause.message)
    assert said, execution.cause.message
    assert 0.6 <= float(said[1]) < 5
    assert 0.6 <= execution.duration < 5


def test_the_cpu_time_that_was_used_is_said(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(programs.SPIN["python"], limits=Limits(cpu_time=0.5))
    assert execution.cause is not None
    assert execution.usage.cpu_seconds >= 0.4
    said = re.search(r"It used (\d+\.?\d*) s", execution.cause.message)
    assert said, execution.cause.message
    assert 0.4 <= float(said[1]) < 5


@pytest.mark.full
def test_the_cpu_time_of_a_timeout_is_measured(sandbox: sync.Sandbox) -> None:
    """However little of it the machine has for the program, which says itself how much that was."""
    code = "import time\ntold = 0\nwhile True:\n    used = time.process_time()\n"
    code += "    if used > told + 0.02: told = used; print(told, flush=True)"
    execution = sandbox.run(code, timeout=3)
    assert execution.status == "timeout"
    assert execution.usage.cpu_seconds >= float(execution.stdout.split()[-1]) / 2  # it is looked at now and then


def test_a_refused_mapping_is_out_of_memory_too(sandbox: sync.Sandbox) -> None:
    code = "import mmap\nm = mmap.mmap(-1, 400 << 20, mmap.MAP_PRIVATE)\nfor n in range(0, 400 << 20, 4096): m[n] = 1"
    assert sandbox.run(code, limits=MEMORY).status == "out_of_memory"


def test_shared_memory_counts_where_the_report_says_so(sandbox: sync.Sandbox) -> None:
    code = "import mmap\nm = mmap.mmap(-1, 400 << 20)\nfor n in range(0, 400 << 20, 4096): m[n] = 1"
    execution = sandbox.run(code, limits=MEMORY)
    if _counted(execution):
        assert execution.status == "out_of_memory"
    elif execution.status != "out_of_memory":
        (memory,) = [one for one in execution.isolation.limits if one.limit == "memory"]
        assert not memory.hard
        assert "not counted" in memory.note


def test_memory_that_is_not_files_is_held_at_its_own_limit(sandbox: sync.Sandbox) -> None:
    code = "held = []\nfor n in range(300):\n    held.append(bytes([1]) * (1 << 20)); print(n, flush=True)"
    execution = sandbox.run(code, limits=Limits(memory="64MiB", disk="256MiB"))
    assert execution.status == "out_of_memory"
    assert int(execution.stdout.split()[-1]) < 160, "MiB were given, and limits.memory is 64"


def _counted(execution: Execution) -> bool:
    return any(one.limit == "memory" and one.hard for one in execution.isolation.limits)


def test_a_fork_bomb_is_bounded_and_ended(sandbox: sync.Sandbox) -> None:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    execution = sandbox.run(code, limits=Limits(processes=24), timeout=3)
    assert execution.status == "timeout"
    assert 20 <= execution.usage.processes <= 24


def test_a_program_that_copes_with_a_limit_has_no_cause(sandbox: sync.Sandbox) -> None:
    code = """
try:
    f = open('x', 'wb', buffering=0)
    while True: f.write(bytes(1 << 20))
except OSError as e: print(e.errno)
"""
    execution = sandbox.run(code, limits=Limits(disk="16MiB"))
    assert (execution.status, execution.cause, execution.stdout) == ("ok", None, "28\n")


def test_everything_that_is_writable_shares_one_disk_limit(sandbox: sync.Sandbox) -> None:
    code = """
import os
total = 0
for folder in ("/workspace", "/tmp", "/dev/shm", "/home/user", "/var/tmp"):
    f = open(folder + "/fill", "wb", buffering=0)
    try:
        while True: total += f.write(bytes(1 << 16))
    except OSError: pass
print(total)
"""
    assert int(sandbox.run(code, limits=Limits(disk="8MiB")).stdout) <= 8 * MIB + (1 << 18)


def test_the_limits_of_a_run_narrow_those_of_the_sandbox_and_never_widen_them(wall: str, tmp_path: object) -> None:
    with sync.Sandbox(isolation=wall, audit=f"{tmp_path}/audit.db", limits=Limits(wall=1, processes=16)) as sandbox:
        wider = Limits(wall=1000, processes=1000, memory="1GiB")
        with pytest.raises(InvalidArgument, match=r"500 s is beyond limits\.wall, 1 s"):
            sandbox.explain("print(1)", limits=wider, timeout=500)
        plan = sandbox.explain("print(1)", limits=wider)
        assert (plan.limits.wall, plan.limits.processes, plan.limits.memory, plan.deadline) == (1, 16, 512 * MIB, 1)
        started = time.monotonic()
        execution = sandbox.run("while True: pass", timeout=None)
        assert (execution.status, execution.duration < 10) == ("timeout", True)
        assert time.monotonic() - started < 20
        narrower = sandbox.explain("print(1)", limits=Limits(processes=4, memory="32MiB"), timeout=0.5)
        assert (narrower.limits.processes, narrower.limits.memory, narrower.deadline) == (4, 32 * MIB, 0.5)


def test_limits_that_nobody_gives_narrow_nothing(tmp_path: Path) -> None:
    wide = Limits(memory="1GiB", wall=100)
    audit = tmp_path / "audit.db"
    with sync.Sandbox(audit=audit, limits=wide) as sandbox:
        plan = sandbox.explain("print(1)", limits=Limits(cpus=0.5), timeout=90)
    assert (plan.limits.memory, plan.limits.cpus, plan.deadline) == (1 << 30, 0.5, 90)
    with sync.Sandbox(audit=audit, policy={"limits": {"memory": "1GiB"}}, limits=Limits(wall=100)) as sandbox:
        plan = sandbox.explain("print(1)")
    assert (plan.limits.memory, plan.limits.wall) == (1 << 30, 100)


def test_runs_with_limits_of_their_own_follow_each_other_at_once(wall: str, audit: Path) -> None:
    # each takes a cell that was begun a moment ago, and may not be ready to be narrowed
    with sync.Sandbox(isolation=wall, audit=audit) as sandbox:
        for _ in range(10 if wall == "docker" else 60):
            assert sandbox.run("true", language="shell", limits=MEMORY).ok


def test_limits_that_are_no_limits_are_refused(sandbox: sync.Sandbox) -> None:
    with pytest.raises(InvalidArgument, match="limits"):
        sandbox.run("print(1)", limits={"memory": "1GiB"})  # type: ignore[arg-type]
