"""Applying a hostile upper folder made by hand: what an overlay would not write, but a damaged or forged one may."""

from __future__ import annotations

import gc
import os
import resource
import signal
from pathlib import Path

import pytest

from casemate.files.bounds import Skipped
from casemate.files.protected import Protection
from casemate.files.walk import SeenFiles
from casemate.model.review import Applied
from casemate.supervisor.trees.walk import Deadline, walk
from casemate.workspace.apply import WRITTEN_BACK, Writer, apply, remove_all
from casemate.workspace.review import Review
from casemate.workspace.rules import FolderRules
from casemate.workspace.upper import ROOTS, USERS


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    (tmp_path / "upper").mkdir()
    return tmp_path / "upper"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def applied(upper: Path, folder: Path, marks: str = USERS) -> Applied:
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (upper, folder)]
    try:
        return apply(*descriptors, marks=marks)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def reasons(outcome: Applied) -> dict[str, str]:
    return {skipped.name: skipped.reason for skipped in outcome.skipped}


def mark(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, f"user.overlay.{name}", value)
    except OSError as error:
        pytest.skip(f"needs a file system with user xattrs for {path}: {error.strerror}")


def test_a_link_that_lies_where_a_folder_is_needed_is_replaced_and_not_followed(upper: Path, folder: Path) -> None:
    """AR-01: a link that appeared in the folder while the run went on."""
    outside = folder.parent / "outside"
    outside.mkdir()
    (folder / "sub").symlink_to("../outside")
    (upper / "sub").mkdir()
    (upper / "sub" / "file").write_text("new")
    applied(upper, folder)
    assert list(outside.iterdir()) == []
    assert (folder / "sub" / "file").read_text() == "new"


def test_marks_for_removed_names_and_replaced_folders_are_understood(upper: Path, folder: Path) -> None:
    for name in ("gone", "sub/hidden", "sub/kept"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("old")
    (upper / "gone").touch()
    mark(upper / "gone", "whiteout", b"y")
    (upper / "sub").mkdir()
    (upper / "sub" / "kept").write_text("new")
    mark(upper / "sub", "opaque", b"y")
    outcome = applied(upper, folder)
    assert outcome.removed == ("gone", "sub/hidden")
    assert [path.name for path in folder.rglob("*")] == ["sub", "kept"]


def test_marks_of_a_program_where_the_overlay_has_its_own_elsewhere_remove_nothing(upper: Path, folder: Path) -> None:
    for name in ("gone", "sub/hidden"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("old")
    (upper / "sub").mkdir()
    mark(upper / "sub", "opaque", b"y")
    (upper / "gone").touch()
    mark(upper / "gone", "whiteout", b"y")
    outcome = applied(upper, folder, ROOTS)
    assert (outcome.removed, outcome.skipped) == ((), ())
    assert (folder / "sub/hidden").read_text() == "old"
    assert (folder / "gone").read_text() == ""  # it was written to


def test_content_that_is_elsewhere_never_replaces_content_that_is_here(upper: Path, folder: Path) -> None:
    (folder / "file").write_text("precious")
    (upper / "file").touch()
    mark(upper / "file", "metacopy", b"")
    (upper / "gone").touch()
    mark(upper / "gone", "whiteout", b"y")
    (folder / "gone").write_text("kept")
    outcome = applied(upper, folder)
    assert (folder / "file").read_text() == "precious"
    assert (folder / "gone").read_text() == "kept"
    assert set(reasons(outcome)) == {"file", "gone"}


def test_a_full_disk_costs_what_does_not_fit_and_nothing_is_removed(upper: Path, folder: Path) -> None:
    (folder / "a-large").write_text("old")
    (folder / "removed").write_text("kept")
    (upper / "a-large").write_bytes(b"x" * 3_000_000)
    (upper / "b-small").write_text("small")
    (upper / "removed").touch()
    mark(upper / "removed", "whiteout", b"y")
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        outcome = applied(upper, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert outcome.written == ("b-small",)
    assert set(reasons(outcome)) == {"a-large", "removed"}
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "a-large": "old",
        "b-small": "small",
        "removed": "kept",
    }


@pytest.mark.user_only
def test_a_folder_that_may_not_be_written_is_said_and_the_rest_arrives(upper: Path, folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o500)
    (upper / "closed").mkdir(mode=0o500)
    (upper / "closed").chmod(0o700)
    (upper / "closed" / "file").write_text("1")
    (upper / "closed").chmod(0o500)
    (upper / "open").write_text("2")
    outcome = applied(upper, folder)
    assert outcome.written == ("open",)
    assert "Permission denied" in reasons(outcome)["closed/file"]


def nest(folder: Path, depth: int) -> None:
    below = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=below)
        above, below = below, os.open("d", os.O_RDONLY, dir_fd=below)
        os.close(above)
    os.close(below)


def test_three_thousand_nested_folders_are_cut_at_the_bound(upper: Path, folder: Path) -> None:
    """AR-05."""
    nest(upper, 3_000)
    gc.collect()  # what earlier tests left
    before = len(os.listdir("/proc/self/fd"))
    outcome = applied(upper, folder)
    assert len(outcome.written) == 64
    assert [skipped.reason for skipped in outcome.skipped] == ["it lies deeper than 64 folders"]
    assert len(os.listdir("/proc/self/fd")) == before
    os.system(f"rm -rf '{upper}'")  # pytest's own clean-up recurses


def test_a_folder_a_thousand_deep_cannot_be_removed_and_is_said(upper: Path, folder: Path) -> None:
    """AR-05: removing neither recurses nor runs out of descriptors."""
    nest(folder, 1_000)
    (upper / "d").touch()
    mark(upper / "d", "whiteout", b"y")
    outcome = applied(upper, folder)
    assert outcome.removed == ()
    assert len(outcome.skipped) == 1
    os.system(f"rm -rf '{folder}'")


def test_nothing_temporary_is_left(upper: Path, folder: Path) -> None:
    (upper / "file").write_text("1")
    (upper / "link").symlink_to("file")
    (folder / "link").mkdir()
    (folder / "link" / ".envrc").touch()
    applied(upper, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["file", "link"]


def test_nothing_is_removed_through_a_link_that_appeared_meanwhile(upper: Path, folder: Path) -> None:
    """AR-01: the folder was a folder when the run began."""
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "victim").write_text("victim")
    (folder / "sub").mkdir()
    (upper / "sub").mkdir()
    (upper / "sub" / "victim").touch()
    mark(upper / "sub" / "victim", "whiteout", b"y")
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to("../outside")
    outcome = applied(upper, folder)
    assert (outside / "victim").read_text() == "victim"
    assert outcome.removed == ()


def test_a_name_that_was_just_written_is_not_removed_under_another_spelling(upper: Path, folder: Path) -> None:
    """AR-06: one file under two names stands for a file system that ignores case."""
    (upper / "name").write_text("new")
    (upper / "NAME").touch()
    mark(upper / "NAME", "whiteout", b"y")
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (upper, folder)]
    skipped = Skipped(10)
    with Writer(descriptors[1], WRITTEN_BACK, FolderRules(), skipped, marks=USERS) as writer:
        walk(descriptors[0], writer, depth=5, entries=100)
    (folder / "NAME").hardlink_to(folder / "name")
    assert remove_all(descriptors[1], writer, skipped) == []
    for descriptor in descriptors:
        os.close(descriptor)
    assert (folder / "NAME").read_text() == "new"


class EndsTheTime(Protection):
    """Protects nothing, and ends ``deadline`` when it is asked about what is called ``b``."""

    deadline = Deadline()

    def reason(self, path: tuple[str, ...], *, folder: bool = False) -> str | None:
        if path[-1] == "b":
            self.deadline.end = 0.0
        return None


def test_after_the_deadline_files_are_whole_and_nothing_is_removed(upper: Path, folder: Path) -> None:
    for place, text in ((upper, "new"), (folder, "old")):
        for name in ("a", "b", "c"):
            (place / name).write_text(text)
    (folder / "a-gone").write_text("old")
    (upper / "a-gone").touch()
    mark(upper / "a-gone", "whiteout", b"y")
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (upper, folder)]
    with Deadline(60) as EndsTheTime.deadline:
        outcome = apply(*descriptors, marks=USERS, rules=FolderRules(EndsTheTime()))
    assert outcome.written == ("a",)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "a": "new", "a-gone": "old", "b": "old", "c": "old",
    }  # fmt: skip
    assert {name for name, reason in reasons(outcome).items() if "60 seconds" in reason} == {"b", "c"}
    assert "not removed" in reasons(outcome)["a-gone"]
    for descriptor in descriptors:
        os.close(descriptor)


def test_what_there_was_no_time_for_is_applied_after_the_next_step(upper: Path, folder: Path) -> None:
    (upper / "inner").mkdir()
    for name in ("a", "b", "inner/c"):
        (upper / name).write_text("new")
    seen = SeenFiles()
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (upper, folder)]
    with Deadline(60) as EndsTheTime.deadline:
        apply(*descriptors, marks=USERS, rules=FolderRules(EndsTheTime()), seen=seen)
    assert not seen.is_whole(descriptors[0])
    assert apply(*descriptors, marks=USERS, seen=seen, seconds=0).written == ()
    assert apply(*descriptors, marks=USERS, seen=seen) == Applied(("b", "inner/", "inner/c"), (), ())
    assert seen.is_whole(descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_review_says_what_there_was_no_time_for_and_writes_all_or_nothing(upper: Path, folder: Path) -> None:
    (upper / "a").write_text("new")
    over, under = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (upper, folder))
    review = Review()
    shown = review.look(over, under).found
    with Deadline(0):
        assert ["0 seconds" in one.change.refused for one in review.look(over, under).found] == [True]
        outcome = review.write(over, under, shown)
    assert (outcome.status, list(folder.iterdir())) == ("failed", [])
    assert "0 seconds" in outcome.reason
    assert review.write(over, under, shown).status == "applied"
    os.close(over)
    os.close(under)


def test_an_index_that_hides_a_name_which_is_no_text_is_refused(upper: Path, folder: Path) -> None:
    (upper / ".git").mkdir()
    entry = bytes(60) + b"\x80\x01" + b"\xff\0"
    (upper / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\1" + entry + bytes(20))
    assert r"of \xff" in reasons(applied(upper, folder))[".git/index"]
