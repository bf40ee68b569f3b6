"""Folders that are one process's alone, and those that are left of processes which were killed.

Each has a file that its process holds locked (flock(2)), which ends with the process, however that ends. One whose lock
can be had is nobody's any more, provided that it was made on this machine: not every shared file system tells another
machine of a lock. A process that closes all of its descriptors has lost its lock, too, and lives. So the file also says
which process has made it, and it must be gone: its id would not do, for it may be another's by now. Where it was given
in another namespace (pid_namespaces(7)), whose processes are not seen from here, the lock alone counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from pathlib import Path

PREFIX = "casemate-"  # of their names
_LOCK_FILE = ".held"
_MOST_MARK = 400  # bytes of what a lock's file says
_STATE, _THREADS, _BEGAN = 0, 17, 19  # in proc_pid_stat(5), behind the name
_ENDED = (b"Z", b"X")  # but of one with other threads only the first has ended


class TemporaryFolder:
    """A new folder at ``path``, which is this process's until :meth:`remove`.

    A process that it forks has the lock, too, and does not remove the folder.
    """

    def __init__(self, kind: str, place: Path | None = None) -> None:
        """``kind``: a word, which is in its name; ``place``: where it is made, instead of the folder for temporary
        files. Raises ``OSError``."""
        import tempfile  # slow to import, and most sandboxes need none

        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=place))
            try:
                self._lock = _create_locked(self.path / _LOCK_FILE)
            except OSError:
                shutil.rmtree(self.path, ignore_errors=True)
                raise
            if self._lock >= 0:
                break
            shutil.rmtree(self.path, ignore_errors=True)
        self._file, self._maker = _identity(self._lock), os.getpid()

    def remove(self) -> None:
        """Remove it, and what is in it. Harmless when repeated, and in a forked process, which has it by accident."""
        if os.getpid() != self._maker:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0 and _identity(lock) == self._file:  # who closes all descriptors has another one of this number
            os.close(lock)


def sweep(place: Path | None = None) -> None:
    """Remove what killed processes of this user have left in ``place``, or in the folder for temporary files. What
    cannot be removed stays."""
    import tempfile

    with contextlib.suppress(OSError):
        folder = os.open(tempfile.gettempdir() if place is None else place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(folder):
                if name.startswith(PREFIX):
                    with contextlib.suppress(OSError, RecursionError):  # deeper than all that is made here
                        _remove_left(folder, name)
        finally:
            os.close(folder)


def _identity(file: int) -> tuple[int, int] | None:
    """Which file a descriptor is of; None where it is none."""
    try:
        status = os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create_locked(path: Path) -> int:
    """The new file, locked; -1 where somebody who sweeps looks at it just now, or something has removed it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return -1
    except OSError:
        return file  # a file system without locks, on which nobody has one, and nothing is swept
    try:
        if os.fstat(file).st_nlink:
            os.pwrite(file, b" ".join(_machine()) + b"\n" + _maker(), 0)
            return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return -1


def _machine() -> tuple[bytes, bytes]:
    """Which start of which machine this is, and which machine; empty where that cannot be told."""
    machine = _read_mark("/etc/machine-id")
    named = b"%s,%s" % (machine, os.fsencode(os.uname().nodename)) if machine else b""  # a copied machine has its id
    return _read_mark("/proc/sys/kernel/random/boot_id"), named


def _read_mark(path: str) -> bytes:
    try:
        return Path(path).read_bytes().strip()
    except OSError:
        return b""


def _is_of_this_machine(mark: bytes) -> bool:
    boot, _, machine = mark.partition(b" ")
    here = _machine()
    return (boot != b"" and boot == here[0]) or (machine != b"" and machine == here[1])


def _maker() -> bytes:
    """This process: its id, when it has begun, and the namespace of its id; empty where that cannot be told."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return b""  # what is mounted there is of another namespace
        began = _status(os.getpid())[_BEGAN]
        return b"%d %s %d" % (os.getpid(), began, os.stat("/proc/self/ns/pid").st_ino)
    except (OSError, IndexError):
        return b""


def _may_live(boot: bytes, maker: bytes) -> bool:
    """Whether the process that ``maker`` says, as of :func:`_maker`, may live. ``boot``: the start of the machine in
    which that was said. An empty ``maker``, and one of another namespace, leave it to the lock alone."""
    here = _machine()[0]
    if not maker or (boot and here and boot != here):
        return False
    own = _maker().split()
    try:
        process, began, namespace = maker.split()
        if not own or namespace != own[2]:
            return False
        os.kill(int(process), 0)
        status = _status(int(process))
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True  # it is there, and nothing more is told of it; or the mark cannot be read
    if len(status) <= _BEGAN:
        return True
    if status[_BEGAN] != began:
        return False
    return status[_STATE] not in _ENDED or int(status[_THREADS]) > 1


def _status(process: int) -> list[bytes]:
    """What proc_pid_stat(5) has behind the name. Raises ``OSError``."""
    return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()


def _remove_left(place: int, name: str) -> None:
    """Remove the folder where it is nobody's. Raises ``OSError``."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    try:
        lock = os.open(_LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(lock)
            if not stat.S_ISREG(status.st_mode) or {status.st_uid, os.fstat(folder).st_uid} != {os.geteuid()}:
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            machine, _, maker = os.pread(lock, _MOST_MARK, 0).partition(b"\n")
            if not _is_of_this_machine(machine) or _may_live(machine.partition(b" ")[0], maker):
                return
            _empty(folder)
            os.rmdir(name, dir_fd=place)
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _empty(folder: int) -> None:
    """Remove all in it, last the lock's file: what is left by whoever is killed meanwhile is swept another time."""
    for name in os.listdir(folder):
        if name == _LOCK_FILE:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    os.unlink(_LOCK_FILE, dir_fd=folder)
