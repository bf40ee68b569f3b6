"""The inspector's command line, another implementation of the protocol, as a client of ``casemate serve``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mcp_server.packages import install, node

SECONDS = 100  # on a busy machine; it takes three

pytestmark = [pytest.mark.needs("npm", "node-wheel"), pytest.mark.full]


def inspected(home: Path, *arguments: str, toolset: str = "full") -> Any:
    """What the inspector got, as JSON."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
    environ = {**kept, "HOME": str(home), "CASEMATE_AUDIT": str(home / "audit.db")}
    variables = [word for name, value in environ.items() for word in ("-e", f"{name}={value}")]
    server = [sys.executable, "-m", "casemate", "serve", "--embedded", f"--toolset={toolset}"]
    done = subprocess.run(
        [node(), str(install() / "mcp-inspector"), "--cli", *variables, *server, *arguments], env=environ,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("toolset", ["default", "full"])
def test_its_strict_look_at_all_schemas_finds_nothing(tmp_path: Path, toolset: str) -> None:
    listed = inspected(tmp_path, "--method", "tools/list", "--strict", toolset=toolset)
    assert "execute_code" in [tool["name"] for tool in listed["tools"]]


def test_it_runs_a_program(tmp_path: Path) -> None:
    call = ["--method", "tools/call", "--tool-name", "execute_code", "--tool-arg", "code=print(6 * 7)"]
    answer = inspected(tmp_path, *call)
    assert answer["content"][0]["text"].endswith("\n[all below is the program's output]\n42")
    assert answer["structuredContent"]["status"] == "ok"


def test_it_is_told_how_files_are_named(tmp_path: Path) -> None:
    listed = inspected(tmp_path, "--method", "resources/templates/list")
    assert [one["uriTemplate"] for one in listed["resourceTemplates"]] == [
        "casemate://run/{run}/{+path}",
        "casemate://session/{session}/{+path}",
    ]
