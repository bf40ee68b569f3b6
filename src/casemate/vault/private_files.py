"""Files that are their owner's alone: read only where they are, and replaced in one step."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from casemate.errors import VaultUnavailable
from casemate.files.beneath import Attributes, write_file

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def read_private(path: Path, most: int) -> bytes | None:
    """The content of a file of at most ``most`` bytes; None where there is none.

    Raises ``VaultUnavailable`` where it is a link, another user's, or open to others.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(path, "it is a link" if error.errno == errno.ELOOP else str(error.strerror)) from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise unusable(path, "it is no regular file")
        _check_owner(path, status)
        if status.st_size > most:
            raise unusable(path, f"it is larger than {most} bytes")
        return file.read(most)


def replace_private(path: Path, content: bytes) -> None:
    """Put ``content`` there, 0600, in a folder of mode 0700, which is made where it is missing.

    Whoever reads meanwhile, and a loss of power, finds the old file or the new one. Raises ``VaultUnavailable``.
    """
    with private_folder(path.parent) as folder:
        try:
            write_file(folder, path.name, [content], Attributes(mode=0o600), flush=True)
        except OSError as error:
            raise unusable(path, str(error.strerror)) from None


class private_folder:  # noqa: N801 - used as a function is
    """A descriptor of a folder of mode 0700 of ours, made where it is missing, for the length of a block.

    Raises ``VaultUnavailable`` where others may look into it.
    """

    def __init__(self, path: Path) -> None:
        try:
            _make(path)
            self._fd = os.open(path, _OPEN_FOLDER)
        except OSError as error:
            raise unusable(path, str(error.strerror)) from None
        try:
            _check_owner(path, os.fstat(self._fd))
        except VaultUnavailable:
            os.close(self._fd)
            raise

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *failure: object) -> None:
        os.close(self._fd)


def unusable(path: Path, why: str) -> VaultUnavailable:
    """The error that says which file cannot be used, and why."""
    return VaultUnavailable(f"{str(path)!r} cannot be used for secrets: {why}", reason="file")


def _make(path: Path) -> None:
    """Make the folder, and those above it that are missing, for us alone."""
    if not path.is_dir():
        _make(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


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
