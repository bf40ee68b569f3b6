"""An index by which git would not show what was changed is found, and is not written back."""

from __future__ import annotations

import struct
import subprocess
import tracemalloc
from io import BytesIO
from pathlib import Path

import pytest

from casemate import sync
from casemate.workspace.git_index import SHA1, hidden_in_own, hidden_paths


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.test")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "repository"
    (folder / "deep" / "er").mkdir(parents=True)
    git(folder, "init", "-q", f"--object-format={getattr(request, 'param', 'sha1')}")
    for name in ("Makefile", "deep/a", "deep/er/b", "x" * 200):
        (folder / name).write_text("first\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.mark.parametrize("repository", ["sha1", "sha256"], indirect=True)
@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("flag", ["--skip-worktree", "--assume-unchanged"])
def test_what_an_index_hides_is_found(repository: Path, version: str, flag: str) -> None:
    git(repository, "update-index", "--index-version", version)
    hidden, hash_size = hidden_in_own(BytesIO((repository / ".git" / "index").read_bytes()))
    assert (hidden, hash_size) == (set(), 32 if "sha256" in (repository / ".git/config").read_text() else SHA1)
    git(repository, "update-index", flag, "Makefile", "deep/er/b")
    assert hidden_paths(BytesIO((repository / ".git" / "index").read_bytes()), hash_size) == {b"Makefile", b"deep/er/b"}


def test_an_index_that_reads_well_with_other_hashes_than_the_repository_has_is_not_read() -> None:
    file = index_of(b"\xff" * 72 + b"\0\1\0a\0")
    assert hidden_in_own(file) == (set(), 32)
    with pytest.raises(ValueError, match=r"index|path"):
        hidden_paths(file, SHA1)


@pytest.mark.parametrize("data", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\5", b"x" * 100, b"DIRC\0\0\0\x09\0\0\0\0"])
def test_what_is_no_index_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a git index"):
        hidden_paths(BytesIO(data), SHA1)


ENTRY = bytes(60) + b"\x0f\xff"  # of a path whose length is not said


def index_of(*entries: bytes) -> BytesIO:
    return BytesIO(b"DIRC" + struct.pack(">II", 4, len(entries)) + b"".join(entries))


@pytest.mark.parametrize(
    "file",
    [
        index_of(ENTRY + b"\xff" * 400_000),
        index_of(ENTRY + b"\x80" * 9 + b"\0a\0"),
        index_of(ENTRY + b"\0" + b"a" * 4097 + b"\0"),
        index_of(ENTRY + b"\0" + b"a" * 4095 + b"\0", ENTRY + b"\0bc\0"),
        index_of(bytes(60) + b"\x0f\xfe\xff\xff\xff\xff\xff\xff\x7fa\0"),
        index_of(bytes(60) + b"\0\3\0a\0c\0"),
    ],
    ids=["endless", "long number", "long path", "long path in parts", "more taken away than there is", "a zero within"],
)
def test_an_index_with_numbers_or_paths_that_cannot_be_is_not_read(file: BytesIO) -> None:
    with pytest.raises(ValueError, match=r"index|path"):
        hidden_paths(file, SHA1)


def test_paths_of_many_bytes_in_a_small_index_take_no_memory() -> None:
    file = index_of(ENTRY + b"\0" + b"a" * 4095 + b"\0", *[b"\0" * 60 + b"\x8f\xff\1b\0"] * 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too long"):
            hidden_paths(file, SHA1, known={b"a" * 4095, b"a" * 4094 + b"b"})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("version", ["2", "4"])
def test_a_large_index_of_git_is_read(repository: Path, version: str) -> None:
    blob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    names = [f"services/component-{n // 50:05}/src/main/java/org/example/File{n:06}.java" for n in range(100_000)]
    told = "".join(f"100644 {blob} 0\t{name}\n" for name in names).encode()
    for words, line in ((["--index-info"], told), (["--skip-worktree", "--stdin"], f"{names[-1]}\n".encode())):
        command = ["git", "update-index", "--index-version", version, *words]
        subprocess.run(command, cwd=repository, input=line, check=True)
    with (repository / ".git" / "index").open("rb") as file:
        assert hidden_paths(file, SHA1) == {names[-1].encode()}


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
