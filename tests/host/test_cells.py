"""The host from code in a cell: the same functions, asked about in the name of the run."""

from __future__ import annotations

import pytest
from tests.host.conftest import Opened

from casemate import Sandbox

PROGRAM = """
from mcptools import ToolError
from mcptools.host import exec, read, write

print(read.run(path={data!r}).result)
print(exec.run(command=["echo", "from a cell"]).result["stdout"], end="")
for call in (lambda: exec.run(command=["touch", "marker"]), lambda: read.run(path="/etc/passwd")):
    try:
        call()
    except ToolError as error:
        print(error.kind, error)
print(write.run(path={out!r}, content="by a program").result["size"])
"""


async def test_a_program_calls_what_the_policy_opens_and_is_asked_about_the_rest(opened: Opened) -> None:
    data, out = opened.place / "data" / "in.txt", opened.place / "out" / "out.txt"
    data.write_text("of the host")
    opened.refuses = ("touch",)
    async with opened.sandbox({"allow": "host", "command": "echo *"}) as sandbox:
        execution = await sandbox.run(PROGRAM.format(data=str(data), out=str(out)))
    lines = execution.stdout.splitlines()
    assert lines[:2] == ["of the host", "from a cell"], execution
    assert lines[2].startswith("tool it was asked for and not approved"), lines
    assert "is not in an open folder" in lines[3]
    assert lines[4] == "12"
    assert out.read_text() == "by a program"
    assert [request.kind for request in opened.asked] == ["host", "files"]
    assert {request.run for request in opened.asked} == {execution.id}
    assert not (opened.place / "project" / "marker").exists()


NODE = """
const {host} = require("mcptools")
host.exec({command: ["echo", "hi"]}).then((answer) => console.log(answer.result.stdout.trim()))
"""


@pytest.mark.parametrize(
    ("language", "program"), [("node", NODE), ("shell", """tool host.exec 'command:=["echo", "hi"]'""")]
)
async def test_node_and_shell_call_it_likewise(opened: Opened, language: str, program: str) -> None:
    async with opened.sandbox({"allow": "host", "command": "echo *"}) as sandbox:
        execution = await sandbox.run(program, language=language)
    assert "hi" in execution.stdout, execution


async def test_without_a_host_section_there_is_no_such_module(opened: Opened) -> None:
    async with Sandbox(approve=lambda _: True, audit=opened.place / "audit.db") as sandbox:
        execution = await sandbox.run("from mcptools.host import exec")
    assert execution.error is not None
    assert execution.error.name in ("ImportError", "ModuleNotFoundError")
