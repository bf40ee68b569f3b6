"""What operations tell of sessions, hosts and the record, and to whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.operations.conftest import AGENT, OTHER

from casemate.errors import Denied, NotFound
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations


async def test_a_session_is_inspected_by_its_owner_and_by_nobody_else(agent: Invoke, other: Invoke) -> None:
    session = (await agent("sessions.open", {"env": {"NAME": "value"}}))["session"]
    await agent("runs.start", {"code": "x = 1", "session": session, "wait": 60})
    found = await agent("inspect", {"session": session})
    assert (found["id"], found["env"]["NAME"], found["steps"]) == (session, "value", {"ok": 1})
    assert {"name": "x", "type": "int"} in found["variables"]
    with pytest.raises(NotFound):
        await other("inspect", {"session": session})


async def test_agents_read_the_record_of_their_own_runs_and_operators_all_of_it(
    operations: Operations, agent: Invoke, operator: Invoke
) -> None:
    other = local(operations, OTHER)
    mine = (await agent("runs.start", {"code": "1", "wait": 60}))["run"]
    theirs = (await other("runs.start", {"code": "2", "wait": 60}))["run"]

    async def runs(invoke: Invoke, **asked: Any) -> set[str]:
        return {row["run"] for row in await invoke("audit.tail", {"limit": 100, **asked})}

    assert mine in await runs(agent)
    assert theirs not in await runs(agent)
    assert await runs(agent, run=theirs) == set()
    assert {mine, theirs} <= await runs(operator)
    rows = await agent("audit.tail", {"run": mine, "kind": "intent"})
    assert [row["detail"]["caller"] for row in rows] == [AGENT.name]
    assert (await operator("audit.verify"))["ok"] is True
    with pytest.raises(Denied):
        await agent("audit.verify")


@pytest.mark.parametrize("allow", [True, False])
async def test_a_host_is_asked_for_and_the_answer_is_the_operators(
    agent: Invoke, operator: Invoke, allow: bool
) -> None:
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(agent("egress.request", {"domain": f"host-{allow}.test", "reason": "for a test"}))
        while not (pending := await operator("approvals.pending")):
            await asyncio.sleep(0)
        assert "for a test" in pending[0]["summary"]
        await operator("approvals.decide", {"request": pending[0]["id"], "allow": allow})
    answer = asking.result()
    assert (answer["allowed"], answer["domain"], answer["port"]) == (allow, f"host-{str(allow).lower()}.test", 443)
