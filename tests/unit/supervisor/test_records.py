"""Two folders that are kept alike by records: honest ones do it, and others touch nothing outside."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casemate.supervisor import wire
from casemate.supervisor.trees.records import Bounds, RecordsError, Tree

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
def trees(tmp_path: Path) -> Iterator[tuple[Path, Tree, Path, Tree]]:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    roots = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in (here, there)]
    yield here, Tree(roots[0], is_cells=True), there, Tree(roots[1])
    for root in roots:
        os.close(root)


def carry(source: Tree, target: Tree) -> bool:
    """Whether there was something to carry."""
    fd = source.write_changes(lambda: os.memfd_create("records"))
    if fd is None:
        return False
    target.apply(fd, ROOM)
    os.close(fd)
    return True


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
    assert not carry(theirs, mine)
    assert not carry(mine, theirs)
    (there / "a/b.txt").write_text("two")
    (there / "link").unlink()
    (there / "run").unlink()
    (there / "run").mkdir()
    assert carry(theirs, mine)
    assert not carry(mine, theirs)
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
        with pytest.raises(RecordsError):
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
        {"kind": "folder", "path": b"way/sub"},
        {"kind": "folder", "path": b"way/sub/sub"},
    ):
        with pytest.raises(OSError):
            mine.apply(records(link, other), ROOM)
    mine.apply(records(link, {"kind": "gone", "path": b"way/kept"}), ROOM)
    assert seen(outside) == {"kept": b"kept"}
    mine.apply(records(link, {"kind": "folder", "path": b"way"}), ROOM)
    assert (here / "way").is_dir()
    assert not (here / "way").is_symlink()


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "file", "path": b"x", "size": 5, "parts": [[0, 6]]},
        {"kind": "file", "path": b"x", "size": 9, "parts": [[4, 2], [1, 2]]},
        {"kind": "file", "path": b"x", "size": 9, "parts": [[1, 2], [4, 5]]},
        {"kind": "file", "path": b"x", "size": 1 << 60},
        {"kind": "device", "path": b"x"},
        {"kind": "file", "path": "x"},
        {"kind": "file", "path": b"x", "more": 1},
        {"kind": "file", "path": b"x", "mtime": 1 << 70},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(trees: tuple[Path, Tree, Path, Tree], record: dict[str, Any]) -> None:
    with pytest.raises(RecordsError):
        trees[1].apply(records(record, data=bytes(20)), ROOM)


def test_more_than_there_may_be_is_refused(trees: tuple[Path, Tree, Path, Tree]) -> None:
    file = {"kind": "file", "path": b"x", "size": 10, "parts": [[0, 10]]}
    with pytest.raises(RecordsError):
        trees[1].apply(records(*({"kind": "gone", "path": b"x"},) * 21), Bounds(9, 10))
    with pytest.raises(RecordsError):
        for number in range(60):
            trees[1].apply(records({**file, "path": b"%d" % number}, data=bytes(10)), Bounds(200, 1000))
    with pytest.raises(RecordsError):
        for number in range(60):
            trees[1].apply(records({"kind": "folder", "path": b"f%d" % number}), Bounds(1000, 10))


def test_what_is_written_again_and_again_takes_its_room_once(trees: tuple[Path, Tree, Path, Tree]) -> None:
    file = {"kind": "file", "path": b"a/x", "size": 10, "parts": [[0, 10]]}
    for _ in range(40):
        fd = records({"kind": "folder", "path": b"a"}, file, data=bytes(10))
        trees[1].apply(fd, Bounds(15, 3))
        trees[1].apply(records({"kind": "gone", "path": b"a/x"}, {"kind": "gone", "path": b"a"}), Bounds(15, 3))


def test_no_setuid_bit_is_carried(trees: tuple[Path, Tree, Path, Tree]) -> None:
    here, mine, *_ = trees
    mine.apply(records({"kind": "file", "path": b"x", "mode": 0o4755}), ROOM)
    assert (here / "x").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_refused(trees: tuple[Path, Tree, Path, Tree], seed: int) -> None:
    fd = os.memfd_create("random")
    os.write(fd, random.Random(seed).randbytes(200))
    with pytest.raises(RecordsError):
        trees[1].apply(fd, ROOM)


def test_what_cannot_be_looked_at_has_not_gone(trees: tuple[Path, Tree, Path, Tree]) -> None:
    here, mine, there, theirs = trees
    deepest = here.joinpath(*["d"] * 100)
    deepest.mkdir(parents=True)
    (deepest / "x").write_text("x")
    carry(mine, theirs)
    (deepest / "deeper").mkdir()
    (deepest / "deeper/y").write_text("y")
    carry(mine, theirs)
    assert there.joinpath(*["d"] * 100, "x").exists()


def test_a_folder_that_somebody_removed_meanwhile_is_there_again_with_what_was_written_in_it(
    trees: tuple[Path, Tree, Path, Tree],
) -> None:
    here, mine, there, theirs = trees
    (here / "a").mkdir()
    carry(mine, theirs)
    (there / "a").rmdir()
    (here / "a/x").write_text("x")
    carry(mine, theirs)
    assert seen(there) == {"a": True, "a/x": b"x"}
    assert (b"a",) in theirs.known


def test_a_file_of_many_holes_is_carried_as_it_is(trees: tuple[Path, Tree, Path, Tree]) -> None:
    here, mine, there, theirs = trees
    with (here / "sparse").open("wb") as file:
        for number in range(2000):
            file.seek(number << 20)
            file.write(b"x")
    fd = mine.write_changes(lambda: os.memfd_create("records"))
    assert fd is not None
    theirs.apply(fd, Bounds(16 << 20, 10))
    assert (there / "sparse").stat().st_blocks * 512 < 16 << 20
    assert (there / "sparse").stat().st_size == (1999 << 20) + 1
