"""The caller leaves before the program ends: the cell ends first, and nothing of it is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest
from tests.contract import witness
from tests.records import unfinished
from tests.support.waiting import MAX_WAIT, until_async

from casemate import CasemateError, Execution, Output, Sandbox, SandboxClosed, sync
from casemate.audit.log import AuditLog

BUSY = """
import os, subprocess, signal
held = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(3)]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: signal.pause()
"""


def rows(audit: Path) -> list[str]:
    """The kinds of all rows on record."""
    log = AuditLog(audit)
    try:
        return [row.kind for row in log.tail(1000)]
    finally:
        log.close()


def ended(audit: Path) -> list[str]:
    """The statuses of all outcomes on record."""
    log = AuditLog(audit)
    try:
        assert unfinished(log) == []
        return [
            row.detail.partition('"status":"')[2].partition('"')[0] for row in log.tail(100) if row.kind == "outcome"
        ]
    finally:
        log.close()


@pytest.mark.parametrize("times", [1, 2])
def test_cancelling_the_task_ends_the_cell_before_the_caller_hears_of_it(audit: Path, times: int) -> None:
    async def journey() -> None:
        async with Sandbox(audit=audit) as sandbox:
            task = asyncio.ensure_future(sandbox.run(BUSY, timeout=60))
            await until_async(lambda: len(witness.in_cells()) == 5)
            with witness.watching(witness.in_cells()) as watched:
                for _ in range(times):
                    task.cancel()
                    await asyncio.sleep(0)
                with pytest.raises(asyncio.CancelledError):
                    await task
                if times == 1:
                    assert watched.living() == 0
                await until_async(lambda: watched.living() == 0)  # who does not wait may be told before
            assert (await sandbox.run("print(1)")).stdout == "1\n"

    asyncio.run(journey())
    assert ended(audit) == ["cancelled", "ok"]


@pytest.mark.parametrize("moment", range(1, 8))
def test_cancelling_at_any_moment_of_a_run_leaves_nothing(audit: Path, moment: int) -> None:
    async def journey() -> None:
        async with Sandbox(audit=audit) as sandbox:
            await sandbox.run("print(1)")
            for turn in range(12):
                task = asyncio.ensure_future(sandbox.run("open('x', 'w').write('y' * 100)"))
                for _ in range(moment * 12 + turn):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.002 * moment)
                task.cancel()
                await asyncio.wait([task])
            assert (await sandbox.run("print(1)")).ok
            assert witness.cells() == []

    asyncio.run(journey())
    assert set(ended(audit)) <= {"ok", "cancelled"}


async def test_closing_a_stream_ends_the_cell_before_it_returns(audit: Path) -> None:
    async with Sandbox(audit=audit) as sandbox:
        stream = sandbox.stream(BUSY, timeout=60)
        assert isinstance(await anext(stream), Output)
        with witness.watching(witness.in_cells()) as watched:
            assert watched.living() == 5
            await stream.aclose()
            living = watched.living()
            await until_async(lambda: watched.living() == 0)
            assert living == 0


def test_leaving_the_loop_over_a_stream_ends_the_cell(audit: Path) -> None:
    async def journey() -> None:
        async with Sandbox(audit=audit) as sandbox:
            pids: list[int] = []
            async for _ in sandbox.stream(BUSY, timeout=60):
                pids = witness.in_cells()
                break
            with witness.watching(pids) as watched:
                await until_async(lambda: watched.living() == 0)
            assert (await sandbox.run("print(1)")).ok

    asyncio.run(journey())
    assert sorted(ended(audit)) == ["cancelled", "ok"]


@pytest.mark.parametrize("count", [1, 16])
def test_closing_the_sandbox_ends_what_runs_and_says_so(audit: Path, count: int) -> None:
    async def journey() -> list[Execution | BaseException]:
        sandbox = Sandbox(audit=audit)
        runs = [asyncio.ensure_future(sandbox.run("import time; time.sleep(1000)")) for _ in range(count + 2)]
        await until_async(lambda: len(witness.cells()) == min(count + 2, 16))
        with witness.watching(witness.in_cells()) as watched:
            await sandbox.close()
            assert watched.living() == 0
        assert witness.supervisors() == []
        await sandbox.close()
        with pytest.raises(SandboxClosed):
            await sandbox.run("print(1)")
        with pytest.raises(SandboxClosed):
            await anext(sandbox.stream("print(1)"))
        return await asyncio.gather(*cast("list[Awaitable[Execution]]", runs), return_exceptions=True)

    for outcome in asyncio.run(journey()):
        assert isinstance(outcome, SandboxClosed), repr(outcome)


async def test_closing_the_sandbox_ends_a_stream_with_an_error(audit: Path) -> None:
    sandbox = Sandbox(audit=audit)
    with pytest.raises(SandboxClosed):
        async for _ in sandbox.stream(BUSY, timeout=60):
            await sandbox.close()


def test_closing_from_another_thread_ends_a_waiting_run(audit: Path) -> None:
    sandbox = sync.Sandbox(audit=audit)
    sandbox.run("print(1)")
    seen: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.run(BUSY, timeout=60)
        except CasemateError as error:
            seen.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(until_async(lambda: len(witness.in_cells()) == 20))
    sandbox.close()
    for thread in threads:
        thread.join(MAX_WAIT)
    assert [type(error) for error in seen] == [SandboxClosed] * 4


def test_a_sandbox_that_was_never_used_is_closed_without_a_trace(audit: Path) -> None:
    with sync.Sandbox(audit=audit):
        assert witness.supervisors() == []


_FORKS = """
import os, sys
from casemate import SandboxClosed, sync
with sync.Sandbox(audit=sys.argv[1]) as sandbox, sandbox.session() as session:
    session.run("1")
    child = os.fork()
    if child == 0:
        try:
            sandbox.run("1")
        except SandboxClosed:
            sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), session.run("print('on')").stdout, end="")
"""


def test_a_forked_child_cannot_use_the_sandbox_and_leaves_it_to_its_parent(audit: Path) -> None:
    assert _output(_FORKS, audit) == "3 on\n"


_LEAVES = """
import asyncio, atexit, sys, threading
from casemate import Sandbox, sync
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
kept = [(sync.Sandbox if sys.argv[2] == "sync" else Sandbox)(audit=sys.argv[1])]
async def use():
    return await kept[0].run("print('on')")
done = asyncio.run(use()) if sys.argv[2] == "async" else kept[0].run("print('on')")
print(done.stdout, end="")
"""
_USES_LATE = """
import sys, threading
from casemate import sync
sandbox = sync.Sandbox(audit=sys.argv[1])
def use():
    threading.main_thread().join()
    with sandbox:
        print(sandbox.run("print('on')").stdout, end="")
threading.Thread(target=use).start()
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_sandbox_that_nobody_closed_is_closed_when_the_interpreter_ends(audit: Path, kind: str) -> None:
    assert _output(_LEAVES, audit, kind) == "on\n['MainThread']\n"


def test_a_thread_that_outlives_the_main_one_may_use_its_sandbox(audit: Path) -> None:
    assert _output(_USES_LATE, audit) == "on\n"


def _output(program: str, audit: Path, *arguments: str) -> str:
    words = [sys.executable, "-c", program, str(audit), *arguments]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=MAX_WAIT, check=True).stdout
