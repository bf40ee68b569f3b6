"""The host's use of walks through hostile trees (:mod:`casemate.supervisor.trees.walk`).

Handled entries are remembered, so that a later walk handles only what has changed since.
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
    """The kind of an entry for people: ``a link``, ``a fifo``."""
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
    """Remembers files by inode, size and last status change (inode(7)), which no program sets; folders by path."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        self._met: set[tuple[bytes, ...]] = set()
        self._made: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        self._folders: dict[tuple[bytes, ...], tuple[int, int]] = {}

    def begin(self) -> None:
        """Begin a walk. Afterwards, `orphaned_paths` lists what the walk did not meet."""
        self._met.clear()

    def meet(self, path: tuple[bytes, ...]) -> None:
        """Note that ``path`` exists."""
        self._met.add(path)

    def meet_folder(self, entry: Entry) -> None:
        """Note that a folder exists, and its inode and mode."""
        self.meet(entry.path)
        if len(self._folders) < 2 * _ENTRIES:
            self._folders[entry.path] = _folder_signature(entry.stat)

    def note_made(self, path: tuple[bytes, ...], what: os.stat_result) -> None:
        """Note that ``what`` was made at ``path`` elsewhere for an entry of this tree."""
        self._made[path] = _made_signature(what)

    def is_somebody_elses(self, path: tuple[bytes, ...], there: os.stat_result | None) -> bool:
        """Whether something was made at ``path`` elsewhere and ``there`` differs from it: it was replaced or edited."""
        made = self._made.get(path)
        return made is not None and there is not None and made != _made_signature(there)

    def forget_unmet(self) -> None:
        """Forget what a complete walk did not meet, so that files made and removed forever do not fill our memory."""
        self._known = {path: known for path, known in self._known.items() if path in self._met}
        self._folders = {path: known for path, known in self._folders.items() if path in self._met}

    def orphaned_paths(self) -> list[tuple[bytes, ...]]:
        """The paths made for entries that are gone, the deepest first. Each is reported once."""
        paths = sorted((path for path in self._made if path not in self._met), key=len, reverse=True)
        for path in paths:
            self._known.pop(path, None)
        return paths

    def forget(self, path: tuple[bytes, ...]) -> None:
        """Forget what was made at ``path``: it is gone, or no longer ours to remove."""
        self._made.pop(path, None)

    def is_old(self, entry: Entry) -> bool:
        """Whether ``entry`` is unchanged since the last call, and remember it."""
        self.meet(entry.path)
        now = _signature(entry.stat)
        before = self._known.get(entry.path)
        if before is not None or len(self._known) < 2 * _ENTRIES:
            self._known[entry.path] = now
        return before == now

    def put_off(self, path: tuple[bytes, ...]) -> None:
        """Treat ``path`` as new in the next walk."""
        self._known.pop(path, None)
        self._folders.pop(path, None)

    def is_whole(self, root: int, at: tuple[bytes, ...] = (), *, folders: bool = False) -> bool:
        """Whether nothing in the folder ``root``, at ``at`` in the tree, is new or changed, and no entry is gone for
        which something was made. ``folders``: whether folders count, too. Remembers nothing."""
        look = _ChangeProbe(self._known, self._folders if folders else None)
        walk(root, look, depth=_DEPTH, entries=_ENTRIES, at=at)
        return not look.found_new and look.met >= self._made.keys()


class _ChangeProbe(Visitor):
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
    """The identity and state of an entry; only the identity of a folder, which changes with its content."""
    which = (status.st_dev, status.st_ino)
    return which if stat.S_ISDIR(status.st_mode) else (*which, status.st_size, status.st_mtime_ns)


def _folder_signature(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mode


def _signature(status: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(status.st_mode):
        return ()  # its content is checked anyway
    return status.st_ino, status.st_size, status.st_ctime_ns
