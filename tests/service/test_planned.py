"""What a program would call, found out and run in a service: as in a sandbox of this process, for its caller alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.brokered.conftest import Witness
from tests.brokered.test_calls import RAW, told
from tests.brokered.test_plans import THREE
from tests.service.daemon import Daemon, serving
from tests.service.test_connected import KINDS, opened
from tests.support.waiting import until_async

from casemate import ApprovalRequest, InvalidArgument, Limits, PlanDenied, PlannedCall, ProgramPlan, Unavailable
from casemate.errors import NotFound
from casemate.remote.facade import ConnectedSandbox

BOTH = pytest.mark.parametrize("kind", KINDS)
CALLS = tuple(PlannedCall("w", "note", {"text": str(number)}) for number in range(3))
Offering = Callable[[str], AbstractAsyncContextManager[Any]]


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "calls")


@pytest.fixture
def offering(witness: Witness, shared: Daemon, tmp_path: Path) -> Offering:
    """Opens a sandbox of a kind that has the server as ``w``."""

    @asynccontextmanager
    async def open_one(kind: str) -> AsyncIterator[Any]:
        async with opened(kind, shared, tmp_path) as sandbox:
            await sandbox.tools.add("w", witness.definition)
            try:
                yield sandbox
            finally:
                await sandbox.tools.remove("w")

    return open_one


async def answered(sandbox: Any, running: asyncio.Future[Any], *answers: bool) -> list[ApprovalRequest]:
    """Give these answers to what ``running`` asks, one after the other; what that was."""
    seen: list[ApprovalRequest] = []
    for answer in answers:
        request = await until_async(lambda: next(iter(sandbox.approvals.pending()), None))
        assert not running.done()
        seen.append(request)
        assert sandbox.approvals.decide(request.id, answer, reason="" if answer else "not these")
    return seen


@BOTH
async def test_a_plan_is_told_without_a_call_and_run_with_exactly_its_calls(
    kind: str, offering: Offering, witness: Witness
) -> None:
    code = RAW + (
        "said = [call(text=str(number)) for number in range(2)]\n"
        "if said[0]['content']:\n"  # which there is when it is truly called
        "    said += [call(text='1'), call(text='more')]\n"
        "print(json.dumps([one['ok'] for one in said]))"
    )
    async with offering(kind) as sandbox:
        plan = await sandbox.plan(code, metadata={"a": 1})
        assert type(plan) is ProgramPlan
        assert (plan.calls, told(plan.execution), plan.execution.metadata) == (CALLS[:2], [True, True], {"a": 1})
        assert (witness.calls, sandbox.approvals.pending()) == ([], [])
        for count in (1, 2):
            running = asyncio.ensure_future(plan.run())
            asked, again, beyond = seen = await answered(sandbox, running, True, False, False)
            execution = await running
            assert told(execution) == [True, True, False, False]
            assert execution.id != plan.execution.id
            assert [(one.kind, one.run) for one in seen] == [(kind, execution.id) for kind in ("plan", "tool", "tool")]
            assert [one.arguments["text"] for one in (again, beyond)] == ["1", "more"]
            assert [one["arguments"] for one in asked.arguments["calls"]] == [{"text": "0"}, {"text": "1"}]
            assert witness.calls == [("note", {"text": "0"}), ("note", {"text": "1"})] * count


@BOTH
async def test_a_plan_that_somebody_denies_is_not_run_and_says_why(
    kind: str, offering: Offering, witness: Witness
) -> None:
    async with offering(kind) as sandbox:
        plan = await sandbox.plan(THREE)
        running = asyncio.ensure_future(plan.run())
        await answered(sandbox, running, False)
        with pytest.raises(PlanDenied) as denied:
            await running
        assert denied.value.reason == "not these"
        assert "approver" in denied.value.remediation
        assert witness.calls == []


@BOTH
async def test_what_a_plan_was_given_is_there_when_it_is_tried_and_when_it_is_run(
    kind: str, offering: Offering, tmp_path: Path
) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(range(256)) * 1200)
    code = (
        "import os, sys\n"
        "print(len(open('large.bin', 'rb').read()), open('a').read(), input(), os.environ['TOKEN'], sys.argv[1:])\n"
        "open('left', 'w').write('left')"
    )
    async with offering(kind) as sandbox:
        await sandbox.vault.set("TOKEN", "a-secret-value")
        plan = await sandbox.plan(
            code, files={"large.bin": tmp_path / "large.bin", "a": "text"}, stdin="line\n", secrets=["TOKEN"],
            arguments=["x"], limits=Limits(memory="256MiB"),
        )  # fmt: skip
        running = asyncio.ensure_future(plan.run())
        (asked,) = await answered(sandbox, running, True)
        assert asked.arguments["program"]["files"] == ["a", "large.bin"]
        assert asked.arguments["program"]["secrets"] == ["TOKEN"]
        for execution in (plan.execution, await running):
            assert execution.stdout == "307200 text line [secret:TOKEN] ['x']\n"
            assert [one.read_bytes() for one in execution.artifacts if one.name == "left"] == [b"left"]


@BOTH
async def test_a_secret_in_a_call_is_in_nothing_that_is_told_of_a_plan_and_in_the_call(
    kind: str, offering: Offering, witness: Witness
) -> None:
    code = RAW + "import os\ncall(text=f'with {os.environ[\"TOKEN\"]}')"
    async with offering(kind) as sandbox:
        await sandbox.vault.set("TOKEN", "a-secret-value")
        plan = await sandbox.plan(code, secrets=["TOKEN"])
        assert plan.calls == (PlannedCall("w", "note", {"text": "with [secret:TOKEN]"}),)
        running = asyncio.ensure_future(plan.run())
        (asked,) = await answered(sandbox, running, True)
        assert asked.arguments["calls"] == [
            {"server": "w", "tool": "note", "arguments": {"text": "with [secret:TOKEN]"}}
        ]
        execution = await running
        assert witness.calls == [("note", {"text": "with a-secret-value"})]
        for run in (execution.id, plan.execution.id):
            assert "a-secret-value" not in repr(await sandbox.audit.tail(50, run=run))


@BOTH
async def test_a_secret_that_is_gone_is_not_given_to_a_plan_that_was_made_before(kind: str, offering: Offering) -> None:
    async with offering(kind) as sandbox:
        await sandbox.vault.set("GONE", "a-secret-value")
        plan = await sandbox.plan("print(1)", secrets=["GONE"])
        await sandbox.vault.delete("GONE")
        with pytest.raises(InvalidArgument) as refused:
            await plan.run()
        assert refused.value.argument == "secrets"
        assert sandbox.approvals.pending() == []


@BOTH
async def test_whoever_waits_for_a_plan_no_longer_takes_its_question_along(kind: str, offering: Offering) -> None:
    async with offering(kind) as sandbox:
        plan = await sandbox.plan(THREE)
        running = asyncio.ensure_future(plan.run())
        await until_async(sandbox.approvals.pending)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until_async(lambda: not sandbox.approvals.pending())


@BOTH
async def test_limits_that_are_narrowed_later_hold_for_a_plan_that_was_made_before(
    kind: str, shared: Daemon, tmp_path: Path
) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    async with opened("connected", shared, tmp_path) as operator:
        if kind == "connected":
            async with ConnectedSandbox(await shared.connect(agent="later")) as sandbox:
                await narrowed_later(sandbox, operator)
        else:
            async with opened(kind, shared, folder) as sandbox:
                await narrowed_later(sandbox, sandbox)


async def narrowed_later(sandbox: Any, approver: Any) -> None:
    plan = await sandbox.plan("print('x' * 5000)")
    assert not plan.execution.truncated
    await sandbox.set_limits(output=1000)
    running = asyncio.ensure_future(plan.run())
    await answered(approver, running, True)
    assert (await running).truncated


@BOTH
async def test_a_session_has_no_plan(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox:
        with pytest.raises(Unavailable, match="cannot be copied"):
            await sandbox.plan(THREE, session=object())


async def test_a_plan_that_the_service_has_forgotten_says_so(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        sandbox = ConnectedSandbox(await daemon.connect())
        plan = await sandbox.plan("print(1)")
        await sandbox.close()  # connections of its own to what ends now
        assert daemon.stop() == 0
        daemon.start()
        try:
            with pytest.raises(NotFound, match="no longer kept") as gone:
                await plan.run()
            assert gone.value.argument == "plan"
            assert gone.value.remediation == "Make the plan again."
        finally:
            await sandbox.close()
