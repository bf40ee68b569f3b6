"""Many runs, at once and one after the other: nothing is left behind, and nobody disturbs anybody."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.contract import witness
from tests.support.waiting import MAX_WAIT

from casemate import Execution, Limits, Sandbox, sync
from casemate.walls.native import demand

PROGRAMS: dict[str, tuple[str, str]] = {  # language, code: each ends in another way, and some leave much
    "ok": ("python", "open('output/x', 'w').write('y' * 1000); print('fine')"),
    "failed": ("python", "1 / 0"),
    "timeout": ("shell", "sleep 1000 & setsid sleep 1000 & while :; do :; done"),
    "killed": ("shell", "head -c 5000000 /dev/zero; sleep 1000"),
    "large": ("python", "open('large', 'wb').write(bytes(3_000_000)); print('x' * 300_000)"),
}
LIMITS = Limits(output="64KiB", full_output="512KiB", wall=0.8)


@dataclass(frozen=True)
class Left:
    """Everything that could be left behind."""

    descriptors: dict[str, int]
    of_supervisor: dict[str, int]
    mounts: list[str]
    mounts_of_supervisor: int
    groups: int
    threads: int
    temporary: list[str]
    cells: int


def threads() -> int:
    """All but those of the event loop's own pool, which grows when it likes to."""
    return sum(not thread.name.startswith("asyncio") for thread in threading.enumerate())


def left() -> Left:
    gc.collect()  # artifacts keep their files until they are gone
    (server,) = witness.serving()
    return Left(
        descriptors=witness.descriptors(),
        of_supervisor=witness.descriptors(server),
        mounts=witness.mounts(),
        mounts_of_supervisor=len(witness.mounts(server)),
        groups=len(witness.cgroup_folders(*witness.supervisors())),
        threads=threads(),
        temporary=sorted(os.listdir(tempfile.gettempdir())),
        cells=len(witness.cells()),
    )


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others leave in theirs is not ours; and what is ready for later runs goes soon."""
    monkeypatch.setattr(demand, "IDLE", 0.2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def settled(before: Left) -> Left:
    """What is left once the supervisor has come to rest: it prepares and removes after it has answered."""
    async with asyncio.timeout(MAX_WAIT):
        while (now := left()) != before:
            await asyncio.sleep(0.05)
    return now


async def mixed(sandbox: Sandbox, count: int) -> list[str]:
    """``count`` runs, eight at once, of every kind; every sixth is cancelled."""
    slots = asyncio.Semaphore(8)
    statuses: list[str] = []

    async def one(number: int) -> None:
        language, code = list(PROGRAMS.values())[number % len(PROGRAMS)]
        async with slots:
            task = asyncio.ensure_future(sandbox.run(code, language=language, limits=LIMITS))
            if number % 6 == 5:
                await asyncio.sleep(0.01 * (number % 7))
                task.cancel()
            await asyncio.wait([task])
            statuses.append("cancelled" if task.cancelled() else task.result().status)

    await asyncio.gather(*(one(number) for number in range(count)))
    let_go(sandbox)
    return statuses


def let_go(sandbox: Sandbox) -> None:
    """Files of the newest runs, which are kept for ``sandbox.artifacts``, as many as they may be."""
    sandbox.artifacts.close()


async def at_rest(sandbox: Sandbox) -> Left:
    """What there is once everything that is made once has been made, and nothing is ready for a next run."""
    await mixed(sandbox, 12)
    async with asyncio.timeout(MAX_WAIT):
        while any(one.ready for one in sandbox._wall.warmth().pools) or await settling() != left():
            await asyncio.sleep(0.05)
    return left()


async def settling() -> Left:
    now = left()
    await asyncio.sleep(0.3)
    return now


def test_sixty_runs_that_end_in_every_way_leave_nothing_behind(audit: Path) -> None:
    async def journey() -> list[str]:
        async with Sandbox(audit=audit, preload=()) as sandbox:
            before = await at_rest(sandbox)
            statuses = await mixed(sandbox, 60)
            try:
                assert await settled(before) == before
            except TimeoutError:
                assert left() == before
            return statuses

    statuses = asyncio.run(journey())
    assert len(statuses) == 60
    assert {"ok", "failed", "timeout", "killed", "cancelled"} <= set(statuses)


def test_a_closed_sandbox_leaves_nothing_behind(audit: Path) -> None:
    supervisors: list[int] = []

    def state() -> tuple[dict[str, int], list[str], set[str], int, list[int]]:
        gc.collect()
        return (witness.descriptors(), witness.mounts(), witness.cgroup_folders(*supervisors),
                threads(), witness.children(os.getpid()))  # fmt: skip

    async def journey() -> None:
        async with Sandbox(audit=audit) as sandbox:
            await mixed(sandbox, 20)
            supervisors.extend(witness.supervisors())

    asyncio.run(journey())
    before = state()
    for _ in range(3):
        asyncio.run(journey())
    assert len(supervisors) == 4
    assert state() == before


def test_sixteen_at_once_each_get_their_own(sandbox: sync.Sandbox) -> None:
    outcomes: dict[int, Execution] = {}
    code = """
import os, sys, time
name = os.environ["NUMBER"]
open("mine", "w").write(name); open("/tmp/mine", "w").write(name); open("/dev/shm/mine", "w").write(name)
time.sleep(0.3)
print(name, sys.stdin.read(), open("mine").read(), open("/tmp/mine").read(), os.listdir("/dev/shm"))
"""

    def one(number: int) -> None:
        outcomes[number] = sandbox.run(code, env={"NUMBER": str(number)}, stdin=f"in{number}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: execution.stdout for number, execution in outcomes.items()} == {
        number: f"{number} in{number} {number} {number} ['mine']\n" for number in range(16)}  # fmt: skip
    assert len({execution.id for execution in outcomes.values()}) == 16


def test_more_runs_than_may_run_at_once_wait_their_turn_without_losing_time(audit: Path) -> None:
    async def journey() -> list[Execution]:
        async with Sandbox(audit=audit, concurrency=2) as sandbox:
            return await asyncio.gather(*(sandbox.run("import time; time.sleep(0.2)", timeout=30) for _ in range(8)))

    began = time.monotonic()
    executions = asyncio.run(journey())
    took = time.monotonic() - began
    assert [execution.status for execution in executions] == ["ok"] * 8
    assert sum(execution.duration for execution in executions) <= 2 * took, "waiting counted as running"


async def test_two_sandboxes_at_once_do_not_know_each_other(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "a.db") as one, Sandbox(audit=tmp_path / "b.db") as other:
        first, second = await asyncio.gather(one.run("print(1)"), other.run("print(2)"))
        assert (first.stdout, second.stdout) == ("1\n", "2\n")
        await one.close()
        assert (await other.run("print(3)")).stdout == "3\n"


def test_the_blocking_sandbox_works_inside_a_running_loop(audit: Path) -> None:
    async def journey() -> str:
        with sync.Sandbox(audit=audit) as sandbox:
            return sandbox.run("print('inside')").stdout

    assert asyncio.run(journey()) == "inside\n"


def test_a_second_loop_with_a_new_sandbox_works_like_the_first(audit: Path) -> None:
    async def journey() -> str:
        async with Sandbox(audit=audit) as sandbox:
            return (await sandbox.run("print('again')")).stdout

    assert [asyncio.run(journey()) for _ in range(3)] == ["again\n"] * 3
