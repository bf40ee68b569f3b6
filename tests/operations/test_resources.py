"""What operators and agents have besides sessions and runs: the vault, tools, approvals, doctor."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.operations.conftest import AGENT, OTHER

from casemate.errors import Denied, InvalidArgument, NotFound
from casemate.operations import approvals
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations

SERVER = Path(__file__).parents[1] / "brokered" / "witness_server.py"


@pytest.fixture(scope="module")
def policy() -> dict[str, Any]:
    return {"rules": [{"ask": "shell"}]}


async def test_secrets_go_in_and_are_given_to_programs_and_nothing_gives_them_back(
    agent: Invoke, operator: Invoke
) -> None:
    await operator("vault.set", {"name": "KEY", "value": "hunter2-hunter2"})
    await operator("vault.set", {"name": "API", "value": "hunter3-hunter3", "hosts": ["api.example.test"]})
    names = {one["name"]: one["inject"] for one in await operator("vault.names")}
    assert names["KEY"] is None
    assert names["API"]["hosts"] == ["api.example.test"]
    program = "import os; print(len(os.environ['KEY']), os.environ['KEY'])"
    execution = await operator("run", {"code": program, "secrets": ["KEY"]})
    assert execution["stdout"].startswith("15 ")
    assert "hunter" not in str(execution)
    with pytest.raises(InvalidArgument) as refused:
        await operator("vault.set", {"name": "KEY", "value": "q9xz"})
    assert "q9xz" not in str(refused.value)
    with pytest.raises(InvalidArgument) as refused:
        await operator("vault.set", {"name": "KEY", "value": ["hunter4-hunter4"]})
    assert "hunter4" not in str(refused.value)
    for name in ("KEY", "API"):
        await operator("vault.delete", {"name": name})
    assert await operator("vault.names") == []


COUNTS = "import os; print(len(os.environ['KEY']))"


@pytest.mark.parametrize("allow", [True, False])
async def test_an_agent_gets_a_secret_that_somebody_allows_and_no_other(
    agent: Invoke, operator: Invoke, allow: bool
) -> None:
    await operator("vault.set", {"name": "KEY", "value": "hunter2-hunter2"})
    with pytest.raises(InvalidArgument, match="there is no secret NOBODY_HAS"):  # and nobody is asked
        await agent("run", {"code": COUNTS, "secrets": ["KEY", "NOBODY_HAS"]})
    asking = asyncio.ensure_future(agent("run", {"code": COUNTS, "secrets": ["KEY"]}))
    request = await pending(operator)
    assert (request["kind"], request["arguments"]) == ("secret", {"name": "KEY"})
    await operator("vault.set", {"name": "KEY", "value": "another-hunter2-by-now"})
    await operator("approvals.decide", {"request": request["id"], "allow": allow})
    if allow:  # its value was not read before somebody allowed it
        assert (await asking)["stdout"] == "22\n"
    else:
        with pytest.raises(Denied, match="KEY"):
            await asking
    await operator("vault.delete", {"name": "KEY"})


async def test_an_agent_gets_the_secrets_that_its_token_names(operations: Operations, operator: Invoke) -> None:
    await operator("vault.set", {"name": "KEY", "value": "hunter2-hunter2"})
    given = local(operations, AGENT._replace(secrets=("KEY",)))
    assert (await given("run", {"code": COUNTS, "secrets": ["KEY"]}))["stdout"] == "15\n"
    await operator("vault.delete", {"name": "KEY"})


async def test_no_program_gets_what_signs_in_to_a_server(operator: Invoke) -> None:
    await operator("vault.set", {"name": "OAUTH_FILES_1F", "value": "hunter2-hunter2"})
    with pytest.raises(InvalidArgument, match="own sign-in"):
        await operator("run", {"code": "1", "secrets": ["OAUTH_FILES_1F"]})
    await operator("vault.delete", {"name": "OAUTH_FILES_1F"})


async def pending(operator: Invoke) -> dict[str, Any]:
    while not (waiting := await operator("approvals.pending")):
        await asyncio.sleep(0)
    found: dict[str, Any] = waiting[0]
    return found


@pytest.mark.parametrize("allow", [False, True])
async def test_a_server_that_an_agent_registers_is_there_only_when_somebody_allows_it(
    agent: Invoke, operator: Invoke, allow: bool, tmp_path: Path
) -> None:
    shutil.copy(SERVER, tmp_path)
    definition = {"command": sys.executable, "args": [SERVER.name, "log"], "cwd": str(tmp_path)}
    asking = asyncio.ensure_future(agent("tools.register", {"name": "witness", "definition": definition}))
    request = await pending(operator)
    assert (request["kind"], request["server"], request["caller"]) == ("server", "witness", AGENT.name)
    assert request["arguments"]["command"] == sys.executable
    await operator("approvals.decide", {"request": request["id"], "allow": allow, "reason": "no"})
    if not allow:
        with pytest.raises(Denied):
            await asking
        with pytest.raises(InvalidArgument):
            await operator("tools.remove", {"name": "witness"})
    else:
        assert {one["server"] for one in await asking} == {"witness"}
        await operator("tools.remove", {"name": "witness"})


async def test_a_server_that_an_agent_registers_is_nowhere_that_only_this_machine_reaches(agent: Invoke) -> None:
    with pytest.raises(InvalidArgument):
        await agent("tools.register", {"name": "cloud", "definition": {"url": "http://169.254.169.254/latest"}})


async def test_what_a_server_said_last_is_for_operators(agent: Invoke, operator: Invoke) -> None:
    """It may have printed what its definition gives it."""
    starts = "import os, sys; sys.exit('cannot use ' + os.environ['KEY'] + ' and pass-1 ' + os.environ['LEVEL'])"
    env = {"KEY": "plainly-in-the-definition", "LEVEL": "information"}
    definition = {"command": sys.executable, "args": ["-c", starts], "env": env}
    await operator("tools.add", {"name": "broken", "definition": definition})
    try:
        seen, told = await agent("tools.problems"), await operator("tools.problems")
    finally:
        await operator("tools.remove", {"name": "broken"})
    assert "pass-1" not in seen["broken"]
    assert "cannot use [secret:env.KEY] and pass-1 information" in told["broken"]


async def test_a_list_of_what_waits_tells_long_arguments_in_short(
    agent: Invoke, operator: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "_MOST_LISTED", 10_000)
    definition = {"command": "true", "env": {"LONG": "x" * 50_000}}
    asking = asyncio.ensure_future(agent("tools.register", {"name": "long", "definition": definition}))
    listed = await pending(operator)
    assert len(str(listed)) < 2000
    assert "approvals.get has all" in str(listed["arguments"]["env"])
    whole = await operator("approvals.get", {"request": listed["id"]})
    assert whole["arguments"]["env"] == definition["env"]
    await operator("approvals.decide", {"request": listed["id"]})
    with pytest.raises(Denied):
        await asking


async def test_a_server_with_secrets_of_the_host_s_is_refused_unasked(agent: Invoke, operator: Invoke) -> None:
    definition = {"command": "true", "env": {"A": "${HOME}"}}
    with pytest.raises(Denied):
        await agent("tools.register", {"name": "thief", "definition": definition})
    assert await operator("approvals.pending") == []


async def test_all_that_waits_is_refused_at_once_and_of_one_session_alone(agent: Invoke, operator: Invoke) -> None:
    runs = [await agent("runs.start", {"code": "!echo x", "session": "new", "wait": 60}) for _ in range(3)]
    assert await operator("approvals.deny_all", {"reason": "later", "session": runs[0]["session"]}) == 1
    assert len(await operator("approvals.pending")) == 2
    assert await operator("approvals.deny_all") == 2
    for state in runs:
        assert (await agent("runs.wait", {"run": state["run"]}))["status"] == "done"
        await agent("sessions.close", {"session": state["session"]})


async def test_nothing_is_installed_unless_somebody_allows_it(agent: Invoke) -> None:
    assert await agent("packages.list") == []
    with pytest.raises(InvalidArgument):
        await agent("packages.install", {"packages": ["--index-url=http://example.test"]})


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
