"""If the disk is full wherever casemate writes, a run is refused or its result is complete, and losses are reported."""

from __future__ import annotations

import asyncio
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from casemate import CasemateError, Limits, RecordUnavailable, Sandbox, Unavailable, allow_all, sync
from casemate.model.operation import Audience, Principal
from casemate.operations.invoke import local
from casemate.operations.operations import Operations
from casemate.operations.stores import FolderStore

pytestmark = pytest.mark.root_only  # a small file system can only be mounted by root


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"small", os.fsencode(folder), b"tmpfs", 0, b"size=2m,mode=0777"):
        pytest.skip("cannot mount: run ./test as root with CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        libc.umount2(os.fsencode(folder), 2)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))


def test_a_record_on_a_full_disk_stops_new_runs(small: Path) -> None:
    with sync.Sandbox(audit=small / "audit.db") as sandbox:
        sandbox.run("print(1)").raise_for_status()
        fill(small)
        with pytest.raises(RecordUnavailable) as raised:
            for _ in range(100):  # the write-ahead log has some room of its own
                sandbox.run("print(1)", metadata={"long": "x" * 8000})
        assert "Free some space" in raised.value.remediation
        (small / "filler").unlink()
        assert sandbox.run("print(2)").stdout == "2\n"


def test_an_output_folder_on_a_full_disk_loses_no_artifact_and_says_so(audit: Path, small: Path) -> None:
    with sync.Sandbox(audit=audit, output_dir=small) as sandbox:
        execution = sandbox.run("open('output/big', 'wb').write(b'x' * (4 << 20)); open('output/tiny', 'w').write('t')")
    assert execution.ok
    assert {artifact.name: artifact.size for artifact in execution.artifacts} == {
        "output/big": 4 << 20,
        "output/tiny": 1,
    }
    assert [file.name for file in execution.skipped] == ["output/big"]
    assert "No space" in execution.skipped[0].reason
    assert sorted(os.listdir(small)) == ["tiny"], "something half-made was left"


def test_a_folder_on_a_full_disk_keeps_what_it_had(audit: Path, small: Path) -> None:
    (small / "old").write_text("old")
    with sync.Sandbox(audit=audit, workspace=small) as sandbox:
        execution = sandbox.run("open('big', 'wb').write(b'x' * (4 << 20)); import os; os.remove('old')")
    assert execution.ok
    assert [file.name for file in execution.skipped if "No space" in file.reason] == ["big"]
    assert sorted(os.listdir(small)) == ["old"]
    assert (small / "old").read_text() == "old"


def test_a_full_temporary_folder_loses_no_small_artifact_and_names_the_large(
    audit: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small)
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    with sync.Sandbox(audit=audit) as sandbox:
        execution = sandbox.run("open('a-tiny', 'w').write('t'); open('big', 'wb').write(b'x' * (4 << 20))")
    assert [artifact.name for artifact in execution.artifacts] == ["a-tiny"]
    assert [file.name for file in execution.skipped] == ["big"]


def test_output_that_could_not_be_kept_is_told(audit: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(small)
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    with sync.Sandbox(audit=audit) as sandbox:
        execution = sandbox.run("print('x' * 1_000_000)", limits=Limits(output=10_000))
    assert execution.truncated
    assert execution.full_output is None
    assert "output" in str(execution.skipped) + str(execution.cause)


def test_given_files_that_find_no_room_on_their_way_are_a_typed_error(
    audit: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small)
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    with sync.Sandbox(audit=audit) as sandbox, pytest.raises(CasemateError):
        sandbox.run("print(1)", files={"big": b"x" * (8 << 20)})


async def test_a_run_that_cannot_be_kept_is_refused_and_nothing_is_left_of_it(audit: Path, small: Path) -> None:
    async with Sandbox(audit=audit) as sandbox, Operations(sandbox, FolderStore(small / "runs")) as operations:
        agent = local(operations, Principal("agent:a", Audience.AGENT))
        kept = (await agent("runs.start", {"code": "print(1)", "wait": 60}))["run"]
        fill(small)
        with pytest.raises(Unavailable, match="the run cannot be kept: No space"):
            await agent("runs.start", {"code": "print(2)"})
        while operations.kept.unfinished_runs():
            await asyncio.sleep(0.01)
        assert os.listdir(small / "runs") == [kept]
        (small / "filler").unlink()
        again = await agent("runs.start", {"code": "print(3)", "wait": 60})
        assert again["execution"]["stdout"] == "3\n"


async def test_files_of_a_run_that_are_kept_in_part_are_not_kept(audit: Path, small: Path) -> None:
    async with Sandbox(audit=audit) as sandbox, Operations(sandbox, FolderStore(small / "runs")) as operations:
        agent = local(operations, Principal("agent:a", Audience.AGENT))
        code = "open('output/a', 'w').write('t'); open('output/big', 'wb').write(b'x' * (4 << 20))"
        told = await agent("runs.start", {"code": code, "wait": 60})
        assert "its outcome cannot be kept: No space" in told["error"]["message"]
        assert not [name for name in os.listdir(small / "runs" / told["run"]) if name.startswith("file")]


def test_a_review_on_a_full_disk_writes_nothing_at_all_and_keeps_the_changes(audit: Path, small: Path) -> None:
    (small / "old.txt").write_text("old")
    with sync.Sandbox(
        audit=audit, workspace=small, workspace_mode="review", approve=allow_all
    ) as sandbox, sandbox.session() as session:  # fmt: skip
        session.run(
            "open('old.txt', 'w').write('new'); open('z', 'wb').write(b'x' * (1 << 20)); open('a', 'w').write('a')"
        )
        with (small / "filler").open("wb") as file:
            file.write(bytes(1536 << 10))
        applied = session.apply()
        assert (applied.status, applied.written) == ("failed", ())
        assert "No space left" in applied.reason
        assert sorted(os.listdir(small)) == ["filler", "old.txt"]
        assert (small / "old.txt").read_text() == "old"
        (small / "filler").unlink()
        assert session.apply().ok
    assert (small / "old.txt").read_text() == "new"
