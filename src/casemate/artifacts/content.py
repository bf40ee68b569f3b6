"""Bytes kept on the host for as long as somebody holds them: in memory, or in a file without a name.

The file vanishes with its last holder, also when the process is killed; nothing is left to clean up.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from casemate.files.beneath import CHUNK, hold, write_all, write_file
from casemate.model.execution import Artifact

IN_MEMORY = 2**20

_TYPES = {
    "avif": "image/avif",
    "bmp": "image/bmp",
    "css": "text/css",
    "csv": "text/csv",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "feather": "application/vnd.apache.arrow.file",
    "gif": "image/gif",
    "gz": "application/gzip",
    "htm": "text/html",
    "html": "text/html",
    "ipynb": "application/x-ipynb+json",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "md": "text/markdown",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
    "png": "image/png",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "py": "text/x-python",
    "sh": "text/x-shellscript",
    "sqlite": "application/vnd.sqlite3",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tex": "application/x-tex",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "toml": "application/toml",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
}


def media_type_of(name: str) -> str:
    """What the extension of ``name`` claims; a claim of the program, not a fact about the content."""
    extension = os.path.splitext(name)[1].lower()
    return _TYPES.get(extension.removeprefix("."), "application/octet-stream")


class ContentStore:
    """Bytes that are appended and read by position: up to ``in_memory`` of them there, more in an unlinked file.

    The methods raise ``OSError`` when the disk is full; what was stored before stays readable.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._memory = bytearray()
        self._file: int | None = None
        self._lock = threading.Lock()
        self.size = 0

    def append(self, data: bytes) -> None:
        """Store ``data`` behind what is there: all of it, or nothing."""
        with self._lock:
            if self._file is None and self.size + len(data) <= self._in_memory:
                self._memory += data
            else:
                self._write(self._spill(), data)
            self.size += len(data)

    def cut(self, size: int) -> None:
        """Forget everything from position ``size`` on."""
        with self._lock:
            self.size = size
            if self._file is None:
                del self._memory[size:]
            else:
                os.ftruncate(self._file, size)

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at ``offset``; fewer only where the store ends."""
        with self._lock:
            if self._file is None:
                return bytes(self._memory[offset : offset + length])
            file = self._file
        parts = []
        while length > 0 and (part := os.pread(file, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def _spill(self) -> int:
        if self._file is None:
            file = _open_unlinked()
            try:
                self._write(file, bytes(self._memory))
            except OSError:
                os.close(file)
                raise
            weakref.finalize(self, os.close, file)
            self._file, self._memory = file, bytearray()
        return self._file

    def _write(self, file: int, data: bytes) -> None:
        start = self.size if file == self._file else 0
        os.lseek(file, start, os.SEEK_SET)
        write_all(file, data)


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a store; keeps the store alive. Implements :class:`casemate.model.execution.Content`."""

    store: ContentStore
    offset: int
    length: int

    def read_bytes(self) -> bytes:
        return self.store.read(self.offset, self.length)

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at ``offset``; fewer only where it ends."""
        return self.store.read(self.offset + offset, max(0, min(length, self.length - offset)))

    def chunks(self) -> Iterator[bytes]:
        """All of it, piece by piece."""
        for position in range(0, self.length, CHUNK):
            yield self.store.read(self.offset + position, min(CHUNK, self.length - position))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy it to ``path``, replacing a file or link; a device or fifo is written into. Raises ``OSError``."""
        target = Path(os.path.abspath(path))
        if _is_stream(target):
            with target.open("wb", buffering=0) as stream:
                for chunk in self.chunks():
                    write_all(stream.fileno(), chunk)
            return
        with hold(os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            write_file(folder, target.name, self.chunks())


class Spool:
    """An append-only file without a name for output that is too large to return. Whoever writes bounds it.

    ``write`` raises ``OSError`` when the disk is full; what was written before can still be handed out.
    """

    def __init__(self) -> None:
        self._store = ContentStore(in_memory=0)
        self._hash = hashlib.sha256()

    @property
    def size(self) -> int:
        return self._store.size

    def write(self, data: bytes) -> None:
        """Append all of ``data``, or nothing."""
        self._store.append(data)
        self._hash.update(data)

    def artifact(self, name: str, media_type: str = "text/plain") -> Artifact:
        """What was written so far."""
        content = Slice(self._store, 0, self.size)
        return Artifact(name, self.size, self._hash.hexdigest(), media_type, content)


def _open_unlinked() -> int:
    """In the system's folder for temporary files."""
    import tempfile  # slow to import, and most runs leave little

    place = tempfile.gettempdir()
    try:
        return os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:  # a file system without O_TMPFILE (overlayfs before Linux 6.1, NFS), or no such folder
        file, path = tempfile.mkstemp(prefix=".casemate-", dir=place)
        os.unlink(path)
        return file


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
