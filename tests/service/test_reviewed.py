"""A session of a service whose workspace is reviewed: an agent asks, an operator decides, a program sees both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.service.daemon import Daemon, serving

from casemate import InvalidArgument, Sandbox
from casemate.model.operation import Audience, Principal
from casemate.operations.invoke import local
from casemate.operations.operations import Operations
from casemate.remote.client import RemoteOperations
from casemate.remote.facade import ConnectedSandbox

CODE = "open('changed.txt', 'w').write('after'); open('new.txt', 'w').write('new')"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The operator's."""
    path = tmp_path / "workspace"
    path.mkdir()
    (path / "changed.txt").write_text("before")
    return path


async def answered(operator: RemoteOperations, *, allow: bool) -> None:
    """The one request that comes, decided by somebody else."""
    async for event in operator.stream("approvals.events"):
        assert event["request"]["kind"] == "files"
        await operator("approvals.decide", {"request": event["id"], "allow": allow})
        return


@asynccontextmanager
async def connected(env: dict[str, str], workspace: Path) -> AsyncIterator[tuple[ConnectedSandbox, Daemon]]:
    variables = {**env, "CASEMATE_WORKSPACE": str(workspace), "CASEMATE_WORKSPACE_MODE": "review"}
    with serving(variables) as daemon:
        async with ConnectedSandbox(await daemon.connect()) as sandbox:
            yield sandbox, daemon


@pytest.mark.full
async def test_a_connected_session_is_reviewed_as_one_of_this_process(env: dict[str, str], workspace: Path) -> None:
    async with connected(env, workspace) as (sandbox, daemon):
        operator = await daemon.connect()
        async with sandbox.session() as session:
            (await session.run(CODE)).raise_for_status()
            diff = await session.diff()
            assert [(one.kind, one.path) for one in diff.changes] == [("changed", "changed.txt"), ("added", "new.txt")]
            deciding = asyncio.ensure_future(answered(operator, allow=True))
            applied = await session.apply(["new.txt"])
            await deciding
            assert (applied.status, applied.written) == ("applied", ("new.txt",))
            with pytest.raises(InvalidArgument, match="nothing is changed"):
                await session.apply(["nowhere"])
            await session.discard()
            assert (await session.diff()).changes == ()
        await operator.close()
    assert (workspace / "changed.txt").read_text() == "before"
    assert (workspace / "new.txt").read_text() == "new"


@pytest.mark.parametrize("allow", [True, False])
async def test_an_agent_only_asks_and_an_operator_decides(audit: Path, workspace: Path, allow: bool) -> None:
    async with Sandbox(audit=audit, workspace=workspace, workspace_mode="review", preload=()) as sandbox:
        operations = await Operations(sandbox).load()
        agent = local(operations, Principal("agent", Audience.AGENT))
        operator = local(operations, Principal("user", Audience.OPERATOR))
        with sandbox.approvals.open():
            session = (await agent("sessions.open", {}))["session"]
            await agent("runs.start", {"code": CODE, "session": session, "wait": 60})
            asking = asyncio.ensure_future(agent("sessions.apply", {"session": session}))
            async for event in operator.stream("approvals.events", {}):
                assert event["request"]["caller"] == "agent"
                assert "+after" in event["request"]["arguments"]["diff"]
                await operator("approvals.decide", {"request": event["id"], "allow": allow})
                break
            assert (await asking)["status"] == ("applied" if allow else "denied")
        await operations.close()
    assert (workspace / "changed.txt").read_text() == ("after" if allow else "before")
