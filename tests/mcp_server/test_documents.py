"""docs/how-to/mcp-server.md says what is so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mcp_server.test_tools import DEFAULT

from casemate.surfaces.mcp.toolsets import tools_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "mcp-server.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "mcp_client.py"


@pytest.mark.full
def test_the_document_shows_the_example_that_is_run(tmp_path: Path) -> None:
    assert f"```python\n{EXAMPLE.read_text(encoding='utf-8')}```\n" in TEXT
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=100, check=True,
    )  # fmt: skip
    printed = done.stdout.splitlines()
    assert printed[1:3] == ["[all below is the program's output]", "42"]
    assert "21" in printed
    assert printed[-1] == "read me"


def test_the_document_names_every_tool_and_every_parameter_of_the_usual_ones() -> None:
    tools = tools_of("full")
    assert [name for name in tools if f"`{name}`" not in TEXT] == []
    rows = {row.split("`")[1]: row for row in TEXT.splitlines() if row.startswith("| `")}
    usual = tools_of("default")
    assert list(usual) == DEFAULT
    for name, tool in usual.items():
        assert [one for one in tool.properties if f"`{one}`" not in rows[name]] == []
        assert [one for one in tool.required if f"`{one}`*" not in rows[name]] == []
