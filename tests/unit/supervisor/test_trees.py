"""The way in and out of a folder: copies, layers and removals, each with a stranger's links, holes and names in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from casemate.supervisor.trees.copies import FolderCopy, changes
from casemate.supervisor.trees.remove import remove_entry
from casemate.supervisor.trees.walk import open_beneath

NOBODY = 65534
CELL = 0x6361_0000 + 7


@contextmanager
def opened(*folders: Path) -> Iterator[list[int]]:
    fds = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in folders]
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


class Copied:
    """A folder, its copy, and where its changes are laid out."""

    def __init__(self, base: Path, hidden: tuple[str, ...] = (), owner: tuple[int, int] | None = None) -> None:
        self.source, self.place, self.upper = (base / name for name in ("source", "place", "upper"))
        self.copy = FolderCopy(owner)
        for folder in (self.place, self.upper):
            folder.mkdir()
        with opened(self.source, self.place) as (source, place):
            self.copy.fill(source, place, hidden)
            self.copy.note(place)

    def lay_out(self) -> dict[str, str]:
        """What the layer has: the content of each file, and what else there is."""
        with opened(self.place, self.upper) as fds:
            self.copy.lay_out(*fds)
        return {
            str(path.relative_to(self.upper)): "gone" if stat.S_ISCHR(path.lstat().st_mode) else path.read_text()
            for path in self.upper.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for folder in ("kept", "gone"):
        (tmp_path / "source" / folder).mkdir(parents=True)
    for name in ("same", "changed", "removed", "kept/inner", "gone/inner", ".env"):
        (tmp_path / "source" / name).write_text(name)
    return tmp_path / "source"


@pytest.mark.usefixtures("source")
def test_what_became_of_a_copy_is_laid_out_as_an_overlay_has_it(tmp_path: Path) -> None:
    copied = Copied(tmp_path, (".env",))
    place = copied.place
    assert copied.lay_out() == {}
    assert sorted(os.listdir(place)) == ["changed", "gone", "kept", "removed", "same"]

    (place / "changed").write_text("else")
    (place / "removed").unlink()
    (place / "gone/inner").unlink()
    (place / "gone").rmdir()
    (place / "kept/new").write_text("new")
    assert copied.lay_out() == {"changed": "else", "gone": "gone", "kept/new": "new", "removed": "gone"}

    (place / "kept/new").unlink()
    (place / "removed").write_text("again")
    assert copied.lay_out() == {"changed": "else", "gone": "gone", "removed": "again"}
    assert sorted(os.listdir(copied.upper)) == ["changed", "gone", "removed"]


@pytest.mark.parametrize("mode", [0o555, 0o500, 0o600, 0o000])
@pytest.mark.usefixtures("source")
def test_a_folder_has_the_mode_in_the_layer_that_the_program_gave_it(tmp_path: Path, mode: int) -> None:
    copied = Copied(tmp_path)
    for name in ("first", "second"):  # once more, in the layer that is locked by then
        (copied.place / "kept").chmod(0o755)
        (copied.place / "kept" / name).write_text(name)
        (copied.place / "kept").chmod(mode)
        with opened(copied.place, copied.upper) as fds:
            copied.copy.lay_out(*fds)
        assert stat.S_IMODE((copied.upper / "kept").stat().st_mode) == mode
    (copied.upper / "kept").chmod(0o700)
    assert (copied.upper / "kept" / "second").read_text() == "second"


@pytest.mark.usefixtures("source")
def test_a_hidden_name_that_becomes_a_folder_is_laid_out_like_any_other(tmp_path: Path) -> None:
    copied = Copied(tmp_path, (".env",))
    (copied.place / ".env").mkdir()
    (copied.place / ".env/x").write_text("1")
    assert copied.lay_out() == {".env/x": "1"}


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("target", ["kept", "../outside", "/"])
def test_a_folder_that_becomes_a_link_is_a_link_in_the_layer_and_leads_nowhere(tmp_path: Path, target: str) -> None:
    copied = Copied(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/inner").write_text("a file of the host's")
    (copied.place / "gone/inner").unlink()
    (copied.place / "gone").rmdir()
    (copied.place / "gone").symlink_to(target)
    with opened(copied.place, copied.upper) as fds:
        copied.copy.lay_out(*fds)
    assert os.listdir(copied.upper) == ["gone"]
    assert os.readlink(copied.upper / "gone") == target
    assert (tmp_path / "outside/inner").read_text() == "a file of the host's"


def test_a_child_that_goes_with_a_folder_whose_mode_changes_is_gone_in_the_layer() -> None:
    folder, before, after = (b"d",), (1, stat.S_IFDIR | 0o755, 0), (1, stat.S_IFDIR | 0o700, 0)
    wanted = changes({folder: before, (b"d", b"x"): (2, stat.S_IFREG, 0)}, {folder: after})
    assert wanted == {(): {b"d": after}, folder: {b"x": (0, stat.S_IFCHR, 0)}}


def test_what_could_not_be_read_stays_and_so_does_the_folder_that_holds_it() -> None:
    folder, file = (1, stat.S_IFDIR | 0o755, 0), (2, stat.S_IFREG, 0)
    before = {(b"d",): folder, (b"d", b"unread"): file, (b"d", b"read"): (3, stat.S_IFREG, 0)}
    moved = {(b"moved", *path[1:]): state for path, state in before.items()}
    unread = [(b"d", b"unread")]
    assert (b"d",) not in changes(before, moved, unread)
    assert b"d" not in changes(before, moved, unread)[()]
    assert b"unread" not in changes(before, moved, unread)[(b"moved",)]
    assert b"d" not in changes(before, {(b"d",): (4, stat.S_IFLNK, 0)}, unread).get((), {})
    assert changes(before, {(b"d",): folder}, unread) == {(b"d",): {b"read": (0, stat.S_IFCHR, 0)}, (): {b"d": folder}}


def test_a_hole_of_a_file_takes_no_room_in_its_copy(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with (tmp_path / "source/holes").open("wb") as file:
        file.seek(1 << 30)
        file.write(b"end")
    copied = Copied(tmp_path)
    status = (copied.place / "holes").stat()
    assert (status.st_size, status.st_blocks < 1024) == ((1 << 30) + 3, True)


@pytest.mark.root_only
@pytest.mark.parametrize("owner", [0, 1000])
@pytest.mark.parametrize("cell", [None, (CELL, CELL)])
def test_files_of_other_users_are_what_the_owner_of_the_folder_could_read(
    tmp_path: Path, owner: int, cell: tuple[int, int] | None
) -> None:
    source = tmp_path / "source"
    (source / "closed").mkdir(parents=True)
    for name, mode in (("theirs", 0o600), ("shared", 0o644), ("own", 0o600), ("closed/inner", 0o644)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    (source / "closed").chmod(0o700)
    os.chown(source, owner, owner)
    os.chown(source / "own", owner, owner)
    for name in ("theirs", "shared", "closed"):
        os.chown(source / name, NOBODY, NOBODY)
    copied = Copied(tmp_path, owner=cell)
    assert {name: (copied.place / name).read_text() for name in ("theirs", "shared", "own")} == {
        "theirs": "", "shared": "shared", "own": "own",
    }  # fmt: skip
    assert os.listdir(copied.place / "closed") == []
    modes = {name: (copied.place / name).stat().st_mode & 0o777 for name in ("theirs", "closed", "own", "shared")}
    assert modes == {"theirs": 0, "closed": 0, "own": 0o600, "shared": 0o444}
    if cell:
        owners = {name: (copied.place / name).stat().st_uid for name in modes}
        assert owners == {"theirs": 0, "closed": 0, "shared": 0, "own": CELL}
    assert copied.lay_out() == {}


@pytest.mark.parametrize("name", ["..", b".."])
def test_a_path_that_leads_up_is_opened_nowhere(tmp_path: Path, name: str | bytes) -> None:
    with opened(tmp_path) as (folder,), pytest.raises(OSError, match="leads out"):
        open_beneath(folder, (name,))


def test_a_tree_is_removed_however_deep_and_locked_it_is_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    top = tmp_path / "top"
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=folder)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=folder)
        os.symlink(outside, "link", dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    (top / "locked").mkdir()
    (top / "locked/inner").mkdir()
    (top / "locked/inner").chmod(0)
    (top / "locked").chmod(0)
    with opened(tmp_path) as (fd,):
        remove_entry(fd, "top")
    assert os.listdir(tmp_path) == ["outside"]
    assert (outside / "file").read_text() == "stays"
