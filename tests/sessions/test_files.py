"""The files of a session from outside: beneath its workspace only, whatever its code has planted there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.driver import PROMPT, Open, said
from tests.support.languages import every_language

from casemate import InvalidArgument, Limits, Unavailable
from casemate.sessions.session import Session


@every_language
async def test_files_go_both_ways(opened: Open, language: str) -> None:
    copy = {
        "python": "import shutil; shutil.copy('in/a.bin', 'out.bin')",
        "node": "fs.copyFileSync('in/a.bin', 'out.bin')",
        "shell": "cp in/a.bin out.bin",
    }
    session = opened(language)
    data = bytes(range(256)) * 1000
    await session.files.write("in/a.bin", data)
    await said(session, copy[language])
    assert await session.files.read_bytes("out.bin") == data
    await session.files.write("out.bin", "häß")
    assert await session.files.read_text("out.bin") == "häß"


async def test_files_are_there_before_the_first_step_and_after_a_death_and_a_reset(session: Session) -> None:
    await session.files.write("a", "1")
    assert await said(session, "print(open('a').read())") == "1\n"
    await session.run("import os; os._exit(1)")
    assert await session.files.read_text("a") == "1"
    await session.files.write("b", "2")
    assert await said(session, "print(open('a').read(), open('b').read())") == "1 2\n"
    await session.reset()
    assert await session.files.read_text("b") == "2"
    assert await said(session, "print(open('a').read(), open('b').read())") == "1 2\n"


async def test_a_file_that_was_written_from_outside_is_the_codes_own_to_change(session: Session) -> None:
    await session.files.write("deep/er/file", "1")
    code = "import os\nopen('deep/er/file', 'a').write('2'); open('deep/er/other', 'w'); os.rename('deep', 'moved')"
    await said(session, code)
    assert await session.files.read_text("moved/er/file") == "12"


async def test_what_lies_in_a_folder_is_listed(session: Session) -> None:
    code = "import os\nos.makedirs('d/e'); open('d/f', 'w').write('four'); os.symlink('f', 'd/l'); os.mkfifo('d/p')"
    await said(session, code)
    listed = await session.files.list("d")
    assert [(file.name, file.kind) for file in listed] == [
        ("d/e", "folder"), ("d/f", "file"), ("d/l", "link"), ("d/p", "other")]  # fmt: skip
    assert listed[1].size == 4
    assert {file.name for file in await session.files.list()} == {"d", "output"}


async def test_files_links_and_empty_folders_are_removed(session: Session) -> None:
    await said(session, "import os\nos.mkdir('d'); open('f', 'w'); os.symlink('f', 'l'); os.makedirs('full/x')")
    for name in ("d", "l", "f"):
        await session.files.remove(name)
    with pytest.raises(InvalidArgument):
        await session.files.remove("full")
    assert await said(session, "print(sorted(os.listdir()))") == "['full', 'output']\n"


async def test_large_files_are_uploaded_and_downloaded(session: Session, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(os.urandom(1 << 20) * 20)
    await session.files.upload(source)
    await session.files.upload(source, "in/other.bin")
    await said(session, "import os\nos.rename('in/other.bin', 'back.bin'); print(os.path.getsize('source.bin'))")
    (tmp_path / "folder").mkdir()
    assert await session.files.download("back.bin", tmp_path / "copy") == tmp_path / "copy"
    assert await session.files.download("back.bin", tmp_path / "folder") == tmp_path / "folder/back.bin"
    for copy in (tmp_path / "copy", tmp_path / "folder/back.bin"):
        assert copy.read_bytes() == source.read_bytes()


BAD = ["../x", "/etc/passwd", "a/../../x", ".", "..", "a//b", "a/./b", "a\0b", "a\nb", "", "x" * 300, "a/", "\ud800"]


@pytest.mark.parametrize("name", BAD)
async def test_a_name_that_is_not_beneath_the_workspace_is_refused(session: Session, tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    source.write_text("x")
    files = session.files
    for refused in (files.read_bytes(name), files.read_text(name), files.write(name, "x"), files.remove(name),
                    files.upload(source, name), files.download(name, tmp_path / "target")):  # fmt: skip
        with pytest.raises(InvalidArgument):
            await refused
    if name:
        with pytest.raises(InvalidArgument):
            await files.list(name)
    assert not (tmp_path / "target").exists()


PLANTED = {
    "a link to a file of the host's": "os.symlink('{secret}', 'planted')",
    "a link to a file of the cell's": "os.symlink('/etc/passwd', 'planted')",
    "a link inside": "open('real', 'w').write('x'); os.symlink('real', 'planted')",
    "a link above": "os.symlink('../../../../../{secret}', 'planted')",
    "a fifo": "os.mkfifo('planted')",
    "a socket": "import socket; s = socket.socket(socket.AF_UNIX); s.bind('planted')",
}


@pytest.mark.parametrize("code", PLANTED.values(), ids=PLANTED)
async def test_what_is_no_file_is_neither_read_nor_followed(session: Session, tmp_path: Path, code: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    await said(session, f"import os\n{code.replace('{secret}', str(secret))}")
    async with asyncio.timeout(PROMPT):
        for refused in (session.files.read_bytes("planted"), session.files.download("planted", tmp_path / "got")):
            with pytest.raises(InvalidArgument):
                await refused
        await session.files.write("planted", "new")  # takes its place, and follows nothing
        assert await session.files.read_text("planted") == "new"
    assert secret.read_text() == "secret"
    assert not (tmp_path / "got").exists() or (tmp_path / "got").read_bytes() == b""


@pytest.mark.parametrize("target", ["/tmp", "{folder}", "..", "real"])
async def test_a_folder_that_is_a_link_is_not_entered(session: Session, tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("secret")
    await said(
        session, f"import os\nos.mkdir('real'); os.symlink({target.replace('{folder}', str(tmp_path))!r}, 'planted')"
    )
    source = tmp_path / "source"
    source.write_text("x")
    files = session.files
    for refused in (files.read_bytes("planted/file"), files.write("planted/new", "x"), files.list("planted"),
                    files.upload(source, "planted/new"), files.remove("planted/file"),
                    files.download("planted/file", tmp_path / "got")):  # fmt: skip
        with pytest.raises(InvalidArgument):
            await refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]
    assert await said(session, "print(os.listdir('real'), os.path.exists('/tmp/new'))") == "[] False\n"


async def test_names_that_code_swaps_while_they_are_used_lead_nowhere_else(session: Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = f"""
import os, threading
os.mkdir("a"); open("a/secret", "w").write("mine"); os.symlink({str(tmp_path)!r}, "b")
def hold():
    for _ in range(20_000): pass
def swap():
    while not os.path.exists("stop"):
        try:
            os.rename("a", "c"); os.rename("b", "a"); hold()
            os.rename("a", "b"); os.rename("c", "a"); hold()
        except OSError: pass
thread = threading.Thread(target=swap); thread.start()
"""
    await said(session, code)
    got = tries = 0
    async with asyncio.timeout(PROMPT * 4):
        while got < 5 or tries < 300:
            tries += 1
            with contextlib.suppress(InvalidArgument):
                assert await session.files.read_bytes("a/secret") in (b"mine", b"new")
                got += 1
            with contextlib.suppress(InvalidArgument):  # also where nothing could be read: a write may make the folder
                await session.files.write("a/secret" if tries % 2 else "a/new", "new")
        await session.files.write("stop", "")
    assert secret.read_text() == "secret"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


async def test_a_file_that_is_not_there_is_an_error_that_names_it(session: Session, tmp_path: Path) -> None:
    files = session.files
    for missing in (files.read_bytes("no/file"), files.remove("no"), files.list("no"), files.download("no", tmp_path),
                    files.upload(tmp_path / "no")):  # fmt: skip
        with pytest.raises(InvalidArgument) as raised:
            await missing
        assert "no" in str(raised.value)


async def test_text_that_is_no_text_is_an_error_that_says_what_to_use(session: Session) -> None:
    await session.files.write("x", b"\xff\xfe")
    with pytest.raises(InvalidArgument) as raised:
        await session.files.read_text("x")
    assert "read_bytes" in str(raised.value)


async def test_files_go_both_ways_while_a_step_runs(session: Session) -> None:
    step = asyncio.ensure_future(
        session.run(
            "import os, time\nopen('up', 'w').write('x')\nwhile not os.path.exists('go'): time.sleep(0.005)",
            timeout=None,
        )
    )
    async with asyncio.timeout(PROMPT):
        while "up" not in [file.name for file in await session.files.list()]:
            await asyncio.sleep(0.003)
        await session.files.write("go", "")
        assert (await step).ok


async def test_what_is_written_from_outside_counts_for_the_disk_limit(opened: Open) -> None:
    from casemate import Limits

    session = opened(limits=Limits(disk="1MiB"))
    with pytest.raises(InvalidArgument):
        await session.files.write("big", b"x" * (4 << 20))
    assert "big" not in [file.name for file in await session.files.list()]
    await session.files.write("small", "x")
    assert await said(session, "print(open('small').read())") == "x\n"


async def test_holes_take_no_room_on_the_host(session: Session, tmp_path: Path) -> None:
    await said(session, "f = open('holes', 'wb'); f.truncate(3 << 30); f.seek(1 << 30); f.write(b'data'); f.close()")
    copy = await session.files.download("holes", tmp_path / "copy")
    assert (copy.stat().st_size, copy.stat().st_blocks * 512 < 1 << 20) == (3 << 30, True)
    with copy.open("rb") as file:
        file.seek((1 << 30) - 1)
        assert file.read(6) == b"\0data\0"
    await said(session, "open('many', 'wb').truncate(1 << 29)")
    with pytest.raises(InvalidArgument, match="holes"):
        await session.files.read_bytes("many")


@pytest.mark.parametrize("content", [5, [1, 2], None, Path("/etc/hostname")])
async def test_content_that_is_none_is_refused(session: Session, content: object) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await session.files.write("file", content)  # type: ignore[arg-type]
    assert raised.value.argument == "content"


async def test_what_is_wrong_is_named(session: Session, tmp_path: Path) -> None:
    await said(session, "import os; os.mkdir('folder'); os.symlink('x', 'link'); open('file', 'w').write('1')")
    for name, what in (("folder", "a folder"), ("link", "a link"), ("../up", "beneath the workspace")):
        with pytest.raises(InvalidArgument, match=what) as raised:
            await session.files.read_bytes(name)
        assert raised.value.argument == "path"
    for call, argument in (
        (session.files.download("file", tmp_path / "no/such"), "target"),
        (session.files.upload(tmp_path / "none"), "source"),
    ):
        with pytest.raises(InvalidArgument) as raised:
            await call
        assert raised.value.argument == argument
    assert await session.files.read_text("/workspace/file") == "1"
    small = await said(session, "print(os.listdir('folder'))")
    assert small == "[]\n"


async def test_no_room_is_told_by_the_name_of_the_limit(opened: Open) -> None:
    session = opened(limits=Limits(disk="1MiB"))
    with pytest.raises(InvalidArgument, match=r"limits\.disk"):
        await session.files.write("big", b"x" * (4 << 20))


@pytest.mark.parametrize("name", ["missing", "link", "/workspace", 5])
async def test_what_cannot_be_packed_is_named_and_leaves_an_archive_of_before_alone(
    session: Session, tmp_path: Path, name: Any
) -> None:
    target = tmp_path / "all.tar"
    target.write_bytes(b"before")
    await said(session, "import os\nos.symlink('/etc/passwd', 'link')")
    with pytest.raises(InvalidArgument, match=re.escape(str(name))) as caught:
        await session.files.pack(name, target)
    assert caught.value.argument == "path"
    assert target.read_bytes() == b"before"


async def test_a_place_on_the_host_that_cannot_be_had_is_named_and_changes_nothing(
    session: Session, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere" / "all.tar"
    with pytest.raises(InvalidArgument, match="nowhere") as caught:
        await session.files.pack("", nowhere)
    assert caught.value.argument == "target"
    with pytest.raises(InvalidArgument, match="nowhere") as caught:
        await session.files.unpack(nowhere, "new")
    assert caught.value.argument == "source"
    assert "new" not in {file.name for file in await session.files.list()}


async def test_an_archive_that_the_hosts_disk_takes_no_more_of_is_no_fault_of_the_file(session: Session) -> None:
    await session.files.write("small", "1")
    with pytest.raises(Unavailable, match="cannot be written"):
        await session.files.pack("small", "/dev/full")
