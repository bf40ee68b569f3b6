"""Walks a hostile tree iteratively, by descriptors, without following links.

Nothing else should change the tree meanwhile, but security does not depend on that: each folder is opened by one
component with O_NOFOLLOW beneath the folder that listed it, and an opened file must be the one that was checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from contextvars import ContextVar
from itertools import islice

TYPE_CHECKING = False  # importing typing would take half of the supervisor's start
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    Path = tuple[bytes, ...]
    Owner = tuple[int, int]  # user and group


_DEADLINES: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines", default=())


class Deadline:
    """A block whose work on trees must stop at ``end``. Another thread may set an earlier ``end``."""

    def __init__(self, seconds: float = float("inf")) -> None:
        self.seconds, self.end = seconds, time.monotonic() + seconds

    def __enter__(self) -> Self:
        self._before = _DEADLINES.set((*_DEADLINES.get(), self))
        return self

    def __exit__(self, *failure: object) -> None:
        _DEADLINES.reset(self._before)


def check_deadline() -> None:
    """Raise ``TimeoutError`` if a deadline has passed."""
    for one in _DEADLINES.get():
        if time.monotonic() >= one.end:
            raise TimeoutError(errno.ETIMEDOUT, f"the time limit of {one.seconds:g} seconds has passed")


class Visitor:
    """Callbacks of a walk, which do nothing by default."""

    def enter(self, _entry: Entry, _folder: int, /) -> bool:
        """Called for a folder and its descriptor. Returns whether to enter it. Only then is ``leave`` called."""
        return True

    def leave(self, entry: Entry, /) -> None:
        """Called after everything in a folder."""

    def visit(self, entry: Entry, /) -> None:
        """Called for anything but a folder."""

    def skip(self, path: Path, reason: str, /) -> None:
        """Called for what is not examined, because of a bound or an error."""


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Without O_PATH, as on macOS, clients of a service import this module but never walk.
_HANDLE = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


class Entry:
    """An entry of a tree. ``stat`` is its own, never that of a link's target, from before any unlocking. ``parent`` is
    the descriptor of its folder during the visit."""

    __slots__ = ("parent", "path", "stat")

    def __init__(self, path: Path, stat: os.stat_result, parent: int) -> None:
        self.path, self.stat, self.parent = path, stat, parent

    @property
    def name(self) -> bytes:
        return self.path[-1]


class _OpenFolder:
    """``mode``: permission bits to restore on leaving, or None."""

    __slots__ = ("entry", "folder", "mode", "names", "path")

    def __init__(self, entry: Entry | None, path: Path, folder: int, names: Iterator[bytes], mode: int | None) -> None:
        self.entry, self.path, self.folder, self.names, self.mode = entry, path, folder, names, mode


class _TreeWalk:
    def __init__(self, visitor: Visitor, depth: int, entries: int, unlock: bool, relock: bool) -> None:
        self._visitor = visitor
        self._depth = depth
        self._entries = entries
        self._left = entries
        self._unlock = unlock
        self._relock = relock

    def through(self, root: int, path: Path) -> None:
        levels = [_OpenFolder(None, path, root, self._names(root, path), None)]
        try:
            while levels:
                name = next(levels[-1].names, None)
                if name is None:
                    self._leave(levels.pop())
                elif below := self._visit(levels[-1], name):
                    levels.append(below)
        finally:
            for level in levels:
                os.close(level.folder)

    def _leave(self, level: _OpenFolder) -> None:
        if level.mode is not None:
            os.fchmod(level.folder, level.mode)
        os.close(level.folder)
        if level.entry:
            self._visitor.leave(level.entry)

    def _names(self, folder: int, path: Path) -> Iterator[bytes]:
        count_of_each = 1 + sum(map(len, path)) // 512  # visitors keep paths, so long ones count more
        try:
            with os.scandir(folder) as listing:
                names = [os.fsencode(entry.name) for entry in islice(listing, self._left // count_of_each)]
                more = next(listing, None) is not None
        except OSError as error:
            self._visitor.skip(path, f"it cannot be listed: {error.strerror}")
            return iter(())
        self._left -= len(names) * count_of_each
        if more:
            self._visitor.skip(path, f"there are more than {self._entries} entries; the rest was skipped")
        return iter(sorted(names))

    def _visit(self, level: _OpenFolder, name: bytes) -> _OpenFolder | None:
        path = (*level.path, name)
        try:
            check_deadline()
            entry = Entry(path, os.stat(name, dir_fd=level.folder, follow_symlinks=False), level.folder)
            if not stat.S_ISDIR(entry.stat.st_mode):
                self._visitor.visit(entry)
                return None
            if len(path) > self._depth:
                self._visitor.skip(path, f"it lies deeper than {self._depth} folders")
                return None
            folder = open_folder(level.folder, name, unlock=self._unlock)
        except OSError as error:
            self._visitor.skip(path, f"it cannot be read: {error.strerror}")
            return None
        return self._enter(entry, folder)

    def _enter(self, entry: Entry, folder: int) -> _OpenFolder | None:
        try:
            inside = self._visitor.enter(entry, folder)
        except BaseException:
            os.close(folder)
            raise
        if not inside:
            os.close(folder)
            return None
        mode = stat.S_IMODE(entry.stat.st_mode)
        locks = self._relock and mode & 0o700 != 0o700
        return _OpenFolder(entry, entry.path, folder, self._names(folder, entry.path), mode if locks else None)


def walk(
    root: int, visitor: Visitor, *, depth: int, entries: int, at: Path = (), unlock: bool = False, relock: bool = False
) -> None:
    """Visit everything beneath the folder ``root`` in order of names. ``at`` is its place, for paths and depth.

    ``unlock`` gives folders missing permission bits first, so the tree must be ours to change; ``relock`` takes them
    away again. After the deadline the rest is skipped. At most ``depth`` + 1 descriptors are open at a time. Exceptions
    of the visitor, except ``OSError``, end the walk."""
    _TreeWalk(visitor, depth, entries, unlock, relock).through(open_folder(root, b".", unlock=unlock), at)


class opened:  # noqa: N801 - reads as a statement
    """A block that closes the descriptor at its end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *failure: object) -> None:
        os.close(self._fd)


def open_folder(parent: int, name: bytes | str, *, unlock: bool = False) -> int:
    """Open the folder ``name`` (one component) in ``parent``. Raises ``OSError``, also for a link."""
    if not unlock:
        return os.open(name, _FOLDER, dir_fd=parent)
    # A folder without search permission has no ".", but its descriptor can still be unlocked.
    place = os.dup(parent) if name in (".", b".") else os.open(name, _HANDLE | os.O_DIRECTORY, dir_fd=parent)
    with opened(place) as handle:
        _unlock(handle, os.fstat(handle).st_mode, 0o700)
        return os.open(".", _FOLDER, dir_fd=handle)


def open_file(entry: Entry, *, unlock: bool = False) -> int:
    """Open the regular file ``entry`` for reading, if it is still the file that was seen. Never blocks and never opens
    a link or a device. Raises ``OSError``."""
    with opened(os.open(entry.name, _HANDLE, dir_fd=entry.parent)) as handle:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode) or identity(seen) != identity(entry.stat):
            raise OSError(errno.ESTALE, "it changed while it was examined")
        if unlock:
            _unlock(handle, seen.st_mode, 0o400)
        return os.open(f"/proc/self/fd/{handle}", _FILE)


def enter_folder(parent: int, name: bytes | str, owner: Owner | None = None) -> int:
    """Open the folder ``name`` in ``parent``; make it for ``owner`` if missing. Raises ``OSError``, also for a link."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o777, dir_fd=parent)
        if owner is not None:
            os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
    try:
        return open_folder(parent, name)
    except NotADirectoryError:
        raise NotADirectoryError(errno.ENOTDIR, "a link or a file is where a folder is needed", name) from None


def open_beneath(root: int, path: Sequence[bytes | str], *, make: bool = False, owner: Owner | None = None) -> int:
    """Open the folder at ``path`` beneath ``root``. No component may be a link or "..". ``make`` makes missing folders,
    owned by ``owner``. Raises ``OSError``."""
    folder = os.open(".", _FOLDER, dir_fd=root)
    for name in path:
        try:
            if name in (b"..", ".."):
                raise OSError(errno.EXDEV, "a path leads out of its folder")
            below = enter_folder(folder, name, owner) if make else open_folder(folder, name)
        finally:
            os.close(folder)
        folder = below
    return folder


def status_of(folder: int, name: bytes | str) -> os.stat_result | None:
    """The status of ``name`` in ``folder``, of a link itself, or None if missing. Raises other ``OSError``."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def identity(status: os.stat_result) -> tuple[int, int]:
    """The file's device and inode."""
    return status.st_dev, status.st_ino


def data_in(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of data in a file; holes are left out."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = min(size, os.lseek(fd, start, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.EINVAL:  # this file system does not support it
                yield end, size
            return  # only a hole follows
        yield start, end


def _unlock(handle: int, mode: int, needed: int) -> None:
    """Add the permission bits that reading needs (an O_PATH descriptor has no fchmod)."""
    if mode & needed != needed:
        with contextlib.suppress(OSError):  # root needs none; for other users the open then fails
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) & 0o777 | needed)
