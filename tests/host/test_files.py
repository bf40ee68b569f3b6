"""Files of the host: only beneath the folders that the policy names, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.host.conftest import Opened

from casemate import CasemateError, InvalidArgument
from casemate.errors import Denied


async def test_a_file_and_a_folder_of_an_open_root_can_be_read_without_asking(opened: Opened) -> None:
    (opened.place / "data" / "table.csv").write_bytes(b"a,b\n1,2\n")
    async with opened.sandbox() as sandbox:
        assert await sandbox.host.read(f"{opened.place}/data/table.csv") == b"a,b\n1,2\n"
        assert await sandbox.host.read(f"{opened.place}/data/table.csv", offset=4, limit=2) == b"1,"
        (entry,) = await sandbox.host.list(f"{opened.place}/data")
    assert (entry.name, entry.kind, entry.size) == (f"{opened.place}/data/table.csv", "file", 8)
    assert opened.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "{data}/../secret", "{data}/link", "{data}/folder/secret", "{data}//../secret", "//server/share", "\\\\?\\c",
        "{data}/%2e%2e/secret", "{data}/a\0.txt", "{DATA}", "file://{data}/x", "~/.ssh/id_rsa", "/proc/self/environ",
        "/dev/stdin", "{data}x/secret", "secret", "", "{data}/pipe", "{data}/device", "/etc/passwd", "{data}",
    ],
)  # fmt: skip
async def test_ht_10_ht_11_nothing_else_is_read(opened: Opened, path: str) -> None:
    data = opened.place / "data"
    for secret in (opened.place / "secret", opened.place / "datax" / "secret"):
        secret.parent.mkdir(exist_ok=True)
        secret.write_text("secret")
    (data / "link").symlink_to(opened.place / "secret")
    (data / "folder").symlink_to(opened.place)
    os.mkfifo(data / "pipe")
    (data / "device").symlink_to("/dev/zero")
    async with opened.sandbox() as sandbox:
        with pytest.raises(CasemateError) as raised:
            await sandbox.host.read(path.format(data=data, DATA=str(data).upper()))
    assert isinstance(raised.value, InvalidArgument | Denied)


async def test_a_write_is_asked_about_with_the_difference_and_replaces_whole(opened: Opened) -> None:
    target = opened.place / "out" / "notes.txt"
    target.write_text("one\ntwo\n")
    target.chmod(0o640)
    async with opened.sandbox() as sandbox:
        written = await sandbox.host.write(str(target), "one\nthree\n")
    (request,) = opened.asked
    assert request.kind == "files"
    assert "-two\n+three\n" in request.arguments["change"]["diff"]
    assert (target.read_text(), written.size, target.stat().st_mode & 0o777) == ("one\nthree\n", 10, 0o640)
    assert [one.name for one in target.parent.iterdir()] == ["notes.txt"]


async def test_a_write_that_nobody_allows_changes_nothing(opened: Opened) -> None:
    opened.answer = False
    async with opened.sandbox() as sandbox:
        with pytest.raises(Denied):
            await sandbox.host.write(f"{opened.place}/out/new.txt", "x")
    assert list((opened.place / "out").iterdir()) == []


async def test_a_file_that_changes_while_it_is_asked_about_is_not_written(opened: Opened) -> None:
    target = opened.place / "out" / "notes.txt"
    target.write_text("old")
    opened.meanwhile = lambda: target.write_text("somebody else's")
    async with opened.sandbox() as sandbox:
        with pytest.raises(InvalidArgument, match="was changed since"):
            await sandbox.host.write(str(target), "new")
    assert target.read_text() == "somebody else's"


@pytest.mark.parametrize(
    "name",
    [
        "a$(touch marker).txt", "a; touch marker", "-o ProxyCommand=x", "`id`", "a b", "ünï.txt",
    ],
)  # fmt: skip
async def test_ht_12_a_name_is_only_a_name(opened: Opened, name: str) -> None:
    async with opened.sandbox() as sandbox:
        await sandbox.host.write(f"{opened.place}/out/{name}", b"x")
    assert [one.name for one in (opened.place / "out").iterdir()] == [name]


@pytest.mark.parametrize(
    "name",
    ["../project/x", "sub/.git/hooks/post-checkout", ".envrc", ".vscode/tasks.json", "link/x", "missing/x", "a\nb", ""],
)
async def test_what_must_not_be_written_is_refused_before_anybody_is_asked(opened: Opened, name: str) -> None:
    (opened.place / "out" / "sub" / ".git" / "hooks").mkdir(parents=True)
    (opened.place / "out" / "link").symlink_to(opened.place / "project")
    before = sorted(opened.place.rglob("*"))
    async with opened.sandbox() as sandbox:
        with pytest.raises((InvalidArgument, Denied)):
            await sandbox.host.write(f"{opened.place}/out/{name}", "x")
        with pytest.raises(Denied, match="only for reading"):
            await sandbox.host.write(f"{opened.place}/data/x", "x")
    assert opened.asked == []
    assert [one for one in sorted(opened.place.rglob("*")) if "audit.db" not in one.name] == [
        one for one in before if "audit.db" not in one.name
    ]


async def test_a_rule_can_allow_writes_below_a_folder(opened: Opened) -> None:
    path = {"path": f"{opened.place}/out/**"}
    rule = {"allow": "files", "arguments": {"action": "write", "path": path, "change": {"any": True}}}
    async with opened.sandbox(rule) as sandbox:
        await sandbox.host.write(f"{opened.place}/out/report.md", "# Report\n")
    assert opened.asked == []


async def test_a_file_is_copied_between_roots_and_sessions(opened: Opened) -> None:
    content = os.urandom(3 << 20)
    (opened.place / "data" / "in.bin").write_bytes(content)
    async with opened.sandbox() as sandbox, sandbox.session(name="work") as session:
        assert await sandbox.host.copy(f"{opened.place}/data/in.bin", "work:in.bin") is None
        step = await session.run(
            "data = open('in.bin', 'rb').read()[::-1]; open('out.bin', 'wb').write(data); len(data)"
        )
        assert step.text == str(len(content))
        await sandbox.host.copy("work:out.bin", f"{opened.place}/out/out.bin")
        await sandbox.host.copy(f"{opened.place}/data/in.bin", f"{opened.place}/out/again.bin")
        with pytest.raises(InvalidArgument):
            await sandbox.host.copy("work:out.bin", "work:other.bin")
        with pytest.raises(InvalidArgument):
            await sandbox.host.copy("nobody:out.bin", f"{opened.place}/out/x")
    assert (opened.place / "out" / "out.bin").read_bytes() == content[::-1]
    assert (opened.place / "out" / "again.bin").read_bytes() == content
    assert [request.kind for request in opened.asked] == ["files", "files"]
    assert not list(Path(tempfile.gettempdir()).glob("casemate-host-copy-*"))


@pytest.mark.parametrize("root", ["/", "~", "~/..", "/home" if Path.home().is_relative_to("/home") else "/"])
def test_a_root_that_holds_the_home_folder_is_refused(opened: Opened, root: str) -> None:
    with pytest.raises(InvalidArgument, match="contains the home folder"):
        opened.sandbox(roots=[{"path": root}])
