"""Folders that are one process's alone, and those that are left of processes which were killed.

Each has a file that its process holds locked (flock(2)), which ends with the process, however that ends. One whose lock
can be had is nobody's any more, provided that it was made on this machine: not every shared file system tells another
machine of a lock. Process ids would not do: other containers' processes have others here, or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from pathlib import Path

PREFIX = "casemate-"  # of their names
_HELD = ".held"
_MOST_MARK = 400  # bytes of what a lock's file says


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
                self._lock = _locked(self.path / _HELD)
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


def _locked(path: Path) -> int:
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
            os.pwrite(file, b" ".join(_machine()), 0)
            return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return -1


def _machine() -> tuple[bytes, bytes]:
    """Which start of which machine this is, and which machine; empty where that cannot be told."""
    machine = _said("/etc/machine-id")
    named = b"%s,%s" % (machine, os.fsencode(os.uname().nodename)) if machine else b""  # a copied machine has its id
    return _said("/proc/sys/kernel/random/boot_id"), named


def _said(path: str) -> bytes:
    try:
        return Path(path).read_bytes().strip()
    except OSError:
        return b""


def _is_of_this_machine(mark: bytes) -> bool:
    boot, _, machine = mark.partition(b" ")
    here = _machine()
    return (boot != b"" and boot == here[0]) or (machine != b"" and machine == here[1])


def _remove_left(place: int, name: str) -> None:
    """Remove the folder where it is nobody's. Raises ``OSError``."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    try:
        lock = os.open(_HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(lock)
            if not stat.S_ISREG(status.st_mode) or {status.st_uid, os.fstat(folder).st_uid} != {os.geteuid()}:
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_of_this_machine(os.pread(lock, _MOST_MARK, 0)):
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
        if name == _HELD:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    os.unlink(_HELD, dir_fd=folder)
