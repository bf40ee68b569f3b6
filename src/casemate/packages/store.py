"""Files of packages that were fetched, by their SHA-256: what is here needs no network."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path

_MOST_BYTES = 4 << 30  # kept in all; the one that was used longest ago goes first
_CHUNK = 1 << 18
_COMING = ".coming-"


class PackageStore:
    """In ``folder``, which is this user's alone. Several processes may use it: files appear whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, sha256: str) -> BufferedReader | None:
        """The file with this hash, from its beginning; None where it is not here, or no longer what it was."""
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
            os.utime(path)  # it was used now
        return file

    def begin(self, algorithm: str = "sha256") -> IncomingFile:
        """A file that is to come; ``algorithm``: what else it is hashed by. Raises ``OSError``."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return IncomingFile(self._folder, algorithm)

    def find_sha256(self, algorithm: str, digest: str) -> str:
        """The SHA-256 of the file that had this other hash when it came; empty where none did."""
        with contextlib.suppress(OSError, UnicodeError):
            return (self._folder / f"{algorithm}-{digest}").read_text("ascii")
        return ""

    def note(self, algorithm: str, digest: str, sha256: str) -> None:
        """Remember it for :meth:`find_sha256`. Raises ``OSError``."""
        (self._folder / f"{algorithm}-{digest}").write_text(sha256, "ascii")

    def tidy(self) -> None:
        """Forget what is more than may be kept."""
        kept = 0
        with contextlib.suppress(OSError):
            entries = [(entry.stat(), entry.path) for entry in os.scandir(self._folder) if entry.is_file()]
            for status, path in sorted(entries, key=lambda one: -one[0].st_mtime):
                kept += status.st_size
                if kept > _MOST_BYTES:
                    os.unlink(path)


class IncomingFile:
    """A file on its way into the store; hashed as it comes."""

    def __init__(self, folder: Path, algorithm: str = "sha256") -> None:
        self._folder = folder
        self._other = hashlib.new(algorithm)
        handle, self._name = _create_file(folder)
        self._file = os.fdopen(handle, "wb")
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        """Take some more of it. Raises ``OSError``."""
        self._file.write(data)
        self._hash.update(data)
        self._other.update(data)
        self.size += len(data)

    def keep(self) -> str:
        """It is whole: its SHA-256, by which it is in the store. Raises ``OSError``."""
        self._file.flush()
        if not self._name:
            self._name = _give_path(self._file.fileno(), self._folder)
        self._file.close()
        digest = self._hash.hexdigest()
        os.rename(self._name, self._folder / digest)
        return digest

    def digest(self) -> str:
        """The SHA-256 of what has come."""
        return self._hash.hexdigest()

    def other(self) -> str:
        """The hash by the other algorithm of what has come."""
        return self._other.hexdigest()

    def drop(self) -> None:
        """Forget it, unless it is kept. Harmless when repeated."""
        with contextlib.suppress(OSError):  # what could not be written before
            self._file.close()
        if self._name:
            with contextlib.suppress(OSError):
                os.unlink(self._name)


def _create_file(folder: Path) -> tuple[int, str]:
    """A new file, and its path; without one, nothing is left of it when this process is killed."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), ""
    except OSError:  # a file system without O_TMPFILE (overlayfs before Linux 6.1, NFS)
        return tempfile.mkstemp(prefix=_COMING, dir=folder)


def _give_path(file: int, folder: Path) -> str:
    """The path that a file without one has now, from where it can take another's place, as linkat(2) cannot."""
    path = f"{folder}/{_COMING}{os.urandom(8).hex()}"
    os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)  # without a descriptor the link itself would be linked
    return path


def default_folder(env: Mapping[str, str]) -> Path:
    """Where this user's files are kept."""
    base = env.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~"), ".cache")
    return cache / "casemate" / "packages"
