"""The waiting line: bounded, told in words with a time to try again, and left when it is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import casemate
from casemate import QueueFull, Sandbox
from casemate.audit.log import AuditLog
from casemate.execution import slots
from casemate.model.operation import Audience, Principal
from casemate.operations.documents import error_document, error_from
from casemate.operations.invoke import local
from casemate.operations.operations import Operations

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
            async with asyncio.TaskGroup() as others:  # one of them waits, and so sees that there is room
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
