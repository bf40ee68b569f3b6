"""The waiting line: bounded, told in words with a time to try again, and left when it is cancelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import casemate
from casemate import InvalidArgument, QueueFull, Sandbox
from casemate.audit.log import AuditLog
from casemate.execution import slots
from casemate.model.operation import Audience, Principal
from casemate.operations.documents import error_document, error_from
from casemate.operations.invoke import local
from casemate.operations.operations import Operations
from casemate.walls import machine

HOLD = "import time\ntime.sleep(600)"
PROGRAM = "print(6 * 7)"


async def held(sandbox: Sandbox, group: asyncio.TaskGroup, running: int, waiting: int) -> list[asyncio.Task[object]]:
    """So many programs run and so many wait, as the sandbox itself says."""
    tasks = [group.create_task(sandbox.run(HOLD)) for _ in range(running + waiting)]
    while (now := await sandbox.stats()).running < running or now.waiting < waiting:
        await asyncio.sleep(0.01)
    return list(tasks)


@pytest.fixture
def line_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST_WAITING", 2)


@pytest.mark.usefixtures("line_of_two")
async def test_a_run_beyond_the_waiting_line_is_refused_with_a_time_to_try_again(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db", concurrency=1) as sandbox, asyncio.TaskGroup() as group:
        tasks = await held(sandbox, group, running=1, waiting=2)
        for refused in (sandbox.run(PROGRAM), sandbox.session().run(PROGRAM), sandbox.validate(PROGRAM)):
            with pytest.raises(QueueFull) as raised:
                await refused
            assert 1 <= raised.value.retry_after <= 60
            assert f"{raised.value.retry_after:g} s" in raised.value.remediation
        with pytest.raises(QueueFull):
            sandbox.start(PROGRAM)
        tasks[0].cancel()
        tasks[2].cancel()
        while (await sandbox.stats()).waiting:
            await asyncio.sleep(0.01)
        last = group.create_task(sandbox.run(PROGRAM))
        tasks[1].cancel()
        assert (await last).stdout == "42\n"


@pytest.mark.usefixtures("line_of_two")
async def test_what_was_refused_is_on_record_once_for_each_time_that_the_line_was_full(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    async with Sandbox(audit=path, concurrency=1) as sandbox, asyncio.TaskGroup() as group:
        for _ in range(2):
            tasks = await held(sandbox, group, running=1, waiting=2)
            for _ in range(5):
                with pytest.raises(QueueFull):
                    await sandbox.run(PROGRAM)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert (await sandbox.run(PROGRAM)).ok
            async with asyncio.TaskGroup() as others:  # one of them waits, so it notices free capacity
                for _ in range(2):
                    others.create_task(sandbox.run(PROGRAM))
    log = AuditLog(path)
    assert [row.kind for row in log.tail(100)].count("queue") == 2
    assert log.verify().ok


@pytest.mark.usefixtures("line_of_two")
async def test_the_operation_says_so_too_and_no_run_is_begun(tmp_path: Path) -> None:
    async with (
        Sandbox(audit=tmp_path / "audit.db", concurrency=1) as sandbox,
        Operations(sandbox) as operations,
        asyncio.TaskGroup() as group,
    ):
        tasks = await held(sandbox, group, running=1, waiting=2)
        invoke = local(operations, Principal("somebody", Audience.AGENT))
        with pytest.raises(QueueFull) as raised:
            await invoke("runs.start", {"code": PROGRAM})
        assert await invoke("runs.list") == []
        again = error_from(error_document(raised.value))
        assert isinstance(again, QueueFull)
        assert (again.retry_after, again.message) == (raised.value.retry_after, raised.value.message)
        for task in tasks:
            task.cancel()


async def test_without_being_told_otherwise_sixteen_run_at_once_and_a_thousand_may_wait(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        assert (await sandbox.stats()).concurrency == 16
    assert slots.MOST_WAITING == 1000
    assert casemate.QueueFull.kind == "busy"


async def test_a_run_and_a_step_that_have_not_begun_in_time_are_refused_and_not_started_late(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db", concurrency=1) as sandbox, asyncio.TaskGroup() as group:
        session = sandbox.session()
        first = group.create_task(session.run(HOLD))
        while not (await sandbox.stats()).running:
            await asyncio.sleep(0.01)
        started = sandbox.start(PROGRAM, start_within=0.05)
        for late in (sandbox.run(PROGRAM, start_within=0.05), session.run(PROGRAM, start_within=0.05), started.wait()):
            with pytest.raises(QueueFull, match="could not start in time") as raised:
                await late
            assert raised.value.missing == "turns"
        first.cancel()
        assert (await session.run(PROGRAM, start_within=60)).stdout == "42\n"
        assert (await sandbox.stats()).totals.executions == 1


@pytest.mark.parametrize("wrong", [{"priority": "urgent"}, {"priority": 3}, {"start_within": 0}])
async def test_a_priority_or_a_time_to_start_that_cannot_be_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        for call in (sandbox.run, sandbox.session().run):
            with pytest.raises(InvalidArgument, match=next(iter(wrong))):
                await call(PROGRAM, **wrong)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """How many KiB the machine has left, from now on, as far as casemate can see."""
    left, read = [1 << 30], machine.read

    def told(path: str) -> bytes:
        return b"MemTotal: 8388608 kB\nMemAvailable: %d kB\n" % left[0] if path == "/proc/meminfo" else read(path)

    monkeypatch.setattr(machine, "read", told)
    return partial(left.__setitem__, 0)


LEAST = (256 + 32) << 10  # KiB: what is left to others, and one cell


async def test_without_memory_no_cell_is_started_a_session_goes_on_and_who_waits_begins_when_there_is_some(
    tmp_path: Path, memory: Callable[[int], None]
) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox, sandbox.session() as session:
        assert (await session.run("x = 42")).ok
        await asyncio.sleep(0.2)  # what was seen is no longer believed
        memory(LEAST - 1)
        with pytest.raises(QueueFull) as raised:
            await sandbox.run(PROGRAM, start_within=0.5)
        assert (raised.value.missing, raised.value.retry_after) == ("memory", 30.0)
        assert "288 MiB of memory" in raised.value.message
        assert (await session.run("print(x)")).stdout == "42\n"
        waits = asyncio.ensure_future(sandbox.run(PROGRAM))
        while (await sandbox.stats()).waiting != 1:
            await asyncio.sleep(0.01)
        memory(LEAST)
        async with asyncio.timeout(60):
            assert (await waits).stdout == "42\n"
    row = next(row for row in AuditLog(tmp_path / "audit.db").tail(100) if row.kind == "queue")
    assert json.loads(row.detail)["missing"] == "memory"


async def test_what_the_machine_has_left_is_told(tmp_path: Path, memory: Callable[[int], None]) -> None:
    memory(LEAST)
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        room = (await sandbox.stats()).room
        assert (room.memory, room.memory_total) == (LEAST << 10, 8 << 30)
        assert (await sandbox.doctor()).room.memory == LEAST << 10
