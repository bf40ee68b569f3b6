"""What is decided for cells without namespaces: their places, their system calls, what became of a copied folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest
from tests.support.waiting import MAX_WAIT
from tests.unit.supervisor.bpf_machine import ALLOWED, ARCHITECTURES, NOTIFIED, answer, seccomp_data
from tests.unit.supervisor.child import NO_FILTER, told_by

from casemate.supervisor import kernel, seccomp
from casemate.supervisor.plain import maker, notified, places, syscall_policy
from casemate.supervisor.syscall_numbers import numbers
from casemate.supervisor.trees.remove import remove_folder, remove_unused

THERE = [(place, place) for place in ("/tmp/there", "/usr")]
PLACES = places.table([*places.own("/base/cell"), ("/opt/casemate", "/lib/casemate/guest"), *THERE])
NATIVE = seccomp.program(kernel.machine, memory_is_counted=True)
NARROW = seccomp.program(kernel.machine, memory_is_counted=True, policy=syscall_policy.policy())
INET, INET6 = b"\2\0", b"\n\0"


def judged(name: str, *arguments: int) -> int | str:
    data = seccomp_data(ARCHITECTURES[kernel.machine], numbers(kernel.machine)[name], *arguments)
    return answer(NARROW, data)


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/workspace", "/base/cell/workspace"),
        ("/home/user/.cache", "/base/cell/tmp/.home/.cache"),
        ("/tmp/x", "/base/cell/tmp/x"),
        ("/tmp/there/bin", "/tmp/there/bin"),
        ("/opt/casemate/bin", "/lib/casemate/guest/bin"),
        ("/workspaces", "/workspaces"),
        ("/usr/bin", "/usr/bin"),
        ("workspace/x", "workspace/x"),
    ],
)
def test_a_place_of_a_cell_is_found_in_its_folder_and_nothing_else_is_moved(path: str, real: str) -> None:
    assert places.real(path, PLACES) == real


def test_every_path_of_a_list_is_moved_and_a_text_that_only_holds_one_is_not() -> None:
    argv, env = places.command(["/usr/bin/x", "see /tmp/x"], {"PATH": "/opt/casemate/bin:/usr/bin:/tmp"}, PLACES)
    assert argv == ["/usr/bin/x", "see /tmp/x"]
    assert env["PATH"] == "/lib/casemate/guest/bin:/usr/bin:/base/cell/tmp"


@pytest.mark.parametrize(
    "call",
    [
        ("setpriority", 2, 0),
        ("setpriority", 1, 4711),
        ("ioprio_set", 3, 0),
        ("fcntl", 3, 8, 4711),
        ("sendmsg", 3, 0, 0x20000000),
        ("socketpair", 1, 2),
        ("ptrace",),
        ("setsockopt", 3, 1, 25),
        ("setsockopt", 3, 1 << 32 | 1, 62),
    ],
)
def test_what_reaches_other_processes_or_files_that_are_merely_readable_is_refused(call: tuple[str, int]) -> None:
    assert judged(*call) == errno.EPERM


def test_there_is_no_inotify_and_libraries_look_themselves() -> None:
    assert judged("inotify_init1") == judged("inotify_add_watch", 3, 0, 2) == errno.ENOSYS


@pytest.mark.parametrize(
    "call",
    [
        *((name,) for name in ("connect", "bind", "fchmod", "fchmodat", "utimensat", "fchown", "fchownat")),
        ("socket", 2, 1, 0),
        ("prlimit64", 4711, 7),
        ("sched_setaffinity", 4711),
        ("sched_setattr", 4711),
        ("setpriority", 0, 4711),
        ("ioprio_set", 1, 4711),
    ],
)
def test_what_the_supervisor_must_see_is_never_let_through(call: tuple[str, int]) -> None:
    assert judged(*call) == NOTIFIED


def test_the_narrower_list_permits_nothing_that_the_native_one_does_not() -> None:
    """Whatever the first arguments are, as far as a few values tell."""
    wider = [
        (name, first, second)
        for name, number in numbers(kernel.machine).items()
        for first in (0, 1, 2, 10, 0o6000, 0x7E020000, 1 << 31)
        for second in (0, 1, 2, 3, 0o6000, 1026, 0x5412)
        for data in [seccomp_data(ARCHITECTURES[kernel.machine], number, first, second)]
        if answer(NARROW, data) == ALLOWED and answer(NATIVE, data) != ALLOWED
    ]
    assert wider == []


@pytest.mark.parametrize(
    ("address", "there"),
    [
        (INET + b"\0\x50" + bytes([198, 18, 0, 2]) + bytes(8), ("198.18.0.2", 80)),
        (INET6 + b"\0\x50" + bytes(4) + bytes(15) + b"\1" + bytes(4), ("127.0.0.1", 80)),
        (INET6 + b"\0\x50" + bytes(4) + bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1]) + bytes(4), ("10.0.0.1", 80)),
        (INET6 + b"\0\x50" + bytes(4) + b" \1" + bytes(18), ("::", 80)),
        (INET + b"\0\x50", None),
        (b"\0\0" + bytes(14), None),
    ],
)
def test_an_address_that_a_program_gives_is_read_strictly(address: bytes, there: tuple[str, int] | None) -> None:
    assert notified.inet(address) == there


def test_a_descriptor_that_is_closed_meanwhile_hides_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> str:
        if next(count, None) is not None:
            raise FileNotFoundError(path)
        return readlink(path)

    readlink, count = os.readlink, iter(range(2))  # the first two are just closed
    monkeypatch.setattr(os, "readlink", read)
    with socket.socket() as one:
        assert os.fstat(one.fileno()).st_ino in maker._socket_inodes(os.getpid())


def test_a_folder_is_removed_however_deep_it_is_and_whatever_its_modes_are(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(2000):  # beyond what a path can say
        os.mkdir("deeper", 0o700, dir_fd=fd)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o000, dir_fd=inner))
        os.fchmod(fd, 0o000)
        os.close(fd)
        fd = inner
    os.close(fd)
    outside = tmp_path / "outside"
    outside.mkdir()
    top.chmod(0o700)
    (top / "link").symlink_to(outside)
    remove_folder(str(top))
    assert (top.exists(), outside.exists()) == (False, True)


def test_a_removal_that_was_broken_off_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "the supervisor ended meanwhile")

    folder = tmp_path / "cell"
    (folder / "a/b/c/d").mkdir(parents=True)
    for place in ("a/x", "a/b/x", "a/b/c/x"):
        (folder / place).write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        remove_folder(str(folder))
    assert folder.exists()
    remove_folder(str(folder))
    assert not folder.exists()


def test_a_folder_that_somebody_uses_is_removed_when_nobody_does(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    (folder / "workspace").mkdir(parents=True)
    used = os.open(folder, os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_SH)
    thread = threading.Thread(target=remove_unused, args=(str(folder),))
    thread.start()
    assert (folder / "workspace").exists()
    os.close(used)
    thread.join(MAX_WAIT)
    assert not folder.exists()


BECOME_ROOT_OF_ONE_ID = """
from casemate.supervisor import namespaces
from casemate.supervisor.plain import main
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65432, 65432, 65432)
    os.setresuid(65432, 65432, 65432)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
uid, gid = os.geteuid(), os.getegid()
kernel.unshare(kernel.CLONE_NEWUSER)
namespaces.write_maps("self", f"0 {uid} 1", f"0 {gid} 1", deny_setgroups=True)
landlock.abi = lambda: 6
first = main._identities().first
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
tell([os.geteuid(), first.uid, first.mapped, *(int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd"))])
"""


def test_the_root_of_a_user_namespace_of_one_id_keeps_no_capability(tmp_path: Path) -> None:
    assert told_by(BECOME_ROOT_OF_ONE_ID, wall=NO_FILTER, cwd=tmp_path) == [0, 0, False, 0, 0, 0]
