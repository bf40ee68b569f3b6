"""Sudden deaths: of the host process, of the supervisor, of a host that has forked. Judged by process descriptors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.contract import witness
from tests.records import unfinished
from tests.support.waiting import MAX_WAIT

import casemate
from casemate import CasemateError, sync
from casemate.audit.log import AuditLog

SOURCE = str(Path(casemate.__file__).parents[1])
HOST = """
import asyncio, multiprocessing, os, sys, time
from casemate import Sandbox
BUSY = '''
import subprocess, signal, os
held = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2)]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: signal.pause()
'''
def idle():
    os.write(1, b"forked %d\\n" % os.getpid())  # in one piece: the other one writes too
    time.sleep(1000)

async def one(sandbox, ready):
    async for event in sandbox.stream(BUSY, timeout=60):
        ready.release()

async def main():
    sandbox = Sandbox(audit=sys.argv[1])
    ready = asyncio.Semaphore(0)
    tasks = [asyncio.ensure_future(one(sandbox, ready)) for _ in range(3)]
    for _ in tasks: await ready.acquire()
    if sys.argv[2] == "fork":
        multiprocessing.get_context("fork").Process(target=idle).start()
    os.write(1, b"running\\n")
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@contextmanager
def host(audit: Path, kind: str = "plain") -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A host process with three busy cells, and what it said until then."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, str(audit), kind],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        wanted = {"running", "forked"} if kind == "fork" else {"running"}
        while wanted:
            line = process.stdout.readline()
            assert line, f"the host ended: {process.wait()}"
            said.append(line)
            wanted.discard(line.split()[0])
        yield process, said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def everything(pid: int) -> list[int]:
    """Supervisor and cells of a host process."""
    return [below for first in witness.supervisors(pid) for below in (first, *witness.descendants(first))]


def busy(pid: int) -> list[int]:
    """The processes of the cells of a host in which `BUSY` runs, and of no cell that is being made ready."""
    cells = [[init, *witness.descendants(init)] for init in witness.cells(pid)]
    return [one for cell in cells if any(witness.command(one).startswith(b"sleep") for one in cell) for one in cell]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_when_the_host_dies_every_cell_and_the_supervisor_die(audit: Path, number: signal.Signals) -> None:
    with host(audit) as (process, _), witness.watching(everything(process.pid)) as watched:
        assert len(watched.pidfds) >= 2 + 3 * 4
        process.send_signal(number)
        process.wait()
        assert watched.wait()


def test_when_the_host_dies_suddenly_the_record_says_that_what_ran_was_lost(audit: Path) -> None:
    with host(audit) as (process, _), witness.watching(everything(process.pid)) as watched:
        process.kill()
        process.wait()
        assert watched.wait()
    log = AuditLog(audit)
    assert unfinished(log) == []
    assert sum('"status":"lost"' in row.detail for row in log.tail(50)) == 3
    assert log.verify().ok
    log.close()
    with sync.Sandbox(audit=audit) as sandbox:
        assert sandbox.run("print(1)").ok


def test_a_forked_child_that_lives_on_does_not_keep_cells_alive(audit: Path) -> None:
    with host(audit, "fork") as (process, said):
        child = next(int(line.split()[1]) for line in said if line.startswith("forked"))
        with witness.watching(everything(process.pid)) as cells, witness.watching([child]) as forked:
            try:
                process.kill()
                process.wait()
                assert cells.wait()
                assert forked.living() == 1
            finally:
                os.kill(child, signal.SIGKILL)


@pytest.mark.full
def test_a_stopped_host_does_not_stop_the_deadline(audit: Path) -> None:
    code = HOST.replace("timeout=60", "timeout=10")
    process = subprocess.Popen([sys.executable, "-c", code, str(audit), "plain"], stdout=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": SOURCE})  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"running\n"
        with witness.watching(busy(process.pid)) as watched:
            assert watched.living() == 12
            process.send_signal(signal.SIGSTOP)
            assert watched.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("which", ["the one that waits", "the one that serves"])
def test_when_the_supervisor_dies_runs_fail_and_the_next_one_works(audit: Path, which: str) -> None:
    import threading

    with sync.Sandbox(audit=audit) as sandbox:
        sandbox.run("print(1)")
        seen: list[object] = []

        def run() -> None:
            try:
                seen.append(sandbox.run("import time; time.sleep(1000)"))
            except CasemateError as error:
                seen.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(witness.cells()) < 3:
            os.sched_yield()
        with witness.watching(witness.in_cells()) as watched:
            pid = witness.supervisors()[0] if which == "the one that waits" else witness.serving()[0]
            os.kill(pid, signal.SIGKILL)
            for thread in threads:
                thread.join(MAX_WAIT)
            assert watched.wait()
        assert len(seen) == 3
        assert all(isinstance(one, CasemateError) for one in seen), seen
        assert sandbox.run("print(2)").stdout == "2\n"
    log = AuditLog(audit)
    assert unfinished(log) == []
    log.close()


def test_a_supervisor_that_died_is_not_left_as_a_zombie(audit: Path) -> None:
    with sync.Sandbox(audit=audit) as sandbox:
        sandbox.run("print(1)")
        (first,) = witness.supervisors()
        with witness.watching([first]) as watched:
            os.kill(first, signal.SIGKILL)
            assert watched.wait()
        ended = False
        while not ended:  # a run that came before its end was noticed fails; the next one starts another
            with suppress(CasemateError):
                ended = sandbox.run("print(2)").ok
    assert witness.state(first) == ""


@pytest.mark.root_only
def test_groups_of_a_supervisor_that_was_killed_are_removed(audit: Path) -> None:
    with sync.Sandbox(audit=audit) as sandbox:
        sandbox.run("print(1)")
        (first,), (serving,) = witness.supervisors(), witness.serving()
        assert witness.cgroup_folders(first)
        with witness.watching([first, serving]) as watched:
            os.kill(serving, signal.SIGKILL)
            assert watched.wait()
        with contextlib.suppress(CasemateError):  # where nobody has noticed it yet
            sandbox.run("print(2)")
        assert sandbox.run("print(3)").ok
    assert witness.cgroup_folders(first) == set()
