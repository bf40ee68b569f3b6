"""The host over MCP, the command line and a connected sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.host.conftest import Opened
from tests.mcp_server.conftest import Connect, connect, operations_of, structure_of, text_of
from tests.parity.test_tools import says
from tests.surfaces.conftest import Cli, cache, make_cli

from casemate import Sandbox
from casemate.model.operation import Audience, Principal
from casemate.operations.invoke import local
from casemate.operations.operations import Operations

__all__ = ["cache", "connect", "make_cli"]


@pytest.fixture
def operations(runner: asyncio.Runner, opened: Opened) -> Iterator[Operations]:
    rule = {"allow": "host", "command": "echo *"}
    with operations_of(Sandbox(policy=opened.policy(rule), audit=opened.place / "audit.db"), runner) as made:
        yield made


async def test_host_exec_runs_what_a_rule_allows_and_asks_about_the_rest(connect: Connect) -> None:
    async with connect(toolset="sandboxmcp", answer=says("allow once")) as agent:
        allowed = await agent.call("host_exec", command="echo hello")
        assert structure_of(allowed)["stdout"] == "hello\n"
        assert agent.asked == []
        failed = await agent.call("host_exec", command=["sh", "-c", "echo no >&2; exit 4"])
        assert failed.is_error
        assert "[exit code: 4]\nno" in text_of(failed)
        (asked,) = agent.asked
        assert "exit 4" in asked.message
        wrong = await agent.call("host_exec", command="echo a; id")
        assert wrong.is_error
        assert "for a shell" in text_of(wrong)
    async with connect(toolset="sandboxmcp", answer=says("deny")) as agent:
        assert (await agent.call("host_exec", command=["touch", "marker"])).is_error


async def test_request_host_access_asks_the_user_and_list_host_access_tells_what_is_open(
    connect: Connect, opened: Opened
) -> None:
    async with connect(toolset="sandboxmcp", answer=says("allow for this run")) as agent:
        decided = await agent.call("request_host_access", pattern="uname -r", reason="to know")
        assert structure_of(decided)["allowed"]
        access = structure_of(await agent.call("list_host_access"))
        assert access["approved"] == ["uname -r"]
        assert access["allowed"] == ["echo *"]
        assert access["writable"] == [str(opened.place / "out")]
        assert structure_of(await agent.call("host_exec", command="uname -r"))["exit_code"] == 0
        assert len(agent.asked) == 1


async def test_files_of_the_host_are_read_listed_written_and_copied(connect: Connect, opened: Opened) -> None:
    (opened.place / "data" / "in.txt").write_text("from the host")
    async with connect(toolset="sandboxmcp", answer=says("allow once")) as agent:
        read = await agent.call("host_file_read", path=f"{opened.place}/data/in.txt")
        assert text_of(read) == "from the host"
        listed = structure_of(await agent.call("host_file_list", path=f"{opened.place}/data"))
        assert [one["name"] for one in listed["entries"]] == [f"{opened.place}/data/in.txt"]
        assert not (
            await agent.call("host_file_write", path=f"{opened.place}/out/a.txt", content="by an agent")
        ).is_error
        assert (opened.place / "out" / "a.txt").read_text() == "by an agent"
        session = structure_of(await agent.call("create_session", language="python"))["session_id"]
        copied = await agent.call(
            "host_file_copy", source=f"{opened.place}/data/in.txt", destination=f"{session}:in.txt"
        )
        assert not copied.is_error
        code = "print(open('in.txt').read())"
        assert "from the host" in text_of(await agent.call("execute_code", code=code, session=session))
        outside = await agent.call("host_file_read", path="/etc/passwd")
        assert outside.is_error
        assert "is not in an open folder" in text_of(outside)


async def test_an_agent_copies_out_of_its_own_sessions_alone(operations: Operations, opened: Opened) -> None:
    mine, theirs = (local(operations, Principal(name, Audience.AGENT)) for name in ("mine", "theirs"))
    session = (await theirs("sessions.open", {"language": "shell"}))["session"]
    with pytest.raises(Exception, match="there is no session"):
        await mine("host.copy", {"source": f"{session}:x", "destination": f"{opened.place}/out/x"})


@pytest.mark.full
def test_the_command_line_runs_commands_and_handles_files(make_cli: Callable[..., Cli], opened: Opened) -> None:
    path = {"path": f"{opened.place}/out/**"}
    rules: list[dict[str, Any]] = [
        {"allow": "host", "command": "echo *"},
        {"allow": "files", "arguments": {"action": "write", "path": path, "change": {"any": True}}},
        {"deny": "host", "command": ["touch", "**"], "reason": "read only, please"},
    ]
    (opened.place / "policy.json").write_text(json.dumps(opened.policy(*rules)))
    cli = make_cli(CASEMATE_POLICY=str(opened.place / "policy.json"), CASEMATE_PRELOAD="")
    try:
        check_commands(cli, opened)
    finally:
        cli("service", "stop")


def check_commands(cli: Cli, opened: Opened) -> None:
    ran = cli("host", "exec", "--", "echo", "hello")
    assert (ran.code, ran.stdout) == (0, b"hello\n"), ran.stderr
    denied = cli("host", "exec", "--", "touch", "marker")
    assert denied.code == 77
    assert b"read only, please" in denied.stderr
    assert cli("host", "write", f"{opened.place}/out/a.txt", "-", stdin=b"\x1b[2J\n").code == 0
    assert cli("host", "read", f"{opened.place}/out/a.txt").stdout == b"\x1b[2J\n"
    assert cli("host", "copy", f"{opened.place}/out/a.txt", f"{opened.place}/out/b.txt").code == 0
    assert b"casemate: PATH: " in cli("host", "read", "out/a.txt").stderr
    listed = json.loads(cli("host", "list", f"{opened.place}/out", "--format", "json").stdout)
    assert [one["name"] for one in listed] == [f"{opened.place}/out/a.txt", f"{opened.place}/out/b.txt"]
    access = json.loads(cli("host", "access", "list", "--format", "json").stdout)
    assert access["allowed"] == ["echo *"]
    assert json.loads(cli("host", "access", "request", "--format", "json", "--", "echo", "x").stdout)["scope"] == "rule"
