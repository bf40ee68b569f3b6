"""Temporary folders of one process, and removal of abandoned ones.

Each folder has a file that its process locks (flock(2)). The lock ends with the process in any case. A folder whose
lock is free is abandoned if it was made on this machine: not every shared file system shows locks to other machines. A
process that closes all its descriptors loses its lock but lives. So the file also names its process, which must be
gone. The process id alone does not suffice, because it may be reused. If the id is from another namespace
(pid_namespaces(7)), whose processes are not visible here, only the lock counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from pathlib import Path

from casemate.files.beneath import hold

PREFIX = "casemate-"  # of the folders' names
_LOCK_FILE = ".held"
_MOST_MARK = 400  # bytes of a lock file's text
_STATE, _THREADS, _BEGAN = 0, 17, 19  # fields of proc_pid_stat(5) after the name
_ENDED = (b"Z", b"X")  # but if it has other threads, only its first thread has ended


class TemporaryFolder:
    """A new folder at ``path``, which this process owns until :meth:`remove`.

    A forked process shares the lock, but does not remove the folder.
    """

    def __init__(self, kind: str, place: Path | None = None) -> None:
        """``kind``: a word for its name. ``place``: its parent, if not the temporary folder. Raises ``OSError``."""
        import tempfile  # slow to import, and rarely needed

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
        """Remove it with its content, if this process made it. Idempotent."""
        if os.getpid() != self._maker:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        # After closing all descriptors, this number may be another file's
        if lock >= 0 and _identity(lock) == self._file:
            os.close(lock)


def sweep(place: Path | None = None) -> None:
    """Remove this user's abandoned folders in ``place``, or in the folder for temporary files. Ignores errors."""
    import tempfile

    with contextlib.suppress(OSError):
        swept = tempfile.gettempdir() if place is None else place
        with hold(os.open(swept, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            for name in os.listdir(folder):
                if name.startswith(PREFIX):
                    with contextlib.suppress(OSError, RecursionError):  # RecursionError: too deep
                        _remove_left(folder, name)


def _identity(file: int) -> tuple[int, int] | None:
    """The identity of a descriptor's file; None if the descriptor is invalid."""
    try:
        status = os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create_locked(path: Path) -> int:
    """Create the file and lock it. -1 if a sweeping process is examining it, or it was removed."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return -1
    except OSError:
        return file  # a file system without locks, where nothing is swept
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
    """The ids of this boot and of this machine; empty if unknown."""
    machine = _read_mark("/etc/machine-id")
    # A copied machine has the same id
    named = b"%s,%s" % (machine, os.fsencode(os.uname().nodename)) if machine else b""
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
    """This process's id, start time and pid namespace; empty if unknown."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return b""  # /proc is of another namespace
        began = _status(os.getpid())[_BEGAN]
        return b"%d %s %d" % (os.getpid(), began, os.stat("/proc/self/ns/pid").st_ino)
    except (OSError, IndexError):
        return b""


def _may_live(boot: bytes, maker: bytes) -> bool:
    """Whether the process ``maker`` (see :func:`_maker`) may be alive. ``boot``: the boot in which it was recorded.
    For an empty ``maker``, or one of another namespace, only the lock decides."""
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
        return True  # it exists without more information, or the mark is unreadable
    if len(status) <= _BEGAN:
        return True
    if status[_BEGAN] != began:
        return False
    return status[_STATE] not in _ENDED or int(status[_THREADS]) > 1


def _status(process: int) -> list[bytes]:
    """The fields of proc_pid_stat(5) after the name. Raises ``OSError``."""
    return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()


def _remove_left(place: int, name: str) -> None:
    """Remove the folder if it is abandoned. Raises ``OSError``."""
    with (
        hold(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)) as folder,
        hold(os.open(_LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)) as lock,
    ):
        status = os.fstat(lock)
        if not stat.S_ISREG(status.st_mode) or {status.st_uid, os.fstat(folder).st_uid} != {os.geteuid()}:
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        machine, _, maker = os.pread(lock, _MOST_MARK, 0).partition(b"\n")
        if not _is_of_this_machine(machine) or _may_live(machine.partition(b" ")[0], maker):
            return
        _empty(folder)
        os.rmdir(name, dir_fd=place)


def _empty(folder: int) -> None:
    """Remove all content, the lock file last, so that an interrupted removal can be repeated."""
    for name in os.listdir(folder):
        if name == _LOCK_FILE:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    os.unlink(_LOCK_FILE, dir_fd=folder)
