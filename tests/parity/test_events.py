"""Events: each that is promised really comes, in order and once, to everybody who asks for it."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from casemate import ApprovalRequest, AuditEvent, InvalidArgument, Limits, QueueFull, Sandbox, sync
from casemate.audit import reading
from casemate.audit.log import AuditLog
from casemate.audit.reading import Audit
from casemate.execution import slots
from casemate.model.operation import Audience, Principal
from casemate.operations.invoke import local
from casemate.operations.operations import Operations

PROGRAM = "print(6 * 7)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


async def told(sandbox: Sandbox) -> list[AuditEvent]:
    """All that has happened in a sandbox that is closed."""
    return [event async for event in sandbox.audit.events(after=0)]


@pytest.mark.parametrize(
    ("program", "given", "expected"),
    [
        (PROGRAM, {}, ["execution.started", "execution.completed"]),
        ("1 / 0", {}, ["execution.started", "execution.failed"]),
        ("while True: pass", {"timeout": 0.3}, ["execution.started", "resource.exceeded", "execution.timeout"]),
        (
            "held = [bytes([1]) * (1 << 20) for _ in range(600)]",
            {"limits": Limits(memory="64MiB", disk="1MiB")},
            ["execution.started", "resource.exceeded", "execution.failed"],
        ),
    ],
)
async def test_an_execution_that_starts_and_ends_is_told(
    path: Path, program: str, given: dict[str, Any], expected: list[str]
) -> None:
    async with Sandbox(audit=path) as sandbox:
        execution = await sandbox.run(program, **given)
    events = await told(sandbox)
    assert [event.name for event in events] == expected
    assert {event.run for event in events} == {execution.id}


async def test_a_session_that_is_opened_and_ended_is_told(path: Path) -> None:
    async with Sandbox(audit=path) as sandbox:
        session = sandbox.session("shell", name="work")
        assert (await session.run("x=1")).ok
        await session.close()
        await session.close()
        idle = sandbox.session(lifetime=0.1)
        await idle.set("x", 1)
        while not idle.is_closed:
            await asyncio.sleep(0.01)
        rows = await sandbox.audit.tail(kind="session")
        assert [(row.run, row.detail["action"]) for row in reversed(rows)] == [
            (session.id, "opened"),
            (session.id, "closed"),
            (idle.id, "opened"),
            (idle.id, "closed"),
        ]
        assert rows[-1].detail == {"action": "opened", "language": "shell", "name": "work"}
    named = [event.name for event in await told(sandbox) if event.name.startswith("session.")]
    assert named == ["session.created", "session.killed"] * 2


async def test_a_session_whose_changes_are_applied_is_not_told_as_ended(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    async with Sandbox(audit=path, workspace=folder, workspace_mode="review", approve=lambda _: True) as sandbox:
        session = sandbox.session()
        assert (await session.run("open('a', 'w').write('1')")).ok
        assert (await session.apply()).status == "applied"
        await session.close()
    named = [event.name for event in await told(sandbox) if event.name.startswith("session.")]
    assert named == ["session.created", "session.killed"]


async def test_a_secret_that_is_given_to_a_program_is_told_without_its_value(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASEMATE_SECRET_DEFAULT_API_TOKEN", "correct horse battery")
    async with Sandbox(audit=path) as sandbox:
        assert (await sandbox.run(PROGRAM, secrets=["API_TOKEN"])).ok
    events = await told(sandbox)
    assert [event.name for event in events] == ["execution.started", "vault.accessed", "execution.completed"]
    assert events[1].detail["secrets"] == ["API_TOKEN"]
    assert "correct horse" not in repr(events)


@pytest.mark.parametrize(("answer", "name"), [(True, "egress.approved"), (False, "egress.denied")])
async def test_a_host_that_is_asked_for_and_decided_about_is_told(path: Path, answer: bool, name: str) -> None:
    async with Sandbox(audit=path, approve=lambda _: answer) as sandbox:
        decided = await sandbox.egress.request("api.example.test")
        assert decided.allowed is answer
    assert [event.name for event in await told(sandbox)] == ["egress.requested", name]


async def test_a_question_is_told_while_it_waits(path: Path) -> None:
    asked: asyncio.Queue[ApprovalRequest] = asyncio.Queue()

    async def approve(request: ApprovalRequest) -> bool:
        asked.put_nowait(request)
        await asyncio.Event().wait()
        return False

    async with Sandbox(audit=path, approve=approve) as sandbox:
        events = sandbox.audit.events(after=0)
        answer = asyncio.create_task(sandbox.egress.request("api.example.test"))
        first = await anext(events)
        assert (first.name, first.detail["request"]) == ("egress.requested", (await asked.get()).id)
        assert not answer.done()
        sandbox.approvals.decide(first.detail["request"], allow=False)
        assert (await anext(events)).name == "egress.denied"
        assert not (await answer).allowed
        await events.aclose()


async def test_a_waiting_line_that_is_full_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST_WAITING", 0)
    async with Sandbox(audit=path, concurrency=1) as sandbox:
        events = sandbox.audit.events()
        following = asyncio.ensure_future(anext(events))
        run = asyncio.ensure_future(sandbox.run("import time\ntime.sleep(600)"))
        while not (await sandbox.stats()).running:
            await asyncio.sleep(0.01)
        with pytest.raises(QueueFull):
            await sandbox.run(PROGRAM)
        names = [(await following).name, *[(await anext(events)).name for _ in range(1)]]
        assert set(names) == {"execution.started", "queue.backpressure"}
        run.cancel()
        await events.aclose()


async def test_a_reader_that_comes_back_goes_on_where_it_was_and_misses_nothing(path: Path) -> None:
    async with Sandbox(audit=path) as sandbox:
        for _ in range(3):
            assert (await sandbox.run("while True: pass", timeout=0.2)).status == "timeout"
        events = sandbox.audit.events(after=0)
        whole = [await anext(events) for _ in range(9)]
        await events.aclose()
        for before, after in itertools.pairwise(whole):
            events = sandbox.audit.events(after=before.cursor)
            assert await anext(events) == after
            await events.aclose()
    assert [event.name for event in whole] == ["execution.started", "resource.exceeded", "execution.timeout"] * 3


async def test_readers_beside_each_other_get_everything_and_a_slow_one_holds_nobody_up(path: Path) -> None:
    async with Sandbox(audit=path) as sandbox:
        slow, fast = sandbox.audit.events(after=0), sandbox.audit.events(after=0)
        assert (await sandbox.run(PROGRAM)).ok
        first = await anext(slow)  # and then nothing, until all is over
        for _ in range(20):
            assert (await sandbox.run(PROGRAM)).ok
        quick = [await anext(fast) for _ in range(42)]
        late = [first, *[await anext(slow) for _ in range(41)]]
        assert late == quick
        await slow.aclose()
        await fast.aclose()
        assert [event.name for event in quick] == ["execution.started", "execution.completed"] * 21


async def test_events_of_another_namespace_are_not_given(path: Path) -> None:
    async with (
        Sandbox(audit=path, namespace="one") as one,
        Sandbox(audit=path, namespace="other") as other,
    ):
        assert (await other.run(PROGRAM)).ok
        mine = await one.run(PROGRAM)
    events = await told(one)
    assert {(event.namespace, event.run) for event in events} == {("one", mine.id)}


async def test_what_another_process_writes_is_told_too(path: Path) -> None:
    log, stranger = AuditLog(path), AuditLog(path)
    events = Audit(log, "mine").events()
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    number = 0
    while not following.done():
        number += 1
        stranger.append("intent", f"run-{number}", "mine", {})
        await asyncio.wait([following], timeout=0.1)
    assert (await following).name == "execution.started"
    log.close()
    stranger.close()
    assert {event.name async for event in events} <= {"execution.started", "execution.failed"}


async def test_they_end_with_the_sandbox_after_the_last_one(path: Path) -> None:
    sandbox = Sandbox(audit=path)
    events = sandbox.audit.events(after=0)
    session = sandbox.session()
    assert (await session.run("1")).ok
    await sandbox.close()
    assert [event.name async for event in events] == [
        "session.created", "execution.started", "execution.completed", "session.killed",
    ]  # fmt: skip


@pytest.mark.parametrize("after", [-1, "1", 1.0, True])
async def test_what_is_no_cursor_is_a_bad_argument(sandbox: Sandbox, after: Any) -> None:
    with pytest.raises(InvalidArgument, match="after"):
        await anext(sandbox.audit.events(after=after))


async def test_files_that_are_signed_are_told_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(path.parent))
    async with Sandbox(audit=path) as sandbox:
        nothing = await sandbox.run(PROGRAM)
        execution = await sandbox.run("open('a', 'w').write('1')")
        for one in (nothing, execution, execution):
            one.statement()
    (event,) = [event for event in await told(sandbox) if event.name == "artifact.signed"]
    assert event.run == execution.id
    assert event.detail["artifacts"] == {"artifacts/a": execution.artifacts[0].sha256}


async def test_operators_have_them_as_an_operation_that_streams(path: Path) -> None:
    async with Sandbox(audit=path) as sandbox, Operations(sandbox) as operations:
        assert (await sandbox.run(PROGRAM)).ok
        told = local(operations, Principal("user", Audience.OPERATOR)).stream("audit.events", {}, cursor=0)
        first = await anext(told)
        assert (first["name"], first["detail"]["code"]) == ("execution.started", PROGRAM)
        await told.aclose()


def test_without_await_it_is_the_same(path: Path) -> None:
    with sync.Sandbox(audit=path) as sandbox:
        assert sandbox.run(PROGRAM).ok
        names = [event.name for event in itertools.islice(sandbox.audit.events(after=0), 2)]
    assert names == ["execution.started", "execution.completed"]


def test_every_name_has_a_test_here_or_where_packages_are_installed() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    names = {*re.findall(r'"([a-z]+\.[a-z]+)"', Path(reading.__file__).read_text(encoding="utf-8"))}
    assert len(names) > 10
    assert {name for name in names if f'"{name}"' not in text} <= {"package.installed"}
