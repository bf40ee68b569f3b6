"""A walk through a hostile tree: iterative, by descriptors, without following any link.

Nothing else may change the tree meanwhile, but nothing depends on it: each folder is opened by one component with
O_NOFOLLOW beneath the folder it was listed in, and files are checked again after opening. What was dealt with before is
remembered, so that a later walk deals only with what has changed since.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Where there is no O_PATH, as on macOS, clients of a service load this and walk nowhere.
_HANDLE = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a tree: its ``path`` from the root, its ``stat`` (of the thing itself, never of a link's
    target, and before any unlocking) and ``parent``, the descriptor of its folder during the visit.
    """

    path: tuple[bytes, ...]
    stat: os.stat_result
    parent: int

    @property
    def name(self) -> bytes:
        """The last component."""
        return self.path[-1]


class Visitor(Protocol):
    """What is done with each thing that a walk meets."""

    def enter(self, entry: Entry, folder: int, /) -> bool:
        """A folder, opened as ``folder``: whether to go in. ``leave`` follows only if so."""

    def leave(self, entry: Entry) -> None:
        """All of a folder was visited."""

    def visit(self, entry: Entry) -> None:
        """Anything but a folder."""

    def skip(self, path: tuple[bytes, ...], reason: str) -> None:
        """Something was not looked at: a bound, or the system refused."""


@dataclass(slots=True)
class _OpenFolder:
    entry: Entry | None
    path: tuple[bytes, ...]
    folder: int
    names: Iterator[bytes]


class _TreeWalk:
    def __init__(self, visitor: Visitor, depth: int, entries: int, unlock: bool) -> None:
        self._visitor = visitor
        self._depth = depth
        self._entries = entries
        self._left = entries
        self._unlock = unlock

    def through(self, root: int, path: tuple[bytes, ...]) -> None:
        levels = [_OpenFolder(None, path, root, self._names(root, path))]
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
        os.close(level.folder)
        if level.entry:
            self._visitor.leave(level.entry)

    def _names(self, folder: int, path: tuple[bytes, ...]) -> Iterator[bytes]:
        try:
            with os.scandir(folder) as listing:
                names = [os.fsencode(entry.name) for entry in islice(listing, self._left)]
                more = next(listing, None) is not None
        except OSError as error:
            self._visitor.skip(path, f"it cannot be listed: {error.strerror}")
            return iter(())
        self._left -= len(names)
        if more:
            self._visitor.skip(path, f"there are more than {self._entries} entries; the rest was not looked at")
        return iter(sorted(names))

    def _visit(self, level: _OpenFolder, name: bytes) -> _OpenFolder | None:
        path = (*level.path, name)
        try:
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
        return _OpenFolder(entry, entry.path, folder, self._names(folder, entry.path))


def walk(
    root: int,
    visitor: Visitor,
    *,
    depth: int,
    entries: int,
    at: tuple[bytes, ...] = (),
    unlock: bool = False,
) -> None:
    """Visit everything beneath the folder ``root``, in order of names; ``at`` is where it lies, for paths and depth.

    ``unlock``: folders without permission bits are given some first; the tree is ours to change.
    At most ``depth`` + 1 descriptors are open at a time. What the visitor raises (but not ``OSError``) ends the walk.
    """
    _TreeWalk(visitor, depth, entries, unlock).through(open_folder(root, b".", unlock=unlock), at)


def open_folder(parent: int, name: bytes | str, *, unlock: bool = False) -> int:
    """A descriptor of the folder ``name`` (one component) in ``parent``. Raises ``OSError``, also for a link."""
    if not unlock:
        return os.open(name, _FOLDER, dir_fd=parent)
    # A folder that may not be searched has no "." for us, but its descriptor can be unlocked all the same.
    handle = os.dup(parent) if name in (".", b".") else os.open(name, _HANDLE | os.O_DIRECTORY, dir_fd=parent)
    try:
        _unlock(handle, os.fstat(handle).st_mode, 0o700)
        return os.open(".", _FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def open_file(entry: Entry, *, unlock: bool = False) -> int:
    """A descriptor to read the regular file ``entry``; the same file that was seen.

    Never blocks and never opens a link or a device. Raises ``OSError``.
    """
    handle = os.open(entry.name, _HANDLE, dir_fd=entry.parent)
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode) or identity(seen) != identity(entry.stat):
            raise OSError(0, "it changed while it was looked at")
        if unlock:
            _unlock(handle, seen.st_mode, 0o400)
        return os.open(f"/proc/self/fd/{handle}", _FILE & ~os.O_NOFOLLOW)
    finally:
        os.close(handle)


def identity(status: os.stat_result) -> tuple[int, int]:
    """Which file it is: device and inode."""
    return status.st_dev, status.st_ino


def is_whiteout(status: os.stat_result) -> bool:
    """Whether it is overlayfs's mark for a removed name: a character device 0/0."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def kind_of(mode: int) -> str:
    """What a thing is, for people: ``a link``, ``a fifo``."""
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a fifo",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFDIR: "a folder",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def _unlock(handle: int, mode: int, needed: int) -> None:
    """Give a thing that is ours the permission bits that reading it takes (an O_PATH descriptor has no fchmod)."""
    if mode & needed != needed:
        with suppress(OSError):  # root reads without; for others opening then says what is wrong
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) & 0o777 | needed)


_DEPTH, _ENTRIES = 64, 100_000


class SeenFiles:
    """Remembers each file by its inode, its size and the time of its last change, which no program sets (inode(7)), and
    folders by their paths."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        self._met: set[tuple[bytes, ...]] = set()
        self._made: dict[tuple[bytes, ...], tuple[int, ...]] = {}

    def begin(self) -> None:
        """A look begins; `orphaned_paths` then tells what it has not met any more."""
        self._met.clear()

    def meet(self, path: tuple[bytes, ...]) -> None:
        """Something is there."""
        self._met.add(path)

    def note_made(self, path: tuple[bytes, ...], what: os.stat_result) -> None:
        """``what`` is at ``path`` elsewhere and was made because of this tree."""
        self._made[path] = _made_signature(what)

    def is_somebody_elses(self, path: tuple[bytes, ...], there: os.stat_result | None) -> bool:
        """Whether something was made at ``path`` elsewhere, and ``there`` is now something else: replaced or edited."""
        made = self._made.get(path)
        return made is not None and there is not None and made != _made_signature(there)

    def forget_unmet(self) -> None:
        """What the look has not met is new when it is met again: a program that makes and removes files without end
        shall not fill our memory."""
        self._known = {path: known for path, known in self._known.items() if path in self._met}

    def orphaned_paths(self) -> list[tuple[bytes, ...]]:
        """What was made because of things that are no longer there, the deepest first; it is told once."""
        paths = sorted((path for path in self._made if path not in self._met), key=len, reverse=True)
        for path in paths:
            self._known.pop(path, None)
        return paths

    def forget(self, path: tuple[bytes, ...]) -> None:
        """What was made at ``path`` is gone, or not ours to remove any more."""
        self._made.pop(path, None)

    def is_old(self, entry: Entry) -> bool:
        """Whether ``entry`` is as it was when this was asked last; from now on it is."""
        self.meet(entry.path)
        now = _signature(entry.stat)
        before = self._known.get(entry.path)
        self._known[entry.path] = now
        return before == now

    def is_whole(self, root: int, at: tuple[bytes, ...] = ()) -> bool:
        """Whether nothing in the folder ``root``, which lies ``at`` in the tree, is new or changed, and nothing of what
        something was made for has gone. Nothing is noted.
        """
        look = _ChangeProbe(self._known)
        walk(root, look, depth=_DEPTH, entries=_ENTRIES, at=at)
        return not look.found_new and look.met >= self._made.keys()


class _ChangeProbe:
    """A visit that only looks."""

    def __init__(self, known: dict[tuple[bytes, ...], tuple[int, ...]]) -> None:
        self._known = known
        self.found_new = False
        self.met: set[tuple[bytes, ...]] = set()

    def enter(self, entry: Entry, _folder: int) -> bool:
        self.met.add(entry.path)
        return not self.found_new

    def leave(self, entry: Entry) -> None:
        pass

    def visit(self, entry: Entry) -> None:
        self.met.add(entry.path)
        if self._known.get(entry.path) != _signature(entry.stat):
            self.found_new = True

    def skip(self, path: tuple[bytes, ...], reason: str) -> None:
        pass


def _made_signature(status: os.stat_result) -> tuple[int, ...]:
    """Which thing it is, and of which moment; a folder changes with all that is made in it."""
    which = (status.st_dev, status.st_ino)
    return which if stat.S_ISDIR(status.st_mode) else (*which, status.st_size, status.st_mtime_ns)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(status.st_mode):
        return ()  # what is in it is looked at anyway
    return status.st_ino, status.st_size, status.st_ctime_ns
