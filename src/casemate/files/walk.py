"""What the host does with walks through hostile trees (:mod:`casemate.supervisor.trees.walk`).

What was dealt with before is remembered, so that a later walk deals only with what has changed since.
"""

from __future__ import annotations

import os
import stat

from casemate.supervisor.trees.walk import Entry, Visitor, walk

_DEPTH, _ENTRIES = 64, 100_000


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


class SeenFiles:
    """Remembers each file by its inode, its size and the time of its last change, which no program sets (inode(7)), and
    folders by their paths."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        self._met: set[tuple[bytes, ...]] = set()
        self._made: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        self._folders: dict[tuple[bytes, ...], tuple[int, int]] = {}

    def begin(self) -> None:
        """A look begins; `orphaned_paths` then tells what it has not met any more."""
        self._met.clear()

    def meet(self, path: tuple[bytes, ...]) -> None:
        """Something is there."""
        self._met.add(path)

    def meet_folder(self, entry: Entry) -> None:
        """A folder is there, as it is."""
        self.meet(entry.path)
        if len(self._folders) < 2 * _ENTRIES:
            self._folders[entry.path] = _folder_signature(entry.stat)

    def note_made(self, path: tuple[bytes, ...], what: os.stat_result) -> None:
        """``what`` is at ``path`` elsewhere and was made because of this tree."""
        self._made[path] = _made_signature(what)

    def is_somebody_elses(self, path: tuple[bytes, ...], there: os.stat_result | None) -> bool:
        """Whether something was made at ``path`` elsewhere, and ``there`` is now something else: replaced or edited."""
        made = self._made.get(path)
        return made is not None and there is not None and made != _made_signature(there)

    def forget_unmet(self) -> None:
        """What a whole look has not met is new when it is met again: a program that makes and removes files without end
        shall not fill our memory."""
        self._known = {path: known for path, known in self._known.items() if path in self._met}
        self._folders = {path: known for path, known in self._folders.items() if path in self._met}

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
        if before is not None or len(self._known) < 2 * _ENTRIES:
            self._known[entry.path] = now
        return before == now

    def put_off(self, path: tuple[bytes, ...]) -> None:
        """What is at ``path`` counts as new at the next look."""
        self._known.pop(path, None)
        self._folders.pop(path, None)

    def is_whole(self, root: int, at: tuple[bytes, ...] = (), *, folders: bool = False) -> bool:
        """Whether nothing in the folder ``root``, which lies ``at`` in the tree, is new or changed, and nothing of what
        something was made for has gone. ``folders``: whether these count, too. Nothing is noted.
        """
        look = _ChangeProbe(self._known, self._folders if folders else None)
        walk(root, look, depth=_DEPTH, entries=_ENTRIES, at=at)
        return not look.found_new and look.met >= self._made.keys()


class _ChangeProbe(Visitor):
    """A visit that only looks."""

    def __init__(
        self, known: dict[tuple[bytes, ...], tuple[int, ...]], folders: dict[tuple[bytes, ...], tuple[int, int]] | None
    ) -> None:
        self._known, self._folders = known, folders
        self.found_new = False
        self.met: set[tuple[bytes, ...]] = set()

    def enter(self, entry: Entry, _folder: int) -> bool:
        self.met.add(entry.path)
        if self._folders is not None and self._folders.get(entry.path) != _folder_signature(entry.stat):
            self.found_new = True
        return not self.found_new

    def visit(self, entry: Entry) -> None:
        self.met.add(entry.path)
        if self._known.get(entry.path) != _signature(entry.stat):
            self.found_new = True


def _made_signature(status: os.stat_result) -> tuple[int, ...]:
    """Which thing it is, and of which moment; a folder changes with all that is made in it."""
    which = (status.st_dev, status.st_ino)
    return which if stat.S_ISDIR(status.st_mode) else (*which, status.st_size, status.st_mtime_ns)


def _folder_signature(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mode


def _signature(status: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(status.st_mode):
        return ()  # what is in it is looked at anyway
    return status.st_ino, status.st_size, status.st_ctime_ns
