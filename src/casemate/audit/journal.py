"""Journals: each process first appends its rows to its own file.

A row is a line, written by one call, and survives the death of the process at any moment. A background thread, and each
reader of the record, first moves the rows into the database (:mod:`casemate.audit.log`). A write to SQLite takes
several times as long as such a call, above all after idle time.

A process locks its journal for as long as it lives, so that other processes can tell whether it does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from casemate.audit.chain import Row
from casemate.files.user_folders import make_private_folders

_quoted = json.encoder.encode_basestring_ascii
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Journal:
    def __init__(self, folder: Path) -> None:
        make_private_folders(folder)
        self._path = folder / os.urandom(8).hex()
        self._fd = os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = 0

    @property
    def name(self) -> str:
        return self._path.name

    def write(self, row: Row, *, sync: bool) -> None:
        """Write the whole row or nothing. ``sync``: wait until it is on disk."""
        words = f"{_quoted(row.kind)},{_quoted(row.execution_id)},{_quoted(row.namespace)}"
        line = f"[{row.wall},{row.monotonic},{words}]\t{row.detail}\n".encode("ascii")
        append_whole(self._fd, line)
        if sync:
            os.fdatasync(self._fd)
        self.size += len(line)

    def is_there(self) -> bool:
        """Whether the file was not removed or replaced: then its rows would never reach the database."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        return False

    def remove(self) -> None:
        """Remove it, once all of its rows are in the database."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave the file to the next process, which folds it."""
        os.close(self._fd)


def append_whole(fd: int, data: bytes) -> None:
    """Append all of ``data``, or nothing: a partial line would spoil the next one. Raises ``OSError``."""
    size = os.fstat(fd).st_size
    if os.write(fd, data) != len(data):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names_in(folder: Path) -> list[str]:
    """The names of all journals."""
    return sorted(os.listdir(folder))


def is_abandoned(path: Path) -> bool:
    """Whether the process that wrote it is dead."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def rows_after(path: Path, offset: int) -> tuple[list[Row], int]:
    """The rows written after ``offset``, and the offset of their end. Skips an incomplete last line, which may be in
    progress or from a dead process. A line that cannot be parsed becomes a row of kind "unreadable"."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            text = file.read()
    except FileNotFoundError:
        return [], offset
    lines = text[: text.rfind(b"\n") + 1]
    return [_read(line) for line in lines.splitlines()], offset + len(lines)


def _read(line: bytes) -> Row:
    try:
        head, detail = line.decode("ascii").split("\t")
        wall, monotonic, *words = json.loads(head)
        kind, execution_id, namespace = (str(word).encode("utf-8", "replace").decode() for word in words)
        return Row(0, int(wall), int(monotonic), kind, execution_id, namespace, detail)
    except (ValueError, TypeError, RecursionError):
        return Row(0, 0, 0, "unreadable", "", "", json.dumps({"begins": line[:1000].decode("ascii", "replace")}))


def pending(folder: Path, folded: dict[str, int]) -> Iterator[str]:
    """The journals with more bytes than were ``folded`` of each."""
    for name in names_in(folder):
        try:
            if os.stat(folder / name).st_size > folded.get(name, 0):
                yield name
        except FileNotFoundError:
            continue
