"""Servers that a program adds: somebody is shown exactly what is started, and it starts behind a wall."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.brokered.conftest import SERVER, Opened, Witness
from tests.support.approvers import answering
from tests.tools.connections.web import Rough, serving

from casemate import ApprovalRequest
from casemate.files.beneath import HeldFolder

ADD = """
import json
import mcptools
try:
    said = mcptools.register("more", json.loads({definition!r}))
    from mcptools.more.note import run
    print(json.dumps([said, run(text="x")]))
except mcptools.ToolError as error:
    print(json.dumps([error.kind, str(error)]))
"""


def adding(definition: dict[str, Any]) -> str:
    return ADD.format(definition=json.dumps(definition))


async def test_what_is_added_is_shown_with_command_arguments_and_environment_and_starts_behind_a_wall(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "server.py").write_bytes(SERVER.read_bytes())
    monkeypatch.chdir(folder)
    seen: list[ApprovalRequest] = []
    # It can write into the folder that is shown, and not beside it.
    starts = (
        "import os, sys\ntry: open(sys.argv[2], 'w')\nexcept OSError: pass\n"
        "os.execv(sys.executable, [sys.executable, 'server.py', sys.argv[1]])"
    )
    arguments = ["-c", starts, "log", str(outside / "made")]
    definition = {"command": sys.executable, "args": arguments, "env": {"A": "b"}}
    async with opened(approve=answering(seen)) as sandbox:
        execution = await sandbox.run(adding(definition))
    assert execution.ok, execution.text
    assert json.loads(execution.stdout) == ["added more, with 13 tools", "note done"]
    assert [(request.kind, request.server, request.tool) for request in seen] == [
        ("server", "more", ""), ("tool", "more", "note"),
    ]  # fmt: skip
    assert seen[0].arguments == {**definition, "cwd": os.fspath(folder), "wall": True}
    assert f"which may write in {folder}, also new files" in seen[0].summary
    assert json.loads((folder / "log").read_text()) == ["note", {"text": "x"}]
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("answer", [False, None])
async def test_what_nobody_allows_is_not_added_and_not_started(
    opened: Opened, tmp_path: Path, answer: bool | None
) -> None:
    definition = {"command": sys.executable, "args": ["-c", f"open({str(tmp_path / 'made')!r}, 'w')"]}
    async with opened(**({} if answer is None else {"approve": lambda _request: answer})) as sandbox:
        execution = await sandbox.run(adding(definition))
        assert [one.name for one in sandbox.tools.servers.definitions()] == ["w"]
    assert json.loads(execution.stdout)[0] == "denied"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "definition",
    [
        {"command": "x", "wall": False, "policy": "p"},
        {"command": "x", "settings": "p"},
        {"command": "x", "copy": ["/root"]},
        {"command": "x", "read": ["/etc"]},
        {"command": "x", "args": ["${TOKEN}"]},
        {"command": "x", "env": {"A": "${TOKEN:-x}"}},
        {"url": "http://127.0.0.1:9/${TOKEN}"},
        {"url": "http://127.0.0.1:9/", "headers": {"X": "${TOKEN}"}},
        {"command": "x", "variables": ["HOME"]},
        {"url": "https://u:p@mcp.test/"},
        {"url": "https://93.184.215.14/", "addresses": "public"},
        {"url": "http://169.254.169.254/latest"},
        {"url": "http://2852039166/"},
        {"url": "http://[::ffff:169.254.169.254]/"},
        {"url": "http://[fd00:ec2::254]/"},
        {"command": "x", "unknown": 1},
        {},
    ],
)
async def test_what_would_take_something_of_the_hosts_is_refused_before_anybody_is_asked(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, definition: dict[str, Any]
) -> None:
    monkeypatch.setenv("TOKEN", "of-the-host")
    seen: list[ApprovalRequest] = []
    async with opened(approve=answering(seen)) as sandbox:
        execution = await sandbox.run(adding(definition))
    assert json.loads(execution.stdout)[0] == "invalid"
    assert "of-the-host" not in execution.stdout
    assert seen == []


async def test_a_wall_shows_what_the_application_names_and_keeps_nothing_of_a_copy(
    opened: Opened, tmp_path: Path
) -> None:
    folder, cache = tmp_path / "folder", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    (cache / "package").write_text("kept")
    starts = (
        "import os, sys\ncache = sys.argv[3]\nopen(cache + '/made', 'w').write(open(cache + '/package').read())\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:3]])"
    )
    server = {
        "command": sys.executable, "args": ["-c", starts, str(SERVER), "log", str(cache)], "cwd": str(folder),
        "read": [str(SERVER)], "copy": [str(cache)],
    }  # fmt: skip
    async with opened() as sandbox:
        await sandbox.tools.add("walled", server)
        answer = await sandbox.tools.call("walled", "note", {"text": "x"})
    assert not answer.is_error
    assert json.loads((folder / "log").read_text()) == ["note", {"text": "x"}]
    assert [one.name for one in cache.iterdir()] == ["package"]


async def test_a_server_that_is_there_is_not_replaced_and_nobody_is_asked(opened: Opened, witness: Witness) -> None:
    definition = {"command": sys.executable, "args": ["-c", ""]}
    seen: list[ApprovalRequest] = []
    async with opened(approve=seen.append) as sandbox:
        execution = await sandbox.run(
            adding(definition).replace('"more"', '"w"').replace("mcptools.more", "mcptools.w")
        )
    assert json.loads(execution.stdout)[0] == "invalid"
    assert witness.calls == []
    assert seen == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_whoever_is_asked_is_told_that_an_address_is_not_public(opened: Opened, host: str) -> None:
    seen: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        seen.append(request)
        return request.kind == "server"

    with serving(Rough()) as url:
        definition = {"url": url.replace("127.0.0.1", host)}
        async with opened(approve=approve) as sandbox:
            execution = await sandbox.run(adding(definition).replace(".note", ".echo"))
            listed = [row.tool for row in await sandbox.tools.list() if row.server == "more"]
    assert listed == ["echo"], execution.text
    assert "which is not in the public network (" in seen[0].summary
    assert "127.0.0.1, loopback" in seen[0].summary
    assert "127.0.0.1" in seen[0].arguments["addresses"]


async def test_a_public_address_is_shown_as_one_and_nothing_is_sent_there_that_nobody_allows(opened: Opened) -> None:
    seen: list[ApprovalRequest] = []
    async with opened(approve=seen.append) as sandbox:
        execution = await sandbox.run(adding({"url": "https://93.184.215.14/mcp"}))
    assert json.loads(execution.stdout)[0] == "denied"
    assert seen[0].arguments == {"url": "https://93.184.215.14/mcp", "addresses": "public"}
    assert "not in the public network" not in seen[0].summary


SWAPS = """
import os
import mcptools
try:
    print(mcptools.register("more", {"command": "/bin/true", "cwd": os.environ["WHERE"]}))
except mcptools.ToolError as error:
    print(error.kind, error)
"""


async def test_a_server_is_started_in_the_folder_that_was_shown_whatever_has_its_name_then(
    opened: Opened, tmp_path: Path
) -> None:
    shown, other = tmp_path / "shown", tmp_path / "other"
    for folder in (shown, other):
        folder.mkdir()
        (folder / "server.py").write_bytes(SERVER.read_bytes())

    def approve(request: ApprovalRequest) -> bool:
        if request.kind == "server":  # what somebody has seen is swapped before it starts
            shown.rename(tmp_path / "moved")
            shown.symlink_to(other)
        return True

    definition = {"command": sys.executable, "args": ["server.py", "log"], "cwd": str(shown)}
    async with opened(approve=approve) as sandbox:
        execution = await sandbox.run(adding(definition))
    assert json.loads(execution.stdout)[1] == "note done", execution.text
    assert (tmp_path / "moved" / "log").exists()
    assert not (other / "log").exists()


async def test_no_server_starts_where_programs_write_directly(opened: Opened, tmp_path: Path) -> None:
    asked: list[ApprovalRequest] = []
    folder = tmp_path / "direct"
    (folder / "below").mkdir(parents=True)
    async with opened(approve=asked.append, workspace=folder, workspace_mode="direct") as sandbox:
        for where in (folder, folder / "below", tmp_path):
            execution = await sandbox.run(SWAPS, env={"WHERE": str(where)})
            assert "write there directly" in execution.stdout
    assert asked == []


async def test_no_server_starts_within_a_folder_that_another_writes_in(opened: Opened, tmp_path: Path) -> None:
    """It could put a link in its place, between the question and the start."""
    asked: list[ApprovalRequest] = []
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    walled = {"command": "/bin/true", "wall": True, "cwd": str(tmp_path / "outer")}
    async with opened(approve=asked.append) as sandbox:
        await sandbox.tools.add("other", walled)
        for where in (tmp_path / "outer" / "inner", tmp_path):
            execution = await sandbox.run(SWAPS, env={"WHERE": str(where)})
            assert "the server other writes in" in execution.stdout
    assert asked == []


async def test_a_folder_that_becomes_a_link_before_it_is_opened_is_refused(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ApprovalRequest] = []
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "other" / "b").mkdir(parents=True)

    def swap(path: str) -> HeldFolder:
        (tmp_path / "a").rename(tmp_path / "moved")
        (tmp_path / "a").symlink_to("other")
        return HeldFolder(path)

    monkeypatch.setattr("casemate.files.beneath.HeldFolder", swap)
    async with opened(approve=asked.append) as sandbox:
        execution = await sandbox.run(SWAPS, env={"WHERE": str(tmp_path / "a" / "b")})
    assert "a link leads there" in execution.stdout
    assert asked == []
