"""Two folders that are kept alike by records: honest ones do it, and others touch nothing outside."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from casemate.supervisor import wire
from casemate.supervisor.mirror import Bounds, MirrorError, Tree

ROOM = Bounds(1 << 20, 1000)


def records(*each: dict[str, Any], data: bytes = b"") -> int:
    fd = os.memfd_create("records")
    for one in each:
        full = {"mode": 0o644, "mtime": 0, "size": 0, "parts": [], "target": b"", **one}
        encoded = wire.encode(full)
        os.write(fd, len(encoded).to_bytes(4, "big") + encoded)
    os.write(fd, data)
    return fd


def seen(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.is_dir() or path.read_bytes()
        for path in folder.rglob("*")
    }


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Tree, Path, Tree]:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    return here, Tree(str(here)), there, Tree(str(there))


def carry(source: Tree, target: Tree) -> list[bytes]:
    fd = os.memfd_create("records")
    source.write_changes(fd)
    return target.apply(fd, ROOM)


def test_files_are_whole_where_a_kernel_tells_nothing_of_holes(
    trees: tuple[Path, Tree, Path, Tree], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gVisor's."""

    def seek(fd: int, at: int, how: int) -> int:
        if how in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, "no such way")
        return lseek(fd, at, how)

    lseek = os.lseek
    monkeypatch.setattr(os, "lseek", seek)
    here, mine, there, theirs = trees
    (here / "a").write_bytes(b"whole")
    (here / "empty").touch()
    carry(mine, theirs)
    assert seen(there) == {"a": b"whole", "empty": b""}


def test_changes_are_done_again_and_come_back_to_nobody(trees: tuple[Path, Tree, Path, Tree]) -> None:
    here, mine, there, theirs = trees
    (here / "a").mkdir()
    (here / "a/b.txt").write_text("one")
    (here / "run").write_text("x")
    (here / "run").chmod(0o755)
    (here / "link").symlink_to("a/b.txt")
    os.mkfifo(here / "pipe")
    carry(mine, theirs)
    assert (there / "pipe").is_fifo()
    (here / "pipe").unlink()
    carry(mine, theirs)
    assert seen(there) == seen(here)
    assert (there / "run").stat().st_mode & 0o777 == 0o755
    assert carry(theirs, mine) == []
    (there / "a/b.txt").write_text("two")
    (there / "link").unlink()
    (there / "run").unlink()
    (there / "run").mkdir()
    assert sorted(carry(theirs, mine)) == [b"a/b.txt", b"link", b"run"]
    assert seen(here) == seen(there)


def test_a_removed_folder_goes_with_all_that_is_in_it(trees: tuple[Path, Tree, Path, Tree]) -> None:
    here, mine, there, theirs = trees
    (here / "a/b").mkdir(parents=True)
    (here / "a/b/c").write_text("x")
    carry(mine, theirs)
    (here / "a/b/c").unlink()
    (here / "a/b").rmdir()
    (here / "a").rmdir()
    carry(mine, theirs)
    assert seen(there) == {}


def test_hidden_paths_are_not_carried(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here/.env").write_text("secret")
    (tmp_path / "here/x").write_text("x")
    carry(Tree(str(tmp_path / "here"), [".env"]), Tree(str(tmp_path / "there")))
    assert seen(tmp_path / "there") == {"x": b"x"}


def test_a_file_of_holes_takes_no_more_than_its_data(trees: tuple[Path, Tree, Path, Tree]) -> None:
    here, mine, there, theirs = trees
    with (here / "sparse").open("wb") as file:
        file.truncate(1 << 32)
        file.seek(1 << 31)
        file.write(b"middle")
    carry(mine, theirs)
    with (there / "sparse").open("rb") as file:
        file.seek(1 << 31)
        assert file.read(6) == b"middle"
    assert (there / "sparse").stat().st_size == 1 << 32


@pytest.mark.parametrize("path", [b"../x", b"/x", b"a/../../x", b"", b"a//b", b"a/.", b"x\0", b"n" * 300])
def test_a_path_that_leads_elsewhere_is_refused(trees: tuple[Path, Tree, Path, Tree], path: bytes) -> None:
    here, mine, *_ = trees
    for kind in ("file", "folder", "link", "gone"):
        with pytest.raises(MirrorError):
            mine.apply(records({"kind": kind, "path": path}), ROOM)
    assert {path.name for path in here.parent.iterdir()} == {"here", "there"}


def test_nothing_is_written_through_a_link(trees: tuple[Path, Tree, Path, Tree], tmp_path: Path) -> None:
    here, mine, *_ = trees
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    link = {"kind": "link", "path": b"way", "target": os.fsencode(outside)}
    for other in (
        {"kind": "file", "path": b"way/new"},
        {"kind": "gone", "path": b"way/kept"},
        {"kind": "folder", "path": b"way/sub"},
    ):
        with pytest.raises(OSError):
            mine.apply(records(link, other), ROOM)
    assert seen(outside) == {"kept": b"kept"}
    mine.apply(records(link, {"kind": "folder", "path": b"way"}), ROOM)
    assert (here / "way").is_dir()
    assert not (here / "way").is_symlink()


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "file", "path": b"x", "size": 5, "parts": [[0, 6]]},
        {"kind": "file", "path": b"x", "size": 9, "parts": [[4, 2], [1, 2]]},
        {"kind": "file", "path": b"x", "size": 1 << 60},
        {"kind": "device", "path": b"x"},
        {"kind": "file", "path": "x"},
        {"kind": "file", "path": b"x", "more": 1},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(trees: tuple[Path, Tree, Path, Tree], record: dict[str, Any]) -> None:
    with pytest.raises(MirrorError):
        trees[1].apply(records(record, data=bytes(20)), ROOM)


def test_more_than_there_may_be_is_refused(trees: tuple[Path, Tree, Path, Tree]) -> None:
    file = {"kind": "file", "path": b"x", "size": 10, "parts": [[0, 10]]}
    with pytest.raises(MirrorError):
        trees[1].apply(records(file, data=bytes(10)), Bounds(9, 10))
    with pytest.raises(MirrorError):
        trees[1].apply(records(*({"kind": "gone", "path": b"x"},) * 11), Bounds(9, 10))


def test_no_setuid_bit_is_carried(trees: tuple[Path, Tree, Path, Tree]) -> None:
    here, mine, *_ = trees
    mine.apply(records({"kind": "file", "path": b"x", "mode": 0o4755}), ROOM)
    assert (here / "x").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_refused(trees: tuple[Path, Tree, Path, Tree], seed: int) -> None:
    fd = os.memfd_create("random")
    os.write(fd, random.Random(seed).randbytes(200))
    with pytest.raises(MirrorError):
        trees[1].apply(fd, ROOM)
