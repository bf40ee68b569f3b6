"""Mirrors changes of a folder: writes them as records on one side, and applies the records on the other.

Records are untrusted. They are parsed strictly, bounded, and applied beneath one folder without following links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from itertools import islice

from casemate.supervisor import wire
from casemate.supervisor.trees.remove import remove_entry
from casemate.supervisor.trees.walk import (
    Entry,
    Visitor,
    data_in,
    enter_folder,
    open_file,
    open_folder,
    opened,
    status_of,
    walk,
)

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from casemate.supervisor.trees.copies import State
    from casemate.supervisor.trees.walk import Path

_MAX_PATH, _MAX_NAME = 4096, 255
_MAX_PARTS = 1 << 16  # pieces of data of a file with holes
_MAX_RECORD = 3 << 20  # bytes: a path, a link's target, and a file's list of data pieces
_CHUNK = 1 << 20
_KEYS = {"kind", "path", "mode", "mtime", "size", "parts", "target"}
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
_DEPTH = 100  # nested folders
_MOST_ENTRIES = 1 << 20
_MOST_TIME = 1 << 62  # nanoseconds
_BLOCK = 512  # bytes; the unit of st_blocks, and the shortest hole
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RecordsError(ValueError):
    """Invalid records, or more than allowed."""


class Bounds:
    """How many bytes of data and how many names a tree may have."""

    def __init__(self, data: int, entries: int) -> None:
        self.data, self.entries = data, entries


class Tree:
    """The folder ``root`` (a descriptor), and its state as both sides know it. ``is_cells``: a program writes in it,
    which can forge all times except the ctime."""

    def __init__(self, root: int, *, is_cells: bool = False) -> None:
        self.root = root
        self.known: dict[Path, State] = {}
        self._is_cells = is_cells

    def write_changes(self, new_file: Callable[[], int]) -> int | None:
        """A file of the changes since the last call, or None. Unreadable entries are retried. Raises ``OSError``."""
        seen = self._scan().found
        gone = sorted((path for path in self.known if path not in seen), reverse=True)
        changed = [path for path, state in seen.items() if self.known.get(path) != state]
        if not gone and not changed:
            return None
        out = new_file()
        for path in gone:
            _write_record(out, {"kind": "gone", "path": b"/".join(path)})
        with contextlib.closing(_Parents(self.root)) as parents:
            for path in changed:
                try:
                    _write_entry(out, path, parents.of(path))
                except OSError:
                    seen.pop(path)
        self.known = seen
        return out

    def apply(self, source: int, bounds: Bounds) -> dict[Path, State]:
        """Apply the records in ``source`` and return the new state. Raises :class:`RecordsError`, ``OSError``."""
        at, size, data = 0, os.fstat(source).st_size, 0
        done: list[tuple[Path, int]] = []  # the int is a folder's mode
        with contextlib.closing(_Parents(self.root, unlock=True)) as parents:
            while at < size:
                record, at = _read_record(source, at)
                data += sum(length for _, length in record["parts"])
                mode = record["mode"] if record["kind"] == "folder" else 0o700
                done.append((tuple(record["path"].split(b"/")), mode))
                if data > bounds.data or len(done) > 2 * bounds.entries:
                    raise RecordsError("more changes than allowed")
                at = _do(record, done[-1][0], source, at, parents)
            for path, mode in reversed(done):
                if self._is_cells and mode & 0o700 != 0o700:
                    _set_mode(parents.of(path), path[-1], mode & 0o777)
        scan = self.note(path for path, _ in done)
        if scan.data > bounds.data or len(scan.found) > bounds.entries:
            raise RecordsError("more files than allowed")
        return scan.found

    def note(self, paths: Iterable[Path]) -> _TreeScan:
        """Record the current state of ``paths`` as known to both sides."""
        scan = self._scan()
        for path in paths:
            self.known.pop(path, None)
            if path in scan.found:
                self.known[path] = scan.found[path]
        return scan

    def _scan(self) -> _TreeScan:
        scan = _TreeScan(is_cells=self._is_cells)
        walk(self.root, scan, depth=_DEPTH, entries=_MOST_ENTRIES)
        for path, state in self.known.items() if scan.unseen else ():
            if any(path[:depth] in scan.unseen for depth in range(len(path) + 1)):
                scan.found.setdefault(path, state)
        return scan


class _TreeScan(Visitor):
    def __init__(self, *, is_cells: bool) -> None:
        self.found: dict[Path, State] = {}
        self.unseen: set[Path] = set()
        self.data = 0
        self._is_cells = is_cells

    def enter(self, entry: Entry, _folder: int) -> bool:
        self.found[entry.path] = 0, entry.stat.st_mode | 0o700, 0  # the owner can always use it
        return True

    def visit(self, entry: Entry) -> None:
        status = entry.stat
        if not stat.S_ISCHR(status.st_mode) and not stat.S_ISBLK(status.st_mode):
            when = status.st_ctime_ns if self._is_cells else status.st_mtime_ns
            self.found[entry.path] = status.st_ino, status.st_mode, when
            self.data += min(status.st_size, status.st_blocks * _BLOCK)

    def skip(self, path: Path, reason: str) -> None:  # noqa: ARG002
        self.unseen.add(path)


class _Parents:
    """Opens parent folders of entries beneath ``root``, and keeps the last path open. ``unlock`` is as in `walk`."""

    def __init__(self, root: int, *, unlock: bool = False) -> None:
        self._unlock = unlock
        self._names: list[bytes] = []
        self._folders = [os.dup(root)]

    def close(self, depth: int = -1) -> None:
        """Close folders deeper than ``depth``, or all."""
        while len(self._folders) > depth + 1:
            os.close(self._folders.pop())
        del self._names[max(0, depth) :]

    def of(self, path: Path, *, make: bool = False) -> int:
        """The parent folder of ``path``, made if missing and ``make`` is true. Raises ``OSError``."""
        depth = 0
        while depth < min(len(self._names), len(path) - 1) and self._names[depth] == path[depth]:
            depth += 1
        self.close(depth)
        for name in path[depth:-1]:
            try:
                folder = open_folder(self._folders[-1], name, unlock=self._unlock)
            except FileNotFoundError:
                if not make:
                    raise
                folder = enter_folder(self._folders[-1], name)
            self._names.append(name)
            self._folders.append(folder)
        return self._folders[-1]


def _write_entry(out: int, path: Path, folder: int) -> None:
    status = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "pipe")
    record = {"path": b"/".join(path), "kind": kind, "mode": status.st_mode & 0o777, "mtime": status.st_mtime_ns}
    if kind == "link":
        record["target"] = os.readlink(path[-1], dir_fd=folder)
    if kind != "file" or status.st_size == 0:
        _write_record(out, record)
        return
    with opened(open_file(Entry(path, status, folder))) as file:
        _write_file(out, {**record, "size": status.st_size}, file)


def _write_record(out: int, record: dict[str, Any]) -> None:
    full = {"mode": 0, "mtime": 0, "size": 0, "parts": [], "target": b"", **record}
    data = wire.encode(full)
    os.write(out, len(data).to_bytes(4, "big") + data)


def _write_file(out: int, record: dict[str, Any], file: int) -> None:
    parts = [[start, end - start] for start, end in islice(data_in(file, record["size"]), _MAX_PARTS + 1)]
    if len(parts) > _MAX_PARTS:
        raise OSError(errno.EFBIG, "it has too many holes")
    _write_record(out, {**record, "parts": parts})
    for offset, length in parts:
        _copy(file, offset, out, os.lseek(out, 0, os.SEEK_CUR), length)
        os.lseek(out, length, os.SEEK_CUR)


def _read_record(source: int, at: int) -> tuple[dict[str, Any], int]:
    """The record at ``at``, and its end. Raises :class:`RecordsError`."""
    length = int.from_bytes(os.pread(source, 4, at), "big")
    data = os.pread(source, length, at + 4) if length <= _MAX_RECORD else b""
    try:
        record = wire.decode(data)
    except wire.WireError:
        raise RecordsError("no record") from None
    if not isinstance(record, dict) or set(record) != _KEYS or not _is_sound(record):
        raise RecordsError("no record")
    return record, at + 4 + length


def _is_sound(record: dict[str, Any]) -> bool:
    path, target, parts = record["path"], record["target"], record["parts"]
    if not isinstance(path, bytes) or not isinstance(target, bytes) or not isinstance(parts, list):
        return False
    if any(type(record[name]) is not int for name in ("mode", "mtime", "size")):
        return False
    names = path.split(b"/")
    if len(path) > _MAX_PATH or any(not name or name in (b".", b"..") or len(name) > _MAX_NAME for name in names):
        return False
    if b"\0" in path or b"\0" in target or len(names) > _DEPTH + 1 or not -_MOST_TIME < record["mtime"] < _MOST_TIME:
        return False
    return record["kind"] in ("file", "folder", "link", "pipe", "gone") and _are_parts(parts, record["size"])


def _are_parts(parts: list[Any], size: int) -> bool:
    """Whether these are ordered pieces of a file of that size, each at least a block except the last."""
    at = 0
    for part in parts:
        if not isinstance(part, list) or [type(number) for number in part] != [int, int]:
            return False
        offset, length = part
        if offset < at or length < min(_BLOCK, max(1, size - offset)) or offset + length > size:
            return False
        at = offset + length
    return len(parts) <= _MAX_PARTS and 0 <= size < 1 << 50


def _copy(source: int, offset: int, target: int, place: int, length: int) -> None:
    """Copy ``length`` bytes, with zeros for bytes past the end of the source."""
    end = offset + length
    while offset < end:
        data = os.pread(source, min(_CHUNK, end - offset), offset) or bytes(min(_CHUNK, end - offset))
        os.pwrite(target, data, place)
        offset, place = offset + len(data), place + len(data)


def _do(record: dict[str, Any], path: Path, source: int, at: int, parents: _Parents) -> int:
    """Apply one record, whose data start at ``at``. Returns their end."""
    kind = record["kind"]
    end: int = at + sum(length for _, length in record["parts"])
    try:
        folder = parents.of(path, make=kind != "gone")
    except (FileNotFoundError, NotADirectoryError):
        if kind == "gone":
            return end
        raise
    there = status_of(folder, path[-1])
    if there and not (kind == "folder" and stat.S_ISDIR(there.st_mode)):
        remove_entry(folder, path[-1])
    _make(record, path[-1], folder, source, at)
    return end


def _set_mode(folder: int, name: bytes, mode: int) -> None:
    with opened(open_folder(folder, name, unlock=True)) as made:
        os.fchmod(made, mode)


def _make(record: dict[str, Any], name: bytes, folder: int, source: int, at: int) -> None:
    kind, mode = record["kind"], record["mode"] & 0o777
    if kind == "folder":
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        _set_mode(folder, name, mode | 0o700)
    elif kind == "link":
        os.symlink(record["target"], name, dir_fd=folder)
    elif kind == "pipe":
        os.mkfifo(name, 0o600, dir_fd=folder)  # the collection of files reports pipes and skips them
    elif kind == "file":
        with opened(os.open(name, _NEW, 0o600, dir_fd=folder)) as file:
            os.ftruncate(file, record["size"])
            for offset, length in record["parts"]:
                _copy(source, at, file, offset, length)
                at += length
            os.fchmod(file, mode)
            os.utime(file, ns=(record["mtime"], record["mtime"]))
