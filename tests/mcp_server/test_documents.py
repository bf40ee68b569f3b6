"""docs/how-to/mcp-server.md names what there is, and each tool that is one operation fits that operation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mcp_server.test_tools import DEFAULT

from casemate.model.operation import Audience
from casemate.operations.catalogue import catalogue
from casemate.surfaces.mcp.toolsets import tools_of
from casemate.surfaces.mcp.work import OneOperation

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


def test_a_tool_that_is_one_operation_gives_it_what_it_takes_with_the_same_defaults() -> None:
    rows = {name: (tool, tool.run) for name, tool in tools_of("full").items() if isinstance(tool.run, OneOperation)}
    assert len(rows) >= 14
    for name, (tool, row) in rows.items():
        operation = catalogue()[row.operation]
        takes = operation.params_schema()
        given = {row.names.get(one, one): schema for one, schema in tool.properties.items()}
        given.pop(None, None)
        required = {row.names.get(one, one) for one in tool.required}
        assert operation.audience is Audience.AGENT, name
        assert {*given, *row.defaults} <= takes["properties"].keys(), name
        assert set(takes.get("required", ())) <= required, name
        told = {one: schema["default"] for one, schema in given.items() if "default" in schema}
        assert told == {one: takes["properties"][one]["default"] for one in told}, name
