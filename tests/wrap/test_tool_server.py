"""A tool server behind the wall, talked to by the MCP SDK's own client: Python's, and the reference one of Node's."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.coroutines import pytest_pyfunc_call
from tests.tools.connections import peers
from tests.wrap.conftest import Wrap

from casemate import Sandbox, ToolUnavailable

__all__ = ["pytest_pyfunc_call"]


async def _talk(wrap: Wrap, *command: str) -> list[tuple[bool, str]]:
    words = wrap.command(*command)
    where = StdioServerParameters(command=words[0], args=words[1:], env=dict(wrap.env), cwd=wrap.folder)
    calls = [
        ("list_directory", {"path": "."}),
        ("list_directory", {"path": str(wrap.folder)}),
        ("read_text_file", {"path": "notes.txt"}),
        ("read_text_file", {"path": ".env"}),
        ("write_file", {"path": "made.txt", "content": "made"}),
    ]
    async with asyncio.timeout(100), stdio_client(where) as streams, ClientSession(*streams) as session:
        await session.initialize()
        answers = [await session.call_tool(name, arguments) for name, arguments in calls]
    return [(bool(one.is_error), getattr(one.content[0], "text", "")) for one in answers]


def _check(wrap: Wrap, answers: list[tuple[bool, str]]) -> None:
    listed, by_path, notes, env, _ = answers
    for failed, text in (listed, by_path):
        assert not failed
        assert "notes.txt" in text
    assert notes == (False, "notes\n")
    assert env[0]
    assert "permission denied" in env[1].lower()
    assert (wrap.folder / "made.txt").read_text() == "made"


@pytest.mark.needs("node")
def test_the_reference_server_works_from_outside_its_folder(wrap: Wrap) -> None:
    server = peers.install().parent / ".bin" / "mcp-server-filesystem"
    _check(wrap, asyncio.run(_talk(wrap, "--", str(server), ".")))


BOUND_SERVER = """
import os, resource
from pathlib import Path
from mcp.server.mcpserver import MCPServer

server = MCPServer("bound")

@server.tool()
def look() -> str:
    try:
        text = Path("keys.txt").read_text()
    except OSError as error:
        text = type(error).__name__
    return f"{text} {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"

server.run()
"""


def _bound(folder: Path, policy: dict[str, Any], **options: Any) -> Sandbox:
    (folder / "keys.txt").write_text("of-the-project")
    (folder / "server.py").write_text(BOUND_SERVER)
    server = {"command": sys.executable, "args": ["server.py"], "cwd": str(folder), "wall": True}
    return Sandbox(audit=folder.parent / "audit.db", policy=policy, tools={"bound": server}, **options)


async def test_a_server_behind_a_wall_has_the_hidden_files_and_limits_of_its_sandbox(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    policy = {
        "filesystem": {"allowWrite": [str(folder)], "denyRead": [str(folder / "keys.txt")]},
        "limits": {"open_files": 77, "wall": 1, "full_output": "8KiB"},
    }
    async with _bound(folder, policy) as sandbox:
        assert (await sandbox.tools.call("bound", "look", {})).content[0]["text"] == "PermissionError 77"


@pytest.mark.parametrize(
    ("policy", "options", "why"),
    [
        ({"isolation": {"at_least": "own-kernel"}}, {"isolation": "native"}, "own-kernel"),
        ({}, {"isolation": "docker"}, "Docker|docker|engine"),
    ],
)
async def test_a_server_behind_a_wall_is_refused_where_its_sandbox_would_be(
    tmp_path: Path, policy: dict[str, Any], options: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    folder = tmp_path / "project"
    folder.mkdir()
    async with _bound(folder, policy, **options) as sandbox:
        with pytest.raises(ToolUnavailable, match=why):
            await sandbox.tools.call("bound", "look", {})
