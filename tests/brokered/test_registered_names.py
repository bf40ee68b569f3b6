"""Servers that code in a cell asks to have added: shown as they would be, and nothing that was there changes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.brokered.conftest import Opened
from tests.brokered.test_calls import RAW, told

from casemate import ApprovalRequest, Sandbox


def adding(name: str, **definition: Any) -> str:
    request = {"do": "register", "name": name, "definition": definition}
    return RAW + f"print(json.dumps(ask({request!r})))"


@pytest.mark.parametrize("folder", [None, "inner", "link"])
async def test_whoever_is_asked_sees_in_which_folder_a_program_would_write(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    seen: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        seen.append(request)
        return False

    here = tmp_path / "here"
    (here / "inner").mkdir(parents=True)
    (here / "link").symlink_to("inner")
    monkeypatch.chdir(here)
    where = {} if folder is None else {"cwd": folder}
    async with opened(approve=approve) as sandbox:
        assert told(await sandbox.run(adding("theirs", command="server", **where)))["kind"] == "denied"
    [request] = seen
    expected = {"command": "server", "wall": True, "cwd": os.path.realpath(folder or ".")}
    assert (request.kind, request.arguments) == ("server", expected)


@pytest.mark.parametrize(("name", "is_taken"), [("my_files", True), ("MY_files", True), ("my-files2", False)])
async def test_a_server_that_is_added_takes_no_module_from_another(tmp_path: Path, name: str, is_taken: bool) -> None:
    seen: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        seen.append(request)
        return False

    async with Sandbox(audit=tmp_path / "audit.db", approve=approve) as sandbox:
        await sandbox.tools.add("my-files", {"command": sys.executable})
        answer = told(await sandbox.run(adding(name, command="server")))
    assert answer["kind"] == ("invalid" if is_taken else "denied")
    assert len(seen) == (0 if is_taken else 1)
