"""Writing beneath a folder: whole or not at all, through no link, without dangerous bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from casemate.files.beneath import Attributes, HeldFolder, write_file, write_link
from casemate.supervisor.trees.walk import enter_folder, open_beneath


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield folder
    os.close(folder)


def test_a_file_never_gets_setuid_setgid_or_sticky_bits(folder: int, tmp_path: Path) -> None:
    """AR-13."""
    write_file(folder, "file", [b"x"], Attributes(mode=0o7755))
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o755


def test_content_that_fails_on_the_way_changes_nothing(folder: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    def failing() -> Iterator[bytes]:
        yield b"new"
        raise OSError(5, "lost")

    with pytest.raises(OSError, match="lost"):
        write_file(folder, "file", failing())
    with pytest.raises(IsADirectoryError):
        (tmp_path / "sub").mkdir()
        write_link(folder, "sub", "target")
    assert (tmp_path / "file").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "sub"]


def test_no_component_may_be_a_link(folder: int, tmp_path: Path) -> None:
    """AR-01."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("link", "dangling"):
        with pytest.raises(NotADirectoryError):
            open_beneath(folder, (name, "below"), make=True)
        with pytest.raises(NotADirectoryError):
            enter_folder(folder, name)
    assert list((tmp_path / "real").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()
    os.close(open_beneath(folder, ("real", "a", "b"), make=True))
    assert (tmp_path / "real" / "a" / "b").is_dir()


def test_a_folder_is_not_held_by_a_path_with_a_link_on_its_way(tmp_path: Path) -> None:
    (tmp_path / "real" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    held = HeldFolder(str(tmp_path / "real" / "folder"))
    (tmp_path / "real" / "folder").rename(tmp_path / "moved")
    assert os.fstat(held.fd).st_ino == (tmp_path / "moved").stat().st_ino, "the control"
    (tmp_path / "real" / "folder").mkdir()
    with pytest.raises(OSError, match="a link leads there"):
        HeldFolder(str(tmp_path / "link" / "folder"))
