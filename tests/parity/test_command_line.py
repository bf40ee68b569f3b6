"""What the command line and the server it starts take as options."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.mcp_server.conftest import output_of, structure_of
from tests.surfaces.conftest import Cli


@pytest.mark.full
async def test_a_server_takes_a_workspace_settings_and_a_log_level(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "note.txt").write_text("in the workspace")
    settings = tmp_path / "settings.json"
    settings.write_text(
        json.dumps(
            {
                "network": {"allowedDomains": ["a.test"], "deniedDomains": ["b.test"]},
                "filesystem": {"allowWrite": ["."]},
            }
        )
    )
    own = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    options = ["--workspace", str(folder), "--settings", str(settings), "--log-level", "error", "--embedded"]
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "casemate", "serve", *options], env={**os.environ, **own}
    )
    async with Client(stdio_client(command)) as client:
        code = "print(open('note.txt').read()); open('left.txt', 'w').write('left')"
        answer = await client.call_tool("execute_code", {"code": code})
        assert output_of(answer).startswith("in the workspace"), answer
        assert (folder / "left.txt").read_text() == "left"
        code = "import urllib.request\nurllib.request.urlopen('http://b.test/')"
        denied = await client.call_tool("execute_code", {"code": code})
        assert denied.is_error  # and nobody was asked
        assert structure_of(denied)["status"] == "failed"


@pytest.mark.full
async def test_neither_the_servers_variables_nor_an_env_file_reach_a_program(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").write_text("FROM_FILE=1\n")
    own = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    given = {"KERNEL_ENV_GIVEN": "1", "API_KEY": "of the server alone", "FROM_FILE": "1"}
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "casemate", "serve", "--embedded", "--toolset", "ipybox"],
        env={**os.environ, **own, **given},
        cwd=tmp_path / "project",
    )
    show = "import os; print(sorted({'GIVEN', 'KERNEL_ENV_GIVEN', 'API_KEY', 'FROM_FILE'} & set(os.environ)))"
    async with Client(stdio_client(command)) as client:
        for tool in ("execute_code", "execute_ipython_cell"):
            assert output_of(await client.call_tool(tool, {"code": show})).startswith("[]")


@pytest.mark.full
def test_what_was_run_is_told_by_queue_stats_and_audit(cli: Cli) -> None:
    try:
        assert cli("exec", "-", "print('in the service')").stdout == b"in the service\n"
        queue, stats, audit = (
            json.loads(cli(*words, "--format", "json").stdout)
            for words in (("queue", "status"), ("stats",), ("audit", "--limit", "2"))
        )
    finally:
        cli("service", "stop")
    assert queue == {"running": 0, "waiting": 0, "concurrency": 16}
    assert stats["totals"]["executions"] == 1
    assert [row["kind"] for row in audit] == ["outcome", "intent"]
    assert audit[1]["detail"]["code"] == "print('in the service')"
