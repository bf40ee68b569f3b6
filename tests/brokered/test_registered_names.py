"""Servers that code in a cell asks to have added: shown as they would be, and nothing that was there changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.brokered.conftest import Opened, Witness
from tests.brokered.test_calls import RAW, told
from tests.support.approvers import answering

from casemate import ApprovalRequest, Sandbox


def adding(name: str, **definition: Any) -> str:
    request = {"do": "register", "name": name, "definition": definition}
    return RAW + f"print(json.dumps(ask({request!r})))"


@pytest.mark.parametrize("folder", [None, "inner", "link"])
async def test_whoever_is_asked_sees_in_which_folder_a_program_would_write(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    seen: list[ApprovalRequest] = []
    here = tmp_path / "here"
    (here / "inner").mkdir(parents=True)
    (here / "link").symlink_to("inner")
    monkeypatch.chdir(here)
    where = {} if folder is None else {"cwd": folder}
    async with opened(approve=answering(seen, answer=False)) as sandbox:
        assert told(await sandbox.run(adding("theirs", command="server", **where)))["kind"] == "denied"
    [request] = seen
    expected = {"command": "server", "wall": True, "cwd": os.path.realpath(folder or ".")}
    assert (request.kind, request.arguments) == ("server", expected)


@pytest.mark.parametrize("name", ["my_files", "MY_files", "my-files2"])
async def test_a_server_that_is_added_takes_no_module_from_another(witness: Witness, tmp_path: Path, name: str) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        await sandbox.tools.add("my-files", witness.definition)
        before = {tool.module for tool in await sandbox.tools.list()}
        await sandbox.tools.add(name, witness.definition)
        after = {tool.module for tool in await sandbox.tools.list() if tool.server == "my-files"}
    assert before == after
    assert "mcptools.my_files.note" in after
