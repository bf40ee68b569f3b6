"""A folder and its twin elsewhere: what has changed in one is written down as records, and done again in the other.

Records come from a stranger. They are parsed strictly, bounded, and done beneath one folder without following links.
"""

from __future__ import annotations

import errno
import os
import stat

from casemate.supervisor import wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_MAX_RECORD = 70_000  # bytes: a path, a link's target, and where the data of a file with holes lie
_MAX_PATH, _MAX_NAME = 4096, 255
_MAX_PARTS = 1000  # pieces of data of a file with holes
_CHUNK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEYS = {"kind", "path", "mode", "mtime", "size", "parts", "target"}
_DEPTH = 100  # folders below each other


class MirrorError(ValueError):
    """Records that nobody honest writes, or more than there may be."""


class Bounds:
    """What one set of records may hold at most."""

    def __init__(self, data: int, entries: int) -> None:
        self.data, self.entries = data, entries


class Tree:
    """The folder at ``root``, of which ``hidden`` paths are nobody's business; its state as both sides know it."""

    def __init__(self, root: str, hidden: Iterable[str] = ()) -> None:
        self.root = os.fsencode(root)
        self._hidden = {os.fsencode(path) for path in hidden}
        self._known: dict[bytes, tuple[object, ...]] = {}

    def has_changed(self) -> bool:
        """Whether there is something to write."""
        return dict(self._scan()) != self._known

    def write_changes(self, out: int) -> list[bytes]:
        """Write what has changed since the last time into the file ``out``; the paths. What cannot be read is left."""
        seen = dict(self._scan())
        gone = sorted((path for path in self._known if path not in seen), reverse=True)
        changed = [path for path, state in seen.items() if self._known.get(path) != state]
        for path in gone:
            _write_record(out, {"kind": "gone", "path": path})
        for path in changed:
            try:
                self._write_entry(out, path)
            except OSError:
                seen.pop(path)  # it is tried again
        self._known = seen
        return gone + changed

    def apply(self, source: int, bounds: Bounds) -> list[bytes]:
        """Do what is written in the file ``source``; the paths. Raises :class:`MirrorError`, and ``OSError``."""
        at, size, data, paths = 0, os.fstat(source).st_size, 0, []
        while at < size:
            record, at = _read_record(source, at)
            data += sum(length for _, length in record["parts"])
            paths.append(record["path"])
            if data > bounds.data or len(paths) > bounds.entries:
                raise MirrorError("more files than there may be")
            at = self._do(record, source, at)
        self.note(paths)
        return paths

    def note(self, paths: Iterable[bytes]) -> None:
        """Both know of these as they are now."""
        for path in paths:
            try:
                state = _state(os.lstat(self.root + b"/" + path))
            except OSError:
                state = None
            if state is None:
                self._known.pop(path, None)
            else:
                self._known[path] = state

    # -- what there is

    def _scan(self) -> Iterator[tuple[bytes, tuple[object, ...]]]:
        waiting = [(b"", 0)]
        while waiting:
            folder, depth = waiting.pop()
            try:
                entries = sorted(os.scandir(self.root + b"/" + folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                path = folder + b"/" + entry.name if folder else entry.name
                if path in self._hidden:
                    continue
                try:
                    state = _state(entry.stat(follow_symlinks=False))
                except OSError:
                    continue
                if state is not None:
                    yield path, state
                    if entry.is_dir(follow_symlinks=False) and depth < _DEPTH:
                        waiting.append((path, depth + 1))

    def _write_entry(self, out: int, path: bytes) -> None:
        place = self.root + b"/" + path
        status = os.lstat(place)
        record = {"path": path, "mode": status.st_mode & 0o777, "mtime": status.st_mtime_ns}
        if stat.S_ISDIR(status.st_mode):
            _write_record(out, {**record, "kind": "folder"})
        elif stat.S_ISLNK(status.st_mode):
            _write_record(out, {**record, "kind": "link", "target": os.readlink(place)})
        elif not stat.S_ISREG(status.st_mode):
            _write_record(out, {**record, "kind": "pipe"})
        else:
            fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                parts = list(_data_in(fd, status.st_size))
                _write_record(out, {**record, "kind": "file", "size": status.st_size, "parts": parts})
                for offset, length in parts:
                    _copy(fd, offset, out, os.lseek(out, 0, os.SEEK_CUR), length)
                    os.lseek(out, length, os.SEEK_CUR)
            finally:
                os.close(fd)

    # -- what is to be there

    def _do(self, record: dict[str, Any], source: int, at: int) -> int:
        """Do one record, whose data begin at ``at``; where they end."""
        *folders, name = record["path"].split(b"/")
        end: int = at + sum(length for _, length in record["parts"])
        try:
            folder = _open_beneath(self.root, folders)
        except FileNotFoundError:
            if record["kind"] == "gone":
                return end
            raise
        try:
            if record["kind"] != "folder" or not _is_folder(name, folder):
                _remove(name, folder)
            if record["kind"] == "folder":
                _make_folder(name, record["mode"], folder)
            elif record["kind"] == "link":
                os.symlink(record["target"], name, dir_fd=folder)
            elif record["kind"] == "pipe":
                os.mkfifo(name, 0o600, dir_fd=folder)  # whoever collects names it, and leaves it
            elif record["kind"] == "file":
                _make_file(name, record, folder, source, at)
        finally:
            os.close(folder)
        return end


def _state(status: os.stat_result) -> tuple[object, ...] | None:
    """What tells that an entry is another; None for what is not carried. A program cannot set the ctime."""
    if stat.S_ISDIR(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        return (status.st_mode,)
    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    return None


def _write_record(out: int, record: dict[str, Any]) -> None:
    full = {"mode": 0, "mtime": 0, "size": 0, "parts": [], "target": b"", **record}
    data = wire.encode(full)
    os.write(out, len(data).to_bytes(4, "big") + data)


def _read_record(source: int, at: int) -> tuple[dict[str, Any], int]:
    """The record at ``at``, and where it ends. Raises :class:`MirrorError`."""
    length = int.from_bytes(os.pread(source, 4, at), "big")
    data = os.pread(source, length, at + 4) if length <= _MAX_RECORD else b""
    try:
        record = wire.decode(data)
    except wire.WireError:
        raise MirrorError("no record") from None
    if not isinstance(record, dict) or set(record) != _KEYS or not _is_sound(record):
        raise MirrorError("no record")
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
    if b"\0" in path or b"\0" in target or len(names) > _DEPTH + 1:
        return False
    return record["kind"] in ("file", "folder", "link", "pipe", "gone") and _are_parts(parts, record["size"])


def _are_parts(parts: list[Any], size: int) -> bool:
    """Pieces of a file of that size, one behind the other."""
    at = 0
    for part in parts:
        if not isinstance(part, list) or [type(number) for number in part] != [int, int]:
            return False
        offset, length = part
        if offset < at or length <= 0 or offset + length > size:
            return False
        at = offset + length
    return len(parts) <= _MAX_PARTS and 0 <= size < 1 << 50


def _data_in(fd: int, size: int) -> Iterator[list[int]]:
    """Where there are data in a file with holes; of one with very many, the rest in one piece."""
    at, count = 0, 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # it does not tell: gVisor
                yield [at, size - at]
            return
        count += 1
        end = min(size, size if count == _MAX_PARTS else os.lseek(fd, start, os.SEEK_HOLE))
        if end > start:
            yield [start, end - start]
        at = end


def _copy(source: int, offset: int, target: int, place: int, length: int) -> None:
    """Copy so many bytes; zeros stand for what is not there any more."""
    end = offset + length
    while offset < end:
        data = os.pread(source, min(_CHUNK, end - offset), offset) or bytes(min(_CHUNK, end - offset))
        os.pwrite(target, data, place)
        offset, place = offset + len(data), place + len(data)


def _open_beneath(root: bytes, folders: list[bytes]) -> int:
    fd = os.open(root, _FOLDER)
    for name in folders:
        try:
            below = os.open(name, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _is_folder(name: bytes, folder: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove(name: bytes, folder: int) -> None:
    """Remove what is there, if anything is."""
    if not _is_folder(name, folder):
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        return
    below = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for inner in os.listdir(below):
            _remove(os.fsencode(inner), below)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=folder)


def _make_folder(name: bytes, mode: int, folder: int) -> None:
    """A folder in which there is always a way to work; one that is there gets the mode."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    os.chmod(name, mode & 0o777 | 0o700, dir_fd=folder)


def _make_file(name: bytes, record: dict[str, Any], folder: int, source: int, at: int) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.ftruncate(fd, record["size"])
        for offset, length in record["parts"]:
            _copy(source, at, fd, offset, length)
            at += length
        os.fchmod(fd, record["mode"] & 0o777)
        os.utime(fd, ns=(record["mtime"], record["mtime"]))
    finally:
        os.close(fd)
