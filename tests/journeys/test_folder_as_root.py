"""Folders that only root can have: of somebody else, closed to others, with other file systems in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.journeys import folders

import casemate
from casemate import InvalidArgument, sync

pytestmark = pytest.mark.root_only
NOBODY = 65534


def owners(folder: Path) -> set[tuple[int, int]]:
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("owner", [0, NOBODY, 12345])
def test_a_folder_of_anybodys_with_closed_files_is_read_and_changed_and_stays_theirs(
    audit: Path, tmp_path: Path, owner: int
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folders.fill(folder)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
    folder.chmod(0o700)
    before = folders.tree(folder)
    with sync.Sandbox(audit=audit, workspace=folder) as sandbox:
        execution = sandbox.run(folders.CHANGES)
    assert execution.ok, execution.stderr
    assert folders.tree(folder) == folders.changed(before)
    assert owners(folder) == {(owner, owner)}
    assert (folder / "change.txt").stat().st_mode & 0o777 == 0o600


def test_a_file_of_somebody_elses_in_the_folder_stays_closed(audit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    os.chown(folder, NOBODY, NOBODY)
    (folder / "secret").chmod(0o600)  # root's, in a folder of nobody's
    with sync.Sandbox(audit=audit, workspace=folder) as sandbox:
        execution = sandbox.run("print(open('secret').read())")
    assert "PermissionError" in execution.stderr
    assert (folder / "secret").read_text() == "secret"


def test_a_root_owned_folder_that_is_written_through_keeps_its_owner(audit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    (folder / "old").write_text("old")
    (folder / "old").chmod(0o600)
    with sync.Sandbox(audit=audit, workspace=folder, workspace_mode="direct") as sandbox:
        execution = sandbox.run("open('old', 'a').write(' and new'); open('made', 'w').write('x')")
    assert execution.ok, execution.stderr
    assert (folder / "old").read_text() == "old and new"
    assert owners(folder) == {(0, 0)}


SUBMOUNT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
check(libc.unshare(0x00020000))
check(libc.mount(b"none", b"/", None, 16384 | (1 << 18), None))
folder = sys.argv[1]
check(libc.mount(b"sub", os.fsencode(folder + "/mounted"), b"tmpfs", 0, b"size=1m"))
open(folder + "/mounted/inner", "w").write("inner")
from casemate import sync, CasemateError
code = '''
import os
try: print("inner:", open("mounted/inner").read())
except OSError as error: print("inner: hidden")
try: open("mounted/new", "w").write("new")
except OSError: pass
open("plain", "w").write("plain")
'''
with sync.Sandbox(audit=sys.argv[2], workspace=folder, workspace_mode=sys.argv[3]) as sandbox:
    try: execution = sandbox.run(code)
    except CasemateError as error: print(type(error).__name__); raise SystemExit
    print(execution.status, execution.stdout.strip(), sorted(file.name for file in execution.skipped))
print(sorted(os.listdir(folder)), sorted(os.listdir(folder + "/mounted")))
"""


@pytest.mark.full
@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_another_file_system_in_the_folder_is_not_written_to_behind_ones_back(
    audit: Path, tmp_path: Path, mode: str
) -> None:
    folder = tmp_path / "folder"
    (folder / "mounted").mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(casemate.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", SUBMOUNT, str(folder), str(audit), mode], env=environment,
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    if mode == "overlay":  # an overlay does not cross mounts: what is mounted there is not seen, and not changed
        assert said[0].startswith("ok inner: hidden"), done.stdout
        assert said[-1] == "['mounted', 'plain'] ['inner']"
    else:
        assert said[0] == "InvalidArgument" or said[0].startswith("ok inner: "), done.stdout


def test_a_folder_whose_file_system_cannot_be_layered_is_refused_with_the_reason(audit: Path) -> None:
    with pytest.raises(InvalidArgument) as raised, sync.Sandbox(audit=audit, workspace="/proc/self/task") as sandbox:
        sandbox.run("print(1)")
    assert raised.value.argument == "workspace"


def test_no_program_can_bring_a_closed_file_of_somebody_elses_into_a_review(audit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("replaced", "removed"):
        (folder / name).write_text("secret\n")
        (folder / name).chmod(0o600)  # root's, in a folder of nobody's
    os.chown(folder, NOBODY, NOBODY)
    with sync.Sandbox(audit=audit, workspace=folder, workspace_mode="review") as sandbox, sandbox.session() as session:
        for code in ("os.remove('removed')", "os.rename('new', 'replaced')", "os.chmod('removed', 0o644)"):
            assert session.run(f"import os; open('new', 'w').write('x'); {code}").status == "failed"
        assert [one.path for one in session.diff().changes] == ["new"]
