"""What is found to hide: the same by either walk, whatever has changed since the last one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casemate.errors import InvalidArgument
from casemate.files.protected import PROTECTED
from casemate.workspace import guarding, listing
from casemate.workspace.guarding import HIDDEN, Guard
from casemate.workspace.upper import ROOTS, USERS, covers

NAMES = st.sampled_from(["a", "b", ".env", ".envrc", "c.env", "é"])
CHANGES = st.lists(st.tuples(st.sampled_from(["file", "folder", "link", "remove", "rename"]),
                             st.lists(NAMES, min_size=1, max_size=3), NAMES), max_size=12)  # fmt: skip


def change(root: Path, what: str, parts: list[str], other: str) -> None:
    path = root.joinpath(*parts)
    try:
        if what == "remove":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif what == "rename":
            path.rename(path.parent / other)
        elif what == "folder":
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(other) if what == "link" else path.write_text("x")
    except OSError:
        pass  # what is there does not allow it


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(CHANGES, min_size=1, max_size=4), seen=st.booleans())
def test_the_quick_walk_finds_what_the_thorough_one_finds_after_any_changes(
    rounds: list[list[tuple[str, list[str], str]]], seen: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_FEW", 0)
        root = Path(name).resolve()
        shown = (f"{root}/a/.env",) if seen else ()
        quick, thorough = Guard(usual=HIDDEN, seen=shown), Guard(usual=HIDDEN, seen=shown, hidden=("/nowhere/at/all",))
        for changes in rounds:
            for one in changes:
                change(root, *one)
            assert quick.find(root) == thorough.find(root)


def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in a folder has been there for long."""
    monkeypatch.setattr(listing, "_FEW", 0)
    monkeypatch.setattr(listing, "_COARSE", -(10**18))


def test_a_folder_that_has_not_changed_is_not_listed_again_and_one_that_has_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(monkeypatch)
    (tmp_path / "a/b").mkdir(parents=True)
    listed: list[str] = []
    real = os.scandir

    def scandir(path: str) -> object:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    guard = Guard(usual=HIDDEN)
    assert guard.find(tmp_path).hidden == ()
    assert len(listed) == 3
    assert guard.find(tmp_path).hidden == ()
    assert len(listed) == 3
    (tmp_path / "a/b/.env").touch()
    assert guard.find(tmp_path).hidden == ("a/b/.env",)
    assert listed[3:] == [f"{tmp_path}/a/b"]


def test_a_folder_that_has_just_changed_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_FEW", 0)
    guard, before = Guard(usual=HIDDEN), tmp_path.stat()
    assert guard.find(tmp_path).hidden == ()
    (tmp_path / ".env").touch()
    real = os.lstat
    # As on a file system whose clock is so coarse that both came in one tick of it.
    monkeypatch.setattr(os, "lstat", lambda path: before if str(path) == str(tmp_path) else real(path))
    assert guard.find(tmp_path).hidden == (".env",)


def test_a_folder_of_a_file_system_that_is_not_known_is_always_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(monkeypatch)
    monkeypatch.setattr(listing, "_LOCAL", {"ext9"})
    guard, before = Guard(usual=HIDDEN), tmp_path.stat()
    assert guard.find(tmp_path).hidden == ()
    (tmp_path / ".env").touch()
    real = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: before if str(path) == str(tmp_path) else real(path))
    assert guard.find(tmp_path).hidden == (".env",)


def test_no_more_folders_are_kept_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aged(monkeypatch)
    monkeypatch.setattr(listing, "_MOST_KEPT", 2)
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".env").touch()
    guard = Guard(usual=HIDDEN)
    for _ in range(3):
        assert guard.find(tmp_path).hidden == ("a/.env", "b/.env", "c/.env", "d/.env")


@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
def test_too_much_to_look_at_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: tuple[str, ...]
) -> None:
    monkeypatch.setattr(guarding, "_MOST_LOOKED_AT", 3)
    for name in "abcde":
        (tmp_path / name).touch()
    with pytest.raises(InvalidArgument, match="too many to search"):
        Guard(usual=HIDDEN, hidden=hidden).find(tmp_path)


def planted(root: Path, number: int, name: str = "{}") -> None:
    for each in range(number):
        (root / name.format(each)).mkdir(parents=True)
        (root / name.format(each) / ".env").touch()


def test_more_than_can_be_hidden_is_an_error_that_says_where_most_lie_and_why_and_what_helps(tmp_path: Path) -> None:
    planted(tmp_path, 3, "own{}")
    planted(tmp_path, 398, "deep/planted/{}")
    with pytest.raises(InvalidArgument) as raised:
        Guard(usual=HIDDEN).find(tmp_path)
    assert "401 names" in str(raised.value)
    assert "400 is the limit, because each takes a mount" in str(raised.value)
    assert "'deep/planted/0/.env'" in str(raised.value)
    assert "398 of them lie in 'deep/planted'" in str(raised.value)
    assert "Remove those" in raised.value.remediation
    assert "filesystem.denyRead" in raised.value.remediation
    found = Guard(usual=HIDDEN, hidden=(f"{tmp_path}/deep/planted",)).find(tmp_path)
    assert found.hidden == ("deep/planted", "own0/.env", "own1/.env", "own2/.env")
    shutil.rmtree(tmp_path / "own1")
    assert len(Guard(usual=HIDDEN).find(tmp_path).hidden) == 400


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were listed."""
    found: list[str] = []
    real = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        found.append(str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return found


@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
def test_nothing_is_looked_at_once_there_is_too_much_to_hide_however_much_there_is(
    tmp_path: Path, listed: list[str], hidden: tuple[str, ...]
) -> None:
    planted(tmp_path, 1500, "deep/{}")
    with pytest.raises(InvalidArgument) as raised:
        Guard(usual=HIDDEN, hidden=hidden).find(tmp_path)
    assert "at least 801 names" in str(raised.value)
    assert "801 of them lie in 'deep'" in str(raised.value)
    assert "Remove those" in raised.value.remediation
    assert len(listed) < 900


@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
def test_folders_that_cannot_be_listed_are_no_way_to_have_more_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: tuple[str, ...]
) -> None:
    for number in range(1500):
        (tmp_path / str(number)).mkdir()
    tried, real = [], os.scandir

    def refused(path: str) -> Iterator[os.DirEntry[str]]:
        tried.append(path)
        if str(path) != str(tmp_path):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(InvalidArgument, match="at least 801 names"):
        Guard(usual=HIDDEN, hidden=hidden).find(tmp_path)
    assert len(tried) < 900


def test_names_that_are_to_be_kept_are_counted_likewise(tmp_path: Path, listed: list[str]) -> None:
    for number in range(1500):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / ".envrc").touch()
    with pytest.raises(InvalidArgument, match="at least 801 names"):
        Guard(protection=PROTECTED).find(tmp_path)
    assert len(listed) < 900


@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
def test_names_beneath_what_turns_out_to_be_hidden_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: tuple[str, ...]
) -> None:
    """A folder with one in it that cannot even be looked at is hidden as a whole, after names in it were found."""
    for outer in "xyz":
        planted(tmp_path / outer, 300)
        (tmp_path / outer / "last").mkdir()

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: str | Path) -> object:
            if str(path).endswith("last"):
                raise OSError(36, "File name too long")
            return real(path)

        return call

    for name in ("scandir", "lstat"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    assert Guard(usual=HIDDEN, hidden=hidden).find(tmp_path).hidden == ("x", "y", "z")


@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
def test_a_folder_with_more_in_it_than_is_looked_at_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: tuple[str, ...]
) -> None:
    monkeypatch.setattr(guarding, "_MOST_LOOKED_AT", 30)
    for number in range(100):
        (tmp_path / str(number)).mkdir()
    read: list[str] = []
    real = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        def each() -> Iterator[os.DirEntry[str]]:
            for entry in found:
                read.append(entry.name)
                yield entry

        with real(path) as found:
            yield each()

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InvalidArgument, match="too many to search"):
        Guard(usual=HIDDEN, hidden=hidden).find(tmp_path)
    assert len(read) == 31


def test_names_that_are_too_long_together_are_an_error_that_shows_them_escaped_and_cut(tmp_path: Path) -> None:
    for first in "abcd":
        planted(tmp_path, 70, f"{first}/\x1b[31m{'x' * 240}{{}}")
    with pytest.raises(InvalidArgument, match="280 names") as raised:
        Guard(usual=HIDDEN).find(tmp_path)
    assert "bytes, and a message to the wall has room for 65536" in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert "of them lie in" not in str(raised.value)
    assert len(str(raised.value)) < 1500


def test_what_cannot_be_watched_for_want_of_descriptors_is_an_error_and_none_is_held(tmp_path: Path) -> None:
    program = """
import os, resource, sys
from pathlib import Path
from casemate.errors import Unavailable
from casemate.workspace.guarding import Watched
folder, watched = Path(sys.argv[1]), Watched()
before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 5, len(before) + 5))
try:
    watched.add(folder, ("gone", *(f"{n}/.env" for n in range(20))))
except Unavailable as error:
    print(error, error.remediation, os.listdir("/proc/self/fd") == before)
"""
    planted(tmp_path, 20)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Too many open files" in done.stdout
    assert "ulimit -n" in done.stdout
    assert done.stdout.endswith("True\n")


@pytest.mark.user_only
@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
@pytest.mark.parametrize("mode", [0o000, 0o100, 0o300, 0o400, 0o600])
def test_a_folder_that_may_not_be_listed_is_hidden_whole(tmp_path: Path, hidden: tuple[str, ...], mode: int) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/.env").touch()
    (tmp_path / "closed").chmod(mode)
    try:
        assert Guard(usual=HIDDEN, hidden=hidden).find(tmp_path).hidden == ("closed",)
    finally:
        (tmp_path / "closed").chmod(0o700)


@pytest.mark.root_only
def test_root_that_may_not_list_a_folder_hides_it_whoever_owns_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without CAP_DAC_OVERRIDE: the cell may act as the owner."""
    (tmp_path / "closed").mkdir()
    os.chown(tmp_path / "closed", 1000, 1000)
    real = os.scandir

    def refused(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert Guard(usual=HIDDEN).find(tmp_path).hidden == ("closed",)


@pytest.mark.user_only
@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
def test_a_folder_that_may_be_listed_and_not_entered_is_hidden_where_folders_lie_in_it(
    tmp_path: Path, hidden: tuple[str, ...]
) -> None:
    """Its owner, who the cell may be, can change its permission bits."""
    (tmp_path / "outer/closed/inner/deep").mkdir(parents=True)
    (tmp_path / "outer/closed/inner/deep/.env").touch()
    (tmp_path / "outer/closed").chmod(0o400)
    try:
        assert Guard(usual=HIDDEN, hidden=hidden).find(tmp_path).hidden == ("outer/closed",)
    finally:
        (tmp_path / "outer/closed").chmod(0o700)


@pytest.mark.parametrize("hidden", [(), ("/nowhere",)])
def test_what_lies_too_deep_to_be_named_is_hidden_with_a_folder_above_it(
    tmp_path: Path, hidden: tuple[str, ...]
) -> None:
    top = folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(4096 // 201 + 1):
        os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        if folder != top:
            os.close(folder)
        folder = below
    os.close(os.open(".env", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    try:
        (found,) = Guard(usual=HIDDEN, hidden=hidden).find(tmp_path).hidden
        assert set(found) == {"d", "/"}
    finally:
        os.close(top)
        shutil.rmtree(tmp_path)


_REMOUNTED = """
import subprocess, sys
from pathlib import Path
from casemate.workspace import listing
from casemate.workspace.guarding import HIDDEN, Guard
listing._COARSE, listing._FEW, base = -(10**12), 0, Path(sys.argv[1])
def mount(lower):
    layers = f"lowerdir={base}/upper:{base}/{lower},xino=off"
    done = subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(base / "merged")])
    if done.returncode:
        sys.exit(9)
for name in ("upper/folder/in", "without/folder/in", "with/folder/in", "merged"):
    (base / name).mkdir(parents=True)
(base / "with/folder/in/.env").touch()
guard = Guard(usual=HIDDEN)
mount("without")
for _ in range(2):
    assert guard.find(base / "merged").hidden == ()
subprocess.run(["umount", str(base / "merged")], check=True)
mount("with")
assert guard.find(base / "merged").hidden == ("folder/in/.env",)
"""


def test_another_overlay_with_the_same_numbers_and_times_is_looked_through_anew(tmp_path: Path) -> None:
    namespaces = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    program = [*namespaces, sys.executable, "-c", _REMOUNTED, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 9 or "unshare failed" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_the_link_and_what_it_leads_to_in_the_folder_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.env").symlink_to("../real")
    (tmp_path / ".env").symlink_to("/etc/passwd")
    assert Guard(usual=HIDDEN).find(tmp_path).hidden == (".env", "real", "sub/.env")


@pytest.mark.parametrize(("path", "is_hidden"), [
    (".env", True), ("a/.env", True), ("a/.env/b", True), (".envrc", False), ("a/b", False), ("x.env", False),
])  # fmt: skip
def test_a_name_is_hidden_by_what_it_is_called(tmp_path: Path, path: str, is_hidden: bool) -> None:
    assert Guard(usual=HIDDEN).hides(tmp_path / ".env" / "in it", path) is is_hidden


def test_what_lies_over_a_folder_covers_files_and_new_folders_but_not_what_is_merged(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "merged").mkdir(parents=True)
    (upper / "merged/own").touch()
    (upper / "new/in").mkdir(parents=True)
    try:
        os.setxattr(upper / "new", "user.overlay.opaque", b"y")
        os.setxattr(upper / "merged", "user.overlay.overlay.opaque", b"y")
    except OSError:
        pytest.skip("this file system keeps no attributes")
    fd = os.open(upper, os.O_RDONLY)
    try:
        found = [path for path in ("merged/own", "merged/own/x", "merged/x", "merged", "new/x", "new/in/x", "y")
                 if covers(fd, path, USERS)]  # fmt: skip
        assert not covers(fd, "new/x", ROOTS)  # any program's mark where the overlay has its own elsewhere
    finally:
        os.close(fd)
    assert found == ["merged/own", "merged/own/x", "new/x", "new/in/x"]
