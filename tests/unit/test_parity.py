"""Every test that docs/internals/parity.md names exists, and every name of the systems that it speaks of."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "internals" / "parity.md").read_text(encoding="utf-8")
TOOLS = (
    "execute_code", "install_package", "validate_code", "create_session", "terminate_session", "bridge_data",
    "list_runtimes", "set_resource_limits", "sandbox_stats", "inspect_state", "get_artifacts", "request_egress",
    "audit_execution", "web_search", "fetch_webpage", "browser_fetch", "host_exec", "request_host_access",
    "list_host_access", "host_file_read", "host_file_write", "host_file_list", "host_file_copy",
    "register_mcp_server", "execute_ipython_cell", "reset",
)  # fmt: skip
COMMANDS = (
    "serve", "run", "queue", "session", "config", "vault", "stats", "verify", "validate", "audit", "web", "host",
    "inspect", "artifacts", "bridge", "limits", "egress", "doctor",
)  # fmt: skip
EVENTS = (
    "execution.started", "execution.completed", "execution.failed", "execution.timeout", "session.created",
    "session.killed", "package.installed", "egress.requested", "egress.approved", "egress.denied", "vault.accessed",
    "resource.exceeded", "artifact.signed", "queue.backpressure",
)  # fmt: skip
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    """The rows of all tables, without their heads."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [line for line in lines if not line.startswith("| promise |")]


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file; none where there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_bytes(), filename=path)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


def is_named(name: str) -> bool:
    """Whether it stands somewhere in code, as a whole word."""
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", code) for code in re.findall(r"`([^`]+)`", PAGE))


def test_every_test_that_is_named_exists() -> None:
    named = _TEST.findall(PAGE)
    assert len(named) > 100
    assert sorted({f"{path}::{name}" for path, name in named if name not in names_in(path)}) == []


def test_every_promise_has_a_test() -> None:
    assert len(rows()) > 100
    assert [row for row in rows() if not _TEST.search(row)] == []


def test_every_promise_says_what_casemate_does() -> None:
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows()]
    assert [row for row in cells if len(row) != 3 or not all(row)] == []


def test_what_is_not_there_is_told() -> None:
    _, _, absent = PAGE.partition("\n## Not there\n")
    assert re.findall(r"^- \w", absent, re.MULTILINE)
    assert _TEST.search(absent) is None


@pytest.mark.parametrize("name", [*TOOLS, *COMMANDS, *EVENTS])
def test_every_name_of_theirs_is_spoken_of(name: str) -> None:
    assert is_named(name)
