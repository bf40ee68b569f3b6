"""Tools and plans without ``await``, and servers that a sandbox has from the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.brokered.conftest import Witness
from tests.brokered.test_plans import THREE

import casemate
from casemate import ApprovalRequest, InvalidArgument, PlanDenied, PlannedCall, sync


def test_tools_are_added_searched_called_and_removed(witness: Witness, tmp_path: Path) -> None:
    with sync.Sandbox(audit=tmp_path / "audit.db") as sandbox:
        sandbox.tools.add("w", witness.definition)
        assert ("w", "note") in [(one.server, one.tool) for one in sandbox.tools.list()]
        assert "mcptools.w.note" in sandbox.tools.search("note", detail="names")
        assert "text (str)" in sandbox.tools.describe("w", "note")
        assert sandbox.tools.call("w", "note", {"text": "a"}).content == [{"type": "text", "text": "note done"}]
        with pytest.raises(InvalidArgument):
            sandbox.tools.call("w", "note", {"text": 1})
        sandbox.tools.reset("w")
        sandbox.tools.remove("w")
        assert sandbox.tools.list() == []
    assert witness.calls == [("note", {"text": "a"})]


def test_a_plan_is_made_and_run(witness: Witness, tmp_path: Path) -> None:
    seen: list[str] = []

    def approve(request: ApprovalRequest) -> bool:
        seen.append(request.kind)
        return len(seen) == 1

    with sync.Sandbox(audit=tmp_path / "audit.db", approve=approve, tools={"w": witness.definition}) as sandbox:
        plan = sandbox.plan(THREE)
        assert plan.execution.ok
        assert plan.calls == tuple(PlannedCall("w", "note", {"text": str(number)}) for number in range(3))
        assert witness.calls == []
        assert json.loads(plan.run().stdout) == [True, True, True]
        with pytest.raises(PlanDenied):
            plan.run()
    assert seen == ["plan", "plan"]
    assert len(witness.calls) == 3


@pytest.mark.parametrize("form", ["mapping", "path", "within"])
def test_a_file_for_a_sandbox_names_its_servers(witness: Witness, tmp_path: Path, form: str) -> None:
    tools: object = {"w": witness.definition}
    if form == "path":
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": tools}))
        tools = "servers.json"
    elif form == "within":
        tools = {"mcpServers": tools}
    (tmp_path / "casemate.json").write_text(json.dumps({"tools": tools}))
    with sync.Sandbox.from_file(tmp_path / "casemate.json", audit=tmp_path / "audit.db") as sandbox:
        assert sandbox.run("import mcptools\nprint(mcptools.search('note', 'names'))").stdout.startswith("mcptools.w.")
        assert witness.calls == []


@pytest.mark.parametrize("tools", [{"w": {"comand": "x"}}, {"w w": {"command": "x"}}, 7, "/nowhere/at-all.json"])
def test_a_sandbox_with_servers_that_are_none_is_not_made(tools: object) -> None:
    with pytest.raises(InvalidArgument):
        sync.Sandbox(tools=tools)


@pytest.mark.full
def test_the_example_of_the_documents_does_what_they_say(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    example = root / "examples" / "tools.py"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(Path(casemate.__file__).parents[1])}
    ran = subprocess.run([sys.executable, example], env=env, capture_output=True, text=True, check=False)
    shown = f"```python\n{example.read_text()}```\n\n```\n{ran.stdout}```\n"
    for document in ("README.md", "docs/how-to/tools.md"):
        assert shown in (root / document).read_text(), ran.stderr
