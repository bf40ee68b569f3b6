"""An index by which git would not show what was changed is found, and is not written back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from casemate import sync
from casemate.workspace.git_index import hidden_paths


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.test")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "deep" / "er").mkdir(parents=True)
    git(folder, "init", "-q")
    for name in ("Makefile", "deep/a", "deep/er/b", "x" * 200):
        (folder / name).write_text("first\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("flag", ["--skip-worktree", "--assume-unchanged"])
def test_what_an_index_hides_is_found(repository: Path, version: str, flag: str) -> None:
    git(repository, "update-index", "--index-version", version)
    assert hidden_paths((repository / ".git" / "index").read_bytes()) == frozenset()
    git(repository, "update-index", flag, "Makefile", "deep/er/b")
    assert hidden_paths((repository / ".git" / "index").read_bytes()) == {b"Makefile", b"deep/er/b"}


@pytest.mark.parametrize("data", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\5", b"x" * 100, b"DIRC\0\0\0\x09\0\0\0\0"])
def test_what_is_no_index_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="no index"):
        hidden_paths(data)


def test_an_index_that_hides_a_change_is_not_written_back(repository: Path, tmp_path: Path) -> None:
    changes = "echo evil > Makefile; git -c safe.directory=* update-index --skip-worktree Makefile && echo did"
    with sync.Sandbox(workspace=repository, audit=tmp_path / "audit.db") as sandbox:
        done = sandbox.run(changes, language="shell")
    assert done.stdout == "did\n", done.text
    (left,) = [one for one in done.skipped if one.name == ".git/index"]
    assert "hide changes from git" in left.reason
    assert "Makefile" in left.reason
    shown = subprocess.run(["git", "diff", "--stat"], cwd=repository, capture_output=True, text=True, check=True)
    assert "Makefile" in shown.stdout


def test_an_index_that_hides_nothing_is_written_back(repository: Path, tmp_path: Path) -> None:
    changes = "echo more > new; git -c safe.directory=* add new && echo did"
    with sync.Sandbox(workspace=repository, audit=tmp_path / "audit.db") as sandbox:
        done = sandbox.run(changes, language="shell")
    assert done.stdout == "did\n", done.text
    assert [one for one in done.skipped if one.name == ".git/index"] == []
    shown = subprocess.run(["git", "status", "--short"], cwd=repository, capture_output=True, text=True, check=True)
    assert shown.stdout == "A  new\n"
