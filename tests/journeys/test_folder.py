"""A folder of the caller's: seen through an overlay, brought up to date after the run, and nothing worse."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journeys import folders
from tests.support.waiting import MAX_WAIT

from casemate import Execution, Limits, Output, Sandbox, sync


@pytest.fixture
def inside(audit: Path, folder: Path) -> Iterator[sync.Sandbox]:
    """A sandbox whose workspace it is."""
    with sync.Sandbox(audit=audit, workspace=folder) as sandbox:
        yield sandbox


def skipped(execution: Execution) -> dict[str, str]:
    return {file.name: file.reason for file in execution.skipped}


def test_everything_a_run_changed_is_in_the_folder_afterwards(inside: sync.Sandbox, folder: Path) -> None:
    before = folders.tree(folder)
    execution = inside.run(folders.CHANGES)
    assert execution.ok, execution.stderr
    assert folders.tree(folder) == folders.changed(before)
    assert skipped(execution) == {}
    assert stat.S_IMODE((folder / "run.sh").stat().st_mode) == 0o700
    assert {artifact.name: artifact.read_bytes() for artifact in execution.artifacts} == {"output/chart.svg": b"<svg/>"}


def test_the_folder_stays_as_it_was_until_the_run_has_ended_and_an_ended_one_brings_its_changes_too(
    inside: sync.Sandbox, folder: Path
) -> None:
    seen = None
    for event in inside.stream(folders.CHANGES + "print('done', flush=True)\nimport signal\nsignal.pause()", timeout=6):
        if isinstance(event, Output):
            seen = folders.tree(folder)
    assert seen is not None
    assert "remove.txt" in seen
    assert "output" not in seen
    assert folders.tree(folder) == folders.changed(seen)


def test_a_run_that_changes_nothing_leaves_no_trace(inside: sync.Sandbox, folder: Path) -> None:
    before = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    assert inside.run("print(open('read.txt').read())").stdout == "read\n"
    after = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    assert {path: (s.st_ino, s.st_mtime_ns, s.st_mode) for path, s in after.items()} == {
        path: (s.st_ino, s.st_mtime_ns, s.st_mode) for path, s in before.items()}  # fmt: skip


def test_the_next_run_sees_what_the_last_one_left(inside: sync.Sandbox) -> None:
    inside.run("open('state', 'w').write('kept')").raise_for_status()
    assert inside.run("print(open('state').read())").stdout == "kept\n"
    assert inside.run("cat state", language="shell").stdout == "kept"


def test_bytecode_that_a_run_leaves_is_loaded_by_nobody_instead_of_its_source(
    inside: sync.Sandbox, folder: Path
) -> None:
    (folder / "mod.py").write_text("print('source')")
    code = """
import py_compile
open("/tmp/evil.py", "w").write("print('evil')")
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
print(py_compile.compile("/tmp/evil.py", "__pycache__/mod.cpython-{}{}.pyc", invalidation_mode=mode))
import mod
"""
    execution = inside.run(code.format(*sys.version_info))
    assert execution.stdout.endswith("evil\n"), "the run itself loads it"
    assert "its name is protected (__pycache__)" in skipped(execution)["__pycache__"]
    on_host = [sys.executable, "-B", "-c", "import mod"]
    assert subprocess.run(on_host, cwd=folder, capture_output=True, text=True, check=True).stdout == "source\n"
    assert inside.run("import mod").stdout == "source\n"


def test_given_files_are_seen_and_not_written_back(inside: sync.Sandbox, folder: Path) -> None:
    before = folders.tree(folder)
    execution = inside.run("print(open('given/in.txt').read())", files={"given/in.txt": "given"})
    assert execution.stdout == "given\n"
    assert folders.tree(folder) == before


def test_what_a_folder_takes_is_limited_and_the_rest_of_it_unharmed(inside: sync.Sandbox, folder: Path) -> None:
    before = folders.tree(folder)
    execution = inside.run("open('big', 'wb').write(bytes(64 << 20))", limits=Limits(disk="4MiB"))
    assert execution.cause is not None
    assert execution.cause.code == "disk_limit"
    after = {path.name for path in folder.iterdir()} - {"big"}
    assert after == {name for name in before if "/" not in name}
    assert (folder / "read.txt").read_text() == "read"


async def test_nothing_is_written_back_after_a_cancelled_run_has_returned(audit: Path, folder: Path) -> None:
    async with Sandbox(audit=audit, workspace=folder) as sandbox:
        await sandbox.run("print(1)")
        code = "import os\nos.mkdir('many')\nfor n in range(4000): open(f'many/{n}', 'w').write('x')"
        task = asyncio.ensure_future(sandbox.run(code))
        async with asyncio.timeout(MAX_WAIT):
            while not (folder / "many").exists():
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        now = len(os.listdir(folder / "many"))
        await asyncio.get_running_loop().run_in_executor(None, _until_still, folder / "many")
        assert len(os.listdir(folder / "many")) == now


def _until_still(folder: Path) -> None:
    """Until nothing is made in ``folder`` for a while."""
    import time

    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        count = len(os.listdir(folder))
        if count != last:
            last, since = count, time.monotonic()
        time.sleep(0.02)


def test_a_folder_that_is_written_through_is_changed_at_once_and_the_report_says_so(audit: Path, folder: Path) -> None:
    before = folders.tree(folder)
    with sync.Sandbox(audit=audit, workspace=folder, workspace_mode="direct") as sandbox:
        code = "os = __import__('os'); os.makedirs('output', exist_ok=True)\n" + folders.CHANGES
        execution = sandbox.run(code)
        assert execution.ok, execution.stderr
        assert folders.tree(folder) == folders.changed(before)
        assert any("written through" in note for note in execution.isolation.notes)
        assert [artifact.name for artifact in execution.artifacts] == ["output/chart.svg"]
        again = sandbox.run("open('output/more', 'w').write('x')")
        assert [artifact.name for artifact in again.artifacts] == ["output/more"]


def test_the_folders_own_sockets_cannot_be_reached_through_the_overlay(inside: sync.Sandbox, folder: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "agent.sock"))
        server.listen()
        execution = inside.run("import socket; socket.socket(socket.AF_UNIX).connect('agent.sock')")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert execution.status == "failed"
    assert (folder / "agent.sock").is_socket()
