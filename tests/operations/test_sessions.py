"""Sessions by handle, and the files of their workspaces."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.operations.conftest import AGENT, OPERATOR, OTHER, Checked
from tests.operations.test_catalogue import good

from casemate import Sandbox
from casemate.errors import InvalidArgument, NotFound, QueueFull, Unavailable, WallUnavailable
from casemate.model.operation import Audience
from casemate.operations import sessions, stores
from casemate.operations.catalogue import catalogue
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations


async def opened(invoke: Invoke, **arguments: Any) -> str:
    return str((await invoke("sessions.open", arguments))["session"])


async def step(invoke: Invoke, session: str, code: str, **more: Any) -> dict[str, Any]:
    state = await invoke("runs.start", {"code": code, "session": session, "wait": 60, **more})
    assert state["status"] == "done", state
    execution: dict[str, Any] = state["execution"]
    return execution


async def test_a_value_that_is_nested_too_deep_is_an_error_that_says_so(agent: Invoke) -> None:
    session = await opened(agent)
    await step(agent, session, "deep = []\nfor _ in range(900): deep = [deep]")
    with pytest.raises((Unavailable, InvalidArgument)):
        await agent("sessions.get", {"session": session, "name": "deep"})
    await agent("sessions.close", {"session": session})


FOREIGN = [
    name
    for name, one in catalogue().items()
    if one.audience is Audience.AGENT and "session" in one.params.model_fields and name != "validate"  # a flag there
]


@pytest.mark.parametrize("name", FOREIGN)
async def test_another_s_session_is_refused_as_one_that_there_is_not(agent: Invoke, other: Invoke, name: str) -> None:
    session = await opened(agent, name="mine", files={"a.txt": {"text": "A"}})
    for handle in (session, "mine", "f" * 32):
        with pytest.raises(NotFound) as refused:
            await other(name, {**good(name), "session": handle})
        assert refused.value.message == f"session: there is no session {handle!r}, or it has ended"
    assert (await agent("files.read", {"session": session, "path": "a.txt"}))["text"] == "A"
    await agent("sessions.close", {"session": session})


async def test_no_value_is_copied_from_or_into_another_s_session(agent: Invoke, other: Invoke) -> None:
    mine, theirs = await opened(agent), await opened(other)
    await agent("sessions.set", {"session": mine, "name": "x", "value": 1})
    for source, target in ((mine, theirs), (theirs, mine)):
        with pytest.raises(NotFound):
            await other("sessions.bridge", {"name": "x", "source": source, "target": target})
    await agent("sessions.close", {"session": mine})
    await other("sessions.close", {"session": theirs})


async def test_names_are_each_caller_s_own(agent: Invoke, other: Invoke, operator: Invoke) -> None:
    mine, others = await opened(agent, name="work"), await opened(other, name="work")
    assert mine != others
    assert len({mine, others} & {one["session"] for one in await operator("sessions.list")}) == 2
    with pytest.raises(InvalidArgument):
        await opened(agent, name="work")
    with pytest.raises(InvalidArgument):
        await opened(agent, name="new")
    await agent("sessions.close", {"session": "work"})
    with pytest.raises(NotFound):
        await agent("sessions.close", {"session": "work"})
    await operator("sessions.close", {"session": "work"})
    assert await other("sessions.list") == []


async def test_a_caller_has_so_many_sessions_at_most(
    agent: Invoke, other: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_OPEN", 2)
    held = [await opened(agent), await opened(agent)]
    with pytest.raises(QueueFull, match="2 sessions"):
        await opened(agent)
    await other("sessions.close", {"session": await opened(other)})
    for session in held:
        await agent("sessions.close", {"session": session})


async def test_a_session_that_could_not_be_begun_with_is_not_left_open(agent: Invoke) -> None:
    with pytest.raises(InvalidArgument):
        await agent("runs.start", {"code": "\0", "session": "new"})
    assert await agent("sessions.list") == []


async def test_idle_sessions_end_by_themselves(sandbox: Sandbox) -> None:
    operations = Operations(sandbox, idle_timeout=1.5)
    agent = local(operations, AGENT)
    session = await opened(agent)
    await step(agent, session, "1")
    while await agent("sessions.list"):
        await asyncio.sleep(0)  # its timer is of the same loop
    with pytest.raises(NotFound):
        await agent("sessions.variables", {"session": session})
    await operations.close()


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 1000])
async def test_a_text_is_read_page_by_page_without_a_broken_character(agent: Invoke, limit: int) -> None:
    text = "aä€🚀\n" * 20
    session = await opened(agent, files={"t.txt": {"text": text}})
    data, offset = b"", 0
    while offset is not None:
        page = await agent("files.read", {"session": session, "path": "t.txt", "offset": offset, "limit": limit})
        assert page["text"] is not None or limit < 4
        data += page["text"].encode() if page["text"] is not None else base64.b64decode(page["base64"])
        offset = page["next"]
    assert data.decode() == text
    await agent("sessions.close", {"session": session})


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for one in data:
        yield one


async def test_an_upload_is_given_to_runs_and_sessions_by_its_handle(
    operations: Operations, agent: Invoke, other: Invoke
) -> None:
    handle = await operations.uploads.store_bytes(pieces(b"ab", b"\0", b"c"), AGENT)
    execution = await agent("run", {"code": "print(open('f', 'rb').read())", "files": {"f": {"handle": handle}}})
    assert execution["text"] == "b'ab\\x00c'"
    session = await opened(agent, files={"first": {"handle": handle}})
    await agent("files.write", {"session": session, "path": "second", "handle": handle})
    assert (await step(agent, session, "open('first').read() == open('second').read()"))["text"] == "True"
    assert (await step(agent, session, "len(open('third').read())", files={"third": {"handle": handle}}))["text"] == "4"
    for wrong in (handle, "nothing"):
        with pytest.raises(NotFound):
            await other("run", {"code": "1", "files": {"f": {"handle": wrong}}})
    await agent("sessions.close", {"session": session})


async def test_an_upload_that_is_too_large_leaves_nothing(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MOST_BYTES", 10)
    with pytest.raises(InvalidArgument):
        await operations.uploads.store_bytes(pieces(b"x" * 8, b"y" * 8), OTHER)
    monkeypatch.setattr(stores, "MOST_OF_ONE", 15)
    await operations.uploads.store_bytes(pieces(b"x" * 8), OTHER)
    with pytest.raises(InvalidArgument):
        await operations.uploads.store_bytes(pieces(b"x" * 8), OTHER)


async def test_uploads_are_forgotten_after_their_time(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "SECONDS", -1.0)
    handle = await operations.uploads.store_bytes(pieces(b"x"), OTHER)
    await operations.uploads.store_bytes(pieces(b"x"), OTHER)
    with pytest.raises(NotFound), operations.uploads.use_upload(handle, OTHER):
        pass


@pytest.mark.parametrize("content", [{"path": "/etc/passwd"}, "/etc/passwd", {"text": "a", "base64": ""}, {}, None])
async def test_a_file_of_the_host_s_cannot_be_named(agent: Invoke, content: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await agent("run", {"code": "1", "files": {"f": content}})
    assert refused.value.argument == "files"


async def test_limits_of_a_caller_stay_within_those_of_the_service_and_hold_for_its_runs(
    operations: Operations, agent: Invoke, other: Invoke
) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    assert (await agent("set_limits", {"limits": {"open_files": 100}}))["open_files"] == 100
    assert (await agent("set_limits", {"limits": {"open_files": 200}}))["open_files"] == 200
    with pytest.raises(InvalidArgument, match="beyond the most"):
        await agent("set_limits", {"limits": {"open_files": 100_000}})
    again = await agent("set_limits", {"limits": {"open_files": 100, "memory": "256MiB"}})
    assert (again["open_files"], again["memory"]) == (100, 256 << 20)
    assert (await agent("run", {"code": code, "limits": {"open_files": 300}}))["text"] == "100"
    session = await opened(agent)
    assert (await step(agent, session, code))["text"] == "100"
    await agent("sessions.close", {"session": session})
    assert (await other("run", {"code": code}))["text"] == "1024"
    operations._shared._limits.clear()


async def test_an_agent_reads_no_hidden_file_of_a_workspace_by_any_operation(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".env").write_text("TOKEN=hidden-value")
    async with Sandbox(workspace=folder, workspace_mode="direct", audit=tmp_path / "audit.db") as one:
        operations = await Operations(one).load()
        try:
            agent = local(operations, AGENT)
            session = await opened(agent, language="shell")
            assert "hidden-value" not in json.dumps(await step(agent, session, "cat .env"))
            for operation in ("files.read", "files.remove"):
                with pytest.raises(InvalidArgument, match=r"path: .* hidden"):
                    await agent(operation, {"session": session, "path": ".env"})
            with pytest.raises(InvalidArgument, match=r"path: .* hidden"):
                await agent("files.write", {"session": session, "path": ".env", "text": "x"})
        finally:
            await operations.close()
    assert (folder / ".env").read_text() == "TOKEN=hidden-value"


@pytest.mark.parametrize("opened", [("sessions.open", {}), ("runs.start", {"code": "1", "session": "new"})])
async def test_a_session_is_not_opened_where_its_wall_cannot_be_had(
    opened: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    policy = {"isolation": {"at_least": "own-kernel"}}
    async with Sandbox(audit=tmp_path / "audit.db", isolation="native", policy=policy) as sandbox:
        operations = await Operations(sandbox).load()
        invoke = Checked(local(operations, OPERATOR))
        with pytest.raises(WallUnavailable, match=r"the policy's isolation\.at_least is own-kernel"):
            await invoke(*opened)
        assert await invoke("sessions.list") == []
        await operations.close()
