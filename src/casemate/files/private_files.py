"""Files that are their owner's alone: read only where they are, and replaced in one step."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from casemate.errors import VaultUnavailable
from casemate.files.beneath import Attributes, write_file
from casemate.files.user_folders import make_private_folders

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a link is refused, and a pipe is not waited for


def read_private(path: Path, most: int) -> bytes | None:
    """The content of a file of at most ``most`` bytes; None where there is none.

    Raises ``VaultUnavailable`` where it is a link, another user's, or open to others, and where its folder is: whoever
    may write there can put another file in its place.
    """
    try:
        folder = _open_folder(path.parent)
    except FileNotFoundError:
        return None
    try:
        fd = _open_file(path, folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > most:
            raise unusable(path, f"it is larger than {most} bytes")
        return file.read(most)


def open_lock(path: Path) -> int:
    """A descriptor of the file by which those who write take turns (flock(2)), made where it is missing.

    Raises ``VaultUnavailable`` as :func:`read_private` does.
    """
    with private_folder(path.parent) as folder:
        return _open_file(path, folder, os.O_RDWR | os.O_CREAT)


@contextmanager
def turn(lock: int) -> Iterator[None]:
    """Hold the lock (flock(2)) of a descriptor, which is closed at the end: one thread of one process at a time.

    A process that is forked meanwhile shares the descriptor. The lock is released explicitly, so that it ends here.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def replace_private(path: Path, content: bytes) -> None:
    """Put ``content`` there, 0600, in a folder of mode 0700, which is made where it is missing.

    Whoever reads meanwhile, and a loss of power, finds the old file or the new one. Raises ``VaultUnavailable``.
    """
    with private_folder(path.parent) as folder:
        try:
            write_file(folder, path.name, [content], Attributes(mode=0o600), flush=True)
        except OSError as error:
            raise unusable(path, str(error.strerror)) from None


@contextmanager
def private_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder of mode 0700 of ours, made where it is missing. Raises ``VaultUnavailable`` where others
    may look into it."""
    try:
        make_private_folders(path)
        folder = _open_folder(path)
    except OSError as error:
        raise unusable(path, str(error.strerror)) from None
    try:
        yield folder
    finally:
        os.close(folder)


def unusable(path: Path, why: str) -> VaultUnavailable:
    """The error that says which file cannot be used, and why."""
    return VaultUnavailable(f"{str(path)!r} cannot be used for secrets: {why}", reason="file")


def _open_folder(path: Path) -> int:
    """A descriptor of a folder that is ours alone. Raises ``FileNotFoundError`` and ``VaultUnavailable``."""
    try:
        fd = os.open(path, _OPEN_FOLDER)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unusable(path, str(error.strerror)) from None
    return _ours(path, fd)


def _open_file(path: Path, folder: int, flags: int) -> int:
    """A descriptor of a regular file in ``folder`` that is ours alone. Raises as :func:`_open_folder` does."""
    try:
        fd = os.open(path.name, flags | _OPEN_FILE, 0o600, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unusable(path, "it is a link" if error.errno == errno.ELOOP else str(error.strerror)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise unusable(path, "it is no regular file")
    return _ours(path, fd)


def _ours(path: Path, fd: int) -> int:
    """``fd``, which is closed where :func:`_check_owner` raises."""
    try:
        _check_owner(path, os.fstat(fd))
    except VaultUnavailable:
        os.close(fd)
        raise
    return fd


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise unusable(path, "it belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise VaultUnavailable(
            f"{str(path)!r} cannot be used for secrets: it is open to others",
            reason="mode",
            remediation=f"chmod {mode} {path}, and give the secrets in it up if others had access",
        )
