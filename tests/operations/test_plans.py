"""Plans of programs by handle: held for their callers alone, so many and so long."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokered.conftest import Witness
from tests.brokered.test_calls import RAW
from tests.operations.conftest import AGENT, OPERATOR, Checked
from tests.operations.test_runs import SLOW, ended, until_begun

from casemate import Sandbox
from casemate.errors import InvalidArgument, NotFound
from casemate.operations import plans
from casemate.operations.invoke import Invoke, local
from casemate.operations.kept import Retention
from casemate.operations.operations import Operations
from casemate.sessions import run as session_run
from casemate.sessions.run import Run

CODE = "import os\nprint(sorted(os.listdir()))"


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "calls")


async def made(invoke: Invoke, **given: Any) -> str:
    """The handle of a plan that was tried out."""
    state = await invoke("plans.start", {"code": CODE, "wait": 60, **given})
    assert (state["status"], state["outcome"], state["error"]) == ("done", "ok", None)
    return str(state["run"])


async def uploaded(operations: Operations) -> str:
    async def data() -> AsyncIterator[bytes]:
        yield b"content"

    return await operations.uploads.store_bytes(data(), AGENT)


async def test_a_plan_is_its_callers_alone(agent: Invoke, other: Invoke, operator: Invoke) -> None:
    plan = await made(agent)
    assert await agent("plans.get", {"plan": plan}) == {"plan": plan, "calls": [], "seconds": 3600.0}
    assert (await operator("runs.get", {"run": plan}))["owner"] == AGENT.name  # as any run
    for invoke in (other, operator):
        for operation in ("plans.get", "plans.run"):
            with pytest.raises(NotFound) as refused:
                await invoke(operation, {"plan": plan})
            assert refused.value.argument == "plan"


async def test_a_plan_that_is_still_tried_out_is_not_run(agent: Invoke) -> None:
    plan = (await agent("plans.start", {"code": SLOW}))["run"]
    await until_begun(agent, plan)
    for operation in ("plans.get", "plans.run"):
        with pytest.raises(InvalidArgument, match="still being tried out"):
            await agent(operation, {"plan": plan})
    await agent("runs.cancel", {"run": plan})
    assert (await agent("plans.get", {"plan": plan}))["calls"] == []


async def test_the_last_plans_of_a_caller_are_kept(
    agent: Invoke, other: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = await made(other)
    monkeypatch.setattr(plans, "MOST_KEPT", 2)
    first, second, third = [await made(agent) for _ in range(3)]
    with pytest.raises(NotFound, match="no longer kept"):
        await agent("plans.run", {"plan": first})
    for plan in (second, third):
        assert (await agent("plans.get", {"plan": plan}))["plan"] == plan
    assert (await other("plans.get", {"plan": theirs}))["plan"] == theirs


async def test_large_plans_are_kept_up_to_a_size_and_the_last_one_always(
    agent: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MOST_KEPT_BYTES", 1 << 20)
    first, second = [await made(agent, files={"a": {"text": "x" * 700_000}}) for _ in range(2)]
    with pytest.raises(NotFound):
        await agent("plans.get", {"plan": first})
    assert (await agent("plans.get", {"plan": second}))["plan"] == second


async def test_what_a_program_said_while_it_was_tried_out_is_not_held_with_its_plan(
    agent: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_run, "_MOST_KEPT", 1)
    first, _, _ = [await made(agent) for _ in range(3)]
    assert (await agent("plans.get", {"plan": first}))["plan"] == first
    async with asyncio.timeout(60):
        while first in held_runs():
            await asyncio.sleep(0.05)


def held_runs() -> set[str]:
    """The ids of the runs that something in this process still has."""
    gc.collect()
    return {one.id for one in gc.get_objects() if isinstance(one, Run)}


async def test_a_plan_expires_when_it_is_not_used(agent: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = await made(agent)
    assert (await agent("plans.get", {"plan": plan}))["plan"] == plan
    monkeypatch.setattr(plans, "SECONDS", -1.0)
    await agent("plans.get", {"plan": plan})  # its last use, after which it is kept no longer
    with pytest.raises(NotFound, match="expires"):
        await agent("plans.run", {"plan": plan})


async def test_files_that_were_sent_ahead_are_there_as_long_as_the_plan_is(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Operations(sandbox) as operations:
        agent, operator = Checked(local(operations, AGENT)), Checked(local(operations, OPERATOR))
        handle = await uploaded(operations)
        plan = await made(agent, files={"sent": {"handle": handle}})
        await agent("archives.drop", {"handle": handle})
        state = await agent("plans.run", {"plan": plan, "wait": 60})
        (asked,) = state["approvals"]
        assert (asked["kind"], asked["arguments"]["program"]["files"]) == ("plan", ["sent"])
        assert await operator("approvals.decide", {"request": asked["id"], "allow": True})
        assert "'sent'" in (await ended(agent, state["run"]))["execution"]["text"]
        monkeypatch.setattr(plans, "MOST_KEPT", 1)
        await made(agent)
        await agent("archives.drop", {"handle": handle})
        with pytest.raises(NotFound):
            await made(agent, files={"sent": {"handle": handle}})


async def test_a_run_of_a_plan_waits_for_its_decision_and_has_an_error_when_it_is_denied(
    agent: Invoke, operator: Invoke
) -> None:
    plan = await made(agent)
    state = await agent("plans.run", {"plan": plan, "wait": 60})
    (asked,) = state["approvals"]
    assert (state["status"], asked["kind"]) == ("waiting", "plan")
    (pending,) = [one for one in await operator("approvals.pending") if one["id"] == asked["id"]]
    assert (pending["run"], pending["caller"]) == (state["run"], AGENT.name)
    await operator("approvals.decide", {"request": asked["id"], "allow": False, "reason": "not now"})
    state = await ended(agent, state["run"])
    assert (state["execution"], state["outcome"]) == (None, None)
    assert (state["error"]["type"], state["error"]["kind"], state["error"]["reason"]) == (
        "PlanDenied",
        "denied",
        "not now",
    )


async def test_a_run_of_a_plan_that_is_cancelled_takes_its_question_along(agent: Invoke, operator: Invoke) -> None:
    plan = await made(agent)
    state = await agent("plans.run", {"plan": plan, "wait": 60})
    (asked,) = state["approvals"]
    state = await agent("runs.cancel", {"run": state["run"]})
    assert (state["status"], state["execution"], state["error"]["kind"]) == ("done", None, "closed")
    assert asked["id"] not in {one["id"] for one in await operator("approvals.pending")}
    assert not await operator("approvals.decide", {"request": asked["id"], "allow": True})


async def test_a_trial_that_could_not_run_leaves_no_plan_and_its_run_says_why(tmp_path: Path) -> None:
    async with Sandbox(network="none", audit=tmp_path / "audit.db") as closed, Operations(closed) as operations:
        inside = Checked(local(operations, AGENT))
        state = await inside("plans.start", {"code": CODE, "allowed_domains": ["example.test"], "wait": 60})
        assert (state["error"]["type"], state["error"]["argument"]) == ("InvalidArgument", "allowed_domains")
        with pytest.raises(InvalidArgument, match="has no list of calls"):
            await inside("plans.run", {"plan": state["run"]})


async def test_an_upload_of_another_is_not_planned_with(operations: Operations, other: Invoke) -> None:
    handle = await uploaded(operations)
    with pytest.raises(NotFound):
        await other("plans.start", {"code": CODE, "files": {"a": {"handle": handle}}})


def test_what_is_forgotten_for_another_reason_counts_for_nobody() -> None:
    kept = Retention()
    for run in ("1", "2"):
        kept.add(run, "a", 10)
    kept.forget("1")
    kept.forget("1")
    kept.add("3", "a", 10)
    assert kept.beyond("a", runs=2, size=20, all_runs=2) == {}
    assert kept.beyond("a", runs=1, size=20, all_runs=2) == {"2": 10}


async def test_a_plan_counts_with_what_its_calls_hold(
    sandbox: Sandbox, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Operations(sandbox) as operations:
        agent, operator = Checked(local(operations, AGENT)), Checked(local(operations, OPERATOR))
        await operator("tools.add", {"name": "w", "definition": witness.definition})
        try:
            monkeypatch.setattr(plans, "MOST_KEPT_BYTES", 1_100_000)
            small = await made(agent)
            many = RAW + "for _ in range(2):\n    call('table', text=[[] for _ in range(9_000)])"  # 53 KiB of JSON
            large = await made(agent, code=many)
            state = await agent("plans.get", {"plan": large})
            assert [len(one["arguments"]["text"]) for one in state["calls"]] == [9_000, 9_000]
            with pytest.raises(NotFound, match="no longer kept"):
                await agent("plans.get", {"plan": small})
        finally:
            await operator("tools.remove", {"name": "w"})


async def test_a_plan_that_is_forgotten_leaves_files_to_its_runs_that_go_on(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Operations(sandbox) as operations:
        agent, operator = Checked(local(operations, AGENT)), Checked(local(operations, OPERATOR))
        handle = await uploaded(operations)
        plan = await made(agent, files={"sent": {"handle": handle}})
        states = [await agent("plans.run", {"plan": plan, "wait": 60}) for _ in range(2)]
        monkeypatch.setattr(plans, "MOST_KEPT", 1)
        await made(agent)
        with pytest.raises(NotFound):
            await agent("plans.get", {"plan": plan})
        for state in states:
            await agent("archives.drop", {"handle": handle})
            (asked,) = state["approvals"]
            assert await operator("approvals.decide", {"request": asked["id"], "allow": True})
            assert "'sent'" in (await ended(agent, state["run"]))["execution"]["text"]
        await made(agent)  # meanwhile the last of them is over for everybody
        await agent("archives.drop", {"handle": handle})
        with pytest.raises(NotFound):
            await made(agent, files={"sent": {"handle": handle}})
