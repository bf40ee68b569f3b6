"""A store of fetched package files by SHA-256. A stored file needs no network."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path

from casemate.files.user_folders import user_folder

_MOST_BYTES = 4 << 30  # in all; the least recently used are removed first
_COMING = ".coming-"


class PackageStore:
    """A store in ``folder``, which only this user can access. Processes may share it: files appear whole or not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, sha256: str) -> BufferedReader | None:
        """The file with this hash, at its start; None if it is missing or damaged."""
        path = self._folder / sha256
        try:
            file = path.open("rb")
        except OSError:
            return None
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            file.close()
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        file.seek(0)
        with contextlib.suppress(OSError):
            os.utime(path)  # mark as used
        return file

    def begin(self, algorithm: str = "sha256") -> IncomingFile:
        """Begin to store a file. ``algorithm``: a second hash to compute. Raises ``OSError``."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return IncomingFile(self._folder, algorithm)

    def find_sha256(self, algorithm: str, digest: str) -> str:
        """The SHA-256 of the file whose ``algorithm`` hash was noted; empty if none was."""
        with contextlib.suppress(OSError, UnicodeError):
            return (self._folder / f"{algorithm}-{digest}").read_text("ascii")
        return ""

    def note(self, algorithm: str, digest: str, sha256: str) -> None:
        """Note a file's hash for :meth:`find_sha256`. Raises ``OSError``."""
        (self._folder / f"{algorithm}-{digest}").write_text(sha256, "ascii")

    def tidy(self) -> None:
        """Remove the least recently used files above the limit."""
        kept = 0
        with contextlib.suppress(OSError):
            entries = [(entry.stat(), entry.path) for entry in os.scandir(self._folder) if entry.is_file()]
            for status, path in sorted(entries, key=lambda one: -one[0].st_mtime):
                kept += status.st_size
                if kept > _MOST_BYTES:
                    os.unlink(path)


class IncomingFile:
    """A file that is being received and hashed."""

    def __init__(self, folder: Path, algorithm: str) -> None:
        self._folder = folder
        handle, self._name = _create_file(folder)
        self._file = os.fdopen(handle, "wb")
        self.sha256, self.other = hashlib.sha256(), hashlib.new(algorithm)  # of the data received so far
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append ``data``. Raises ``OSError``."""
        self._file.write(data)
        self.sha256.update(data)
        self.other.update(data)
        self.size += len(data)

    def keep(self) -> str:
        """Move the complete file into the store. Returns its SHA-256. Raises ``OSError``."""
        self._file.flush()
        if not self._name:
            self._name = _give_path(self._file.fileno(), self._folder)
        self._file.close()
        digest = self.sha256.hexdigest()
        os.rename(self._name, self._folder / digest)
        return digest

    def drop(self) -> None:
        """Discard the file, unless it was kept."""
        with contextlib.suppress(OSError):  # a failed write
            self._file.close()
        if self._name:
            with contextlib.suppress(OSError):
                os.unlink(self._name)


def _create_file(folder: Path) -> tuple[int, str]:
    """A new file and its path. An unnamed file has no path, and does not outlive this process."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), ""
    except OSError:  # a file system without O_TMPFILE (overlayfs before Linux 6.1, NFS)
        return tempfile.mkstemp(prefix=_COMING, dir=folder)


def _give_path(file: int, folder: Path) -> str:
    """Give an unnamed file a path. A later rename can replace an existing file, as linkat(2) cannot."""
    path = f"{folder}/{_COMING}{os.urandom(8).hex()}"
    os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)  # without src_dir_fd the link itself would be linked
    return path


def default_folder(env: Mapping[str, str]) -> Path:
    """This user's folder for package files."""
    return user_folder({**env, "HOME": os.path.expanduser("~")}, "cache", "there is no package folder") / "packages"
