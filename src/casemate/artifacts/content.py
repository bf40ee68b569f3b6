"""Bytes that the host keeps while an object refers to them: in memory, or in an unlinked file.

The kernel deletes the file with its last descriptor, even if the process is killed, so nothing needs cleanup.
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
    """The media type for the extension of ``name``. The program chose the name, so the content may differ."""
    extension = os.path.splitext(name)[1].lower()
    return _TYPES.get(extension.removeprefix("."), "application/octet-stream")


class ContentStore:
    """Append-only bytes, read by position. More than ``in_memory`` bytes move to an unlinked file.

    The methods raise ``OSError`` when the disk is full. Bytes stored before stay readable.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._memory = bytearray()
        self._file: int | None = None
        self._lock = threading.Lock()
        self.size = 0

    def append(self, data: bytes) -> None:
        """Append all of ``data``, or nothing."""
        with self._lock:
            if self._file is None and self.size + len(data) <= self._in_memory:
                self._memory += data
            else:
                self._write(self._spill(), data)
            self.size += len(data)

    def cut(self, size: int) -> None:
        """Truncate the store to ``size`` bytes."""
        with self._lock:
            self.size = size
            if self._file is None:
                del self._memory[size:]
            else:
                os.ftruncate(self._file, size)

    def read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes at ``offset``, or fewer at the end of the store."""
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
    """Part of a store, which it keeps alive. Implements :class:`casemate.model.execution.Content`."""

    store: ContentStore
    offset: int
    length: int

    def read_bytes(self) -> bytes:
        return self.store.read(self.offset, self.length)

    def read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes at ``offset``, or fewer at the end of the slice."""
        return self.store.read(self.offset + offset, max(0, min(length, self.length - offset)))

    def chunks(self) -> Iterator[bytes]:
        """Read the whole slice in chunks."""
        for position in range(0, self.length, CHUNK):
            yield self.store.read(self.offset + position, min(CHUNK, self.length - position))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy it to ``path``. Replaces a file or link, writes to a device or fifo. Raises ``OSError``."""
        target = Path(os.path.abspath(path))
        if _is_stream(target):
            with target.open("wb", buffering=0) as stream:
                for chunk in self.chunks():
                    write_all(stream.fileno(), chunk)
            return
        with hold(os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            write_file(folder, target.name, self.chunks())


class Spool:
    """An unlinked, append-only file for output that is too large to return. The writer limits its size.

    ``write`` raises ``OSError`` when the disk is full. Bytes written before stay readable.
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
        """The bytes written so far, as an artifact."""
        content = Slice(self._store, 0, self.size)
        return Artifact(name, self.size, self._hash.hexdigest(), media_type, content)


def _open_unlinked() -> int:
    """Open a file without a name in the system's folder for temporary files."""
    import tempfile  # slow to import, and most runs leave little

    place = tempfile.gettempdir()
    try:
        return os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:  # the file system has no O_TMPFILE (overlayfs before Linux 6.1, NFS), or the folder is missing
        file, path = tempfile.mkstemp(prefix=".casemate-", dir=place)
        os.unlink(path)
        return file


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
