"""Exporting into a folder: beneath it, through no link, twins apart, and failures said."""

from __future__ import annotations

import gc
import hashlib
import os
from pathlib import Path

import pytest

from casemate.artifacts.content import ContentStore, Slice
from casemate.artifacts.export import export
from casemate.model.execution import Artifact


def artifact(name: str, data: bytes = b"data") -> Artifact:
    store = ContentStore()
    store.append(data)
    return Artifact(name, len(data), hashlib.sha256(data).hexdigest(), "text/plain", Slice(store, 0, len(data)))


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_artifacts_are_written_under_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    outcome = export([artifact("a.txt", b"1"), artifact("sub/b.txt", b"2")], folder)
    assert files(folder) == {"a.txt": b"1", "sub/b.txt": b"2"}
    assert outcome.written == (folder / "a.txt", folder / "sub" / "b.txt")
    assert outcome.skipped == ()


def test_the_output_folders_own_name_can_be_left_off(tmp_path: Path) -> None:
    export(
        [artifact("output/a", b"1"), artifact("other/b", b"2"), artifact("output", b"3")], tmp_path, under=("output",)
    )
    assert files(tmp_path) == {"a": b"1", "other/b": b"2", "output": b"3"}


def test_an_older_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"older and longer")
    (tmp_path / "a").chmod(0o4755)
    export([artifact("a", b"new")], tmp_path)
    assert files(tmp_path) == {"a": b"new"}
    assert (tmp_path / "a").stat().st_mode & 0o7111 == 0


def test_no_link_that_lies_in_the_folder_is_followed(tmp_path: Path) -> None:
    """AR-01."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_bytes(b"victim")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").symlink_to("../outside/victim")
    (folder / "sub").symlink_to("../outside")
    outcome = export([artifact("file"), artifact("sub/victim"), artifact("sub/new"), artifact("good")], folder)
    assert files(outside) == {"victim": b"victim"}
    assert not (folder / "file").is_symlink()
    assert [skipped.name for skipped in outcome.skipped] == ["sub/victim", "sub/new"]
    assert (folder / "good").read_bytes() == b"data"


@pytest.mark.parametrize(
    "name", ["../x", "/abs", "a/../../b", "..\\x", ".", "", "a//b", "nul\x00", "a\nb", "\u202ex", "\udcff"]
)
def test_a_name_that_is_not_safe_is_refused_again(tmp_path: Path, name: str) -> None:
    """AR-06: also when the artifact was not made by collecting."""
    folder = tmp_path / "folder"
    outcome = export([artifact(name)], folder)
    assert files(tmp_path) == {}
    assert len(outcome.skipped) == 1


def test_a_protected_name_is_not_exported(tmp_path: Path) -> None:
    outcome = export([artifact(".envrc"), artifact(".git/hooks/pre-commit"), artifact("plain")], tmp_path)
    assert files(tmp_path) == {"plain": b"data"}
    assert all("protected" in skipped.reason for skipped in outcome.skipped)
    assert len(outcome.skipped) == 2


def test_twins_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """AR-06: one name twice stands for any file system that takes two names for one."""
    outcome = export([artifact("a.txt", b"1"), artifact("a.txt", b"2"), artifact("a.txt", b"3")], tmp_path)
    assert files(tmp_path) == {"a.txt": b"1", "a (2).txt": b"2", "a (3).txt": b"3"}
    assert [path.name for path in outcome.written] == ["a.txt", "a (2).txt", "a (3).txt"]


def test_a_folder_in_the_place_of_a_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    export([artifact("a")], tmp_path)
    assert files(tmp_path) == {"a (2)": b"data"}
    assert (tmp_path / "a").is_dir()


def test_a_file_in_the_place_of_a_folder_is_kept_and_the_rest_is_written(tmp_path: Path) -> None:
    (tmp_path / "sub").write_bytes(b"file")
    outcome = export([artifact("sub/x"), artifact("y")], tmp_path)
    assert files(tmp_path) == {"sub": b"file", "y": b"data"}
    assert [skipped.name for skipped in outcome.skipped] == ["sub/x"]


def test_nothing_is_left_open_or_behind(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests left
    before = len(os.listdir("/proc/self/fd"))
    export([artifact("a"), artifact("b/c/d"), artifact("../x")], tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [name for name in files(tmp_path) if ".casemate-" in name]
