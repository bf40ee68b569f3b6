"""Folders of one process: there while it lives, and swept when it was killed, and no other."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from casemate.files import temporary
from casemate.files.temporary import TemporaryFolder, sweep

MAKES = """
import sys
from pathlib import Path
from casemate.files.temporary import TemporaryFolder
folder = TemporaryFolder("test", Path(sys.argv[1]))
(folder.path / "deep" / "er").mkdir(parents=True)
(folder.path / "deep" / "er" / "file").write_text("x")
print(folder.path, flush=True)
sys.stdin.read()
"""
LEAVES = """
import sys
from pathlib import Path
from casemate.files.temporary import TemporaryFolder
print(TemporaryFolder("test", Path(sys.argv[1])).path)
"""
CLOSES = """
import os, sys
from pathlib import Path
from casemate.files.temporary import TemporaryFolder
folder = TemporaryFolder("test", Path(sys.argv[1]))
os.closerange(3, 1024)
print(folder.path, flush=True)
sys.stdin.read()
"""
FORKS = """
import os, sys
from pathlib import Path
from casemate.files.temporary import TemporaryFolder
folder = TemporaryFolder("test", Path(sys.argv[1]))
(folder.path / "file").write_text("x")
if not os.fork():
    folder.remove()
    os._exit(0)
os.wait()
print(folder.path, flush=True)
sys.stdin.read()
"""
UPLOADS = """
import asyncio, sys
from casemate.model.operation import Audience, Principal
from casemate.operations.stores import Uploads
from casemate.operations.stores import TemporaryStore

async def pieces():
    yield b"sent" * 1000

async def keep():
    store, uploads = TemporaryStore(), Uploads()
    handle = await uploads.store_bytes(pieces(), Principal("one", Audience.AGENT))
    store.begin("0" * 32, {"started": 0})
    print(handle, flush=True)
    sys.stdin.read()

asyncio.run(keep())
"""


@contextmanager
def living(program: str, *arguments: str, **env: str) -> Iterator[str]:
    """What a process has said that still lives; it is killed afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_what_a_killed_process_has_left_is_swept_and_nothing_is_while_it_lives(tmp_path: Path) -> None:
    with living(MAKES, str(tmp_path)) as made:
        sweep(tmp_path)
        assert (Path(made) / "deep" / "er" / "file").read_text() == "x"
    assert Path(made).exists()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_uploads_and_runs_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    with living(UPLOADS, TMPDIR=str(tmp_path)) as handle:
        sweep(tmp_path)
        assert [path.read_bytes() for path in tmp_path.rglob(handle)] == [b"sent" * 1000]
        assert len(list(tmp_path.rglob("0" * 32))) == 1
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_folder_of_the_same_process_is_not_swept(tmp_path: Path) -> None:
    one = TemporaryFolder("test", tmp_path)
    sweep(tmp_path)
    other = TemporaryFolder("test", tmp_path)
    sweep(tmp_path)
    assert {one.path, other.path} == set(tmp_path.iterdir())
    one.remove()
    one.remove()
    assert {other.path} == set(tmp_path.iterdir())
    other.remove()


def _left(folder: Path) -> Path:
    """A folder such as a killed process leaves."""
    done = subprocess.run([sys.executable, "-c", LEAVES, str(folder)], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_a_folder_is_not_swept_while_its_process_lives_also_where_that_has_closed_all_descriptors(
    tmp_path: Path,
) -> None:
    with living(CLOSES, str(tmp_path)) as made:
        with open(Path(made) / temporary._LOCK_FILE, "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it
        sweep(tmp_path)
        assert Path(made).exists()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_has_left_that_nobody_has_waited_for_is_swept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LEAVES, str(tmp_path)], stdout=subprocess.DEVNULL) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert len(list(tmp_path.iterdir())) == 1
        sweep(tmp_path)
        assert list(tmp_path.iterdir()) == []


def said_by(left: Path, maker: str) -> None:
    """Have the mark of a folder say that this process has made it, with what ``maker`` changes of that."""
    mark = left / temporary._LOCK_FILE
    machine = mark.read_bytes().partition(b"\n")[0]
    process, began, namespace = temporary._maker().decode().split()
    mark.write_bytes(machine + b"\n" + maker.format(process=process, began=began, namespace=namespace).encode())


@pytest.mark.parametrize(
    ("maker", "stays"),
    [
        pytest.param("{process} {began} {namespace}", True, id="this-process"),
        pytest.param("{process} {began}1 {namespace}", False, id="an-id-that-is-anothers-now"),
        pytest.param("4194304 {began} {namespace}", False, id="an-id-that-nobody-has"),
        pytest.param("4194304 {began} {namespace}1", False, id="another-namespace"),
        pytest.param("{process} {began}", True, id="not-whole"),
        pytest.param("x {began} {namespace}", True, id="no-id"),
        pytest.param("99999999999999999999 {began} {namespace}", True, id="no-id-that-there-can-be"),
        pytest.param("", False, id="of-nobody"),
    ],
)
def test_it_is_swept_where_whoever_made_it_is_certainly_gone(tmp_path: Path, maker: str, stays: bool) -> None:
    left = _left(tmp_path)
    said_by(left, maker)
    sweep(tmp_path)
    assert left.exists() == stays


@pytest.mark.parametrize(("boot", "stays"), [(b"this", True), (b"another", False)])
def test_no_process_lives_on_when_the_machine_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: bytes, stays: bool
) -> None:
    monkeypatch.setattr(temporary, "_machine", lambda: (b"this", b"machine,name"))
    left = _left(tmp_path)
    (left / temporary._LOCK_FILE).write_bytes(boot + b" machine,name\n" + temporary._maker())
    sweep(tmp_path)
    assert left.exists() == stays


def _of_another_machine(left: Path, _folder: Path) -> None:
    (left / temporary._LOCK_FILE).write_bytes(b"another-start another-machine,name")


def _of_no_machine(left: Path, _folder: Path) -> None:
    (left / temporary._LOCK_FILE).write_bytes(b"")


def _without_a_lock(left: Path, _folder: Path) -> None:
    (left / temporary._LOCK_FILE).unlink()


def _with_a_fifo_for_a_lock(left: Path, _folder: Path) -> None:
    (left / temporary._LOCK_FILE).unlink()
    os.mkfifo(left / temporary._LOCK_FILE)


def _with_a_link_for_a_lock(left: Path, folder: Path) -> None:
    (left / temporary._LOCK_FILE).rename(folder / "mark")
    (left / temporary._LOCK_FILE).symlink_to(folder / "mark")


def _of_another_name(left: Path, folder: Path) -> None:
    left.rename(folder / "others")


def _behind_a_link(left: Path, folder: Path) -> None:
    left.rename(folder / "others")
    left.symlink_to(folder / "others")


@pytest.mark.parametrize(
    "change",
    [
        _of_another_machine,
        _of_no_machine,
        _without_a_lock,
        _with_a_fifo_for_a_lock,
        _with_a_link_for_a_lock,
        _of_another_name,
        _behind_a_link,
    ],
)
def test_what_is_not_certainly_left_by_a_process_of_this_machine_stays(tmp_path: Path, change: object) -> None:
    assert callable(change)
    left = _left(tmp_path)
    (left / "file").write_text("x")
    change(left, tmp_path)
    before = sorted(map(str, tmp_path.rglob("*")))
    sweep(tmp_path)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_what_is_left_is_swept_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    left = _left(tmp_path)
    (left / "link").symlink_to(outside)
    (left / "sub").mkdir()
    (left / "sub" / "link").symlink_to(outside)
    sweep(tmp_path)
    assert not left.exists()
    assert (outside / "kept").exists()


@pytest.mark.full
def test_one_that_is_too_deep_to_be_removed_keeps_no_other_from_being_swept(tmp_path: Path) -> None:
    left = [_left(tmp_path) for _ in range(2)]
    for one in left:
        inner = os.open(one, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("a", dir_fd=inner)
            outer, inner = inner, os.open("a", os.O_RDONLY, dir_fd=inner)
            os.close(outer)
        os.close(inner)
    others = [_left(tmp_path) for _ in range(8)]
    try:
        sweep(tmp_path)
        assert not any(other.exists() for other in others)
    finally:
        subprocess.run(["rm", "-rf", *left], check=True)  # also in Pythons that cannot


@pytest.mark.root_only
@pytest.mark.parametrize("what", ["", temporary._LOCK_FILE])
def test_what_is_somebody_elses_is_not_swept(tmp_path: Path, what: str) -> None:
    left = _left(tmp_path)
    os.chown(left / what, 12345, 12345)
    sweep(tmp_path)
    assert left.exists()


def _removed(lock: str) -> Iterator[None]:
    shutil.rmtree(os.path.dirname(lock))
    yield


def _looked_at(lock: str) -> Iterator[None]:
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("meanwhile", [_removed, _looked_at])
def test_whoever_makes_a_folder_that_is_removed_or_looked_at_meanwhile_gets_another_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[str], Iterator[None]]
) -> None:
    taken: list[str] = []
    flock = fcntl.flock

    def others_first(file: int, operation: int) -> None:
        if not taken:
            taken.append(os.readlink(f"/proc/self/fd/{file}"))
            others.enter_context(contextmanager(meanwhile)(taken[0]))
        flock(file, operation)

    with ExitStack() as others, monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", others_first)
        made = TemporaryFolder("test", tmp_path)
    assert os.path.dirname(taken[0]) != str(made.path)
    assert [made.path] == list(tmp_path.iterdir())
    made.remove()


def test_a_forked_process_removes_no_folder(tmp_path: Path) -> None:
    with living(FORKS, str(tmp_path)) as made:
        assert (Path(made) / "file").read_text() == "x"
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_who_has_closed_all_descriptors_keeps_the_one_that_has_the_number_of_the_lock_now(tmp_path: Path) -> None:
    made = TemporaryFolder("test", tmp_path)
    own = os.open("/dev/null", os.O_RDONLY)
    os.dup2(own, made._lock)
    number = made._lock
    made.remove()
    assert os.fstat(number).st_ino == os.fstat(own).st_ino
    os.close(number)
    os.close(own)
    assert not made.path.exists()


def test_on_a_file_system_without_locks_a_folder_is_made_and_none_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: int, _operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    made = TemporaryFolder("test", tmp_path)
    sweep(tmp_path)
    assert made.path.exists()
    made.remove()
