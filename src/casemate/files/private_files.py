"""Files that only their owner can access: read without following links, and replaced atomically."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from casemate.errors import VaultUnavailable
from casemate.files.beneath import Attributes, hold, write_file
from casemate.files.user_folders import make_private_folders

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # refuses links, and does not wait for pipes


def read_private(path: Path, most: int) -> bytes | None:
    """The content of a file of at most ``most`` bytes; None if it does not exist.

    Raises ``VaultUnavailable`` for a link, or if others own or can access the file. The same goes for its folder,
    because anyone who may write there can replace the file.
    """
    try:
        with hold(_open_folder(path.parent)) as folder:
            fd = _open_file(path, folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > most:
            raise unusable(path, f"it is larger than {most} bytes")
        return file.read(most)


def open_lock(path: Path) -> int:
    """A descriptor of the lock file of writers (flock(2)), which is created if missing.

    Raises ``VaultUnavailable`` like :func:`read_private`.
    """
    with private_folder(path.parent) as folder:
        return _open_file(path, folder, os.O_RDWR | os.O_CREAT)


@contextmanager
def turn(lock: int) -> Iterator[None]:
    """Hold the lock (flock(2)) of a descriptor, which is closed at the end: one thread of one process at a time.

    A process forked meanwhile shares the descriptor, so the lock is released explicitly.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def replace_private(path: Path, content: bytes) -> None:
    """Write ``content`` to a file of mode 0600 in a folder of mode 0700, which is created if missing.

    Readers, and a power loss, leave the old or the new file. Raises ``VaultUnavailable``.
    """
    with private_folder(path.parent) as folder:
        try:
            write_file(folder, path.name, [content], Attributes(mode=0o600), flush=True)
        except OSError as error:
            raise unusable(path, str(error.strerror)) from None


@contextmanager
def private_folder(path: Path) -> Iterator[int]:
    """A descriptor of our folder of mode 0700, made if missing. Raises ``VaultUnavailable`` if others can access it."""
    try:
        make_private_folders(path)
        folder = _open_folder(path)
    except OSError as error:
        raise unusable(path, str(error.strerror)) from None
    with hold(folder):
        yield folder


def unusable(path: Path, why: str) -> VaultUnavailable:
    """The error for a file that cannot be used, with the reason."""
    return VaultUnavailable(f"{str(path)!r} cannot be used for secrets: {why}", reason="file")


def _open_folder(path: Path) -> int:
    """A descriptor of a folder that only we can access. Raises ``FileNotFoundError`` and ``VaultUnavailable``."""
    try:
        fd = os.open(path, _OPEN_FOLDER)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unusable(path, str(error.strerror)) from None
    return _ours(path, fd)


def _open_file(path: Path, folder: int, flags: int) -> int:
    """A descriptor of a regular file in ``folder`` that only we can access. Raises like :func:`_open_folder`."""
    try:
        fd = os.open(path.name, flags | _OPEN_FILE, 0o600, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unusable(path, "it is a link" if error.errno == errno.ELOOP else str(error.strerror)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise unusable(path, "it is not a regular file")
    return _ours(path, fd)


def _ours(path: Path, fd: int) -> int:
    """``fd`` if only we can access it; otherwise close it and raise."""
    status = os.fstat(fd)
    if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
        return fd
    os.close(fd)
    if status.st_uid != os.geteuid():
        raise unusable(path, "it belongs to another user")
    mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
    raise VaultUnavailable(
        f"{str(path)!r} cannot be used for secrets: it is accessible to others",
        reason="mode",
        remediation=f"chmod {mode} {path}, and replace the secrets in it if others had access",
    )
