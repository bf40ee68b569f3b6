"""What a caller's folder was like when a run or session began, and what of its changes has come into it since."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence

from casemate.supervisor.trees.walk import Entry, Visitor, walk
from casemate.workspace.apply import WRITTEN_BACK
from casemate.workspace.rules import FolderRules

Path = tuple[bytes, ...]


class Baseline:
    """Of one run or session, from before its first cell. ``passing``: folders that are no change while they are empty.

    What the folder's owner changes is a conflict where the cell has changed the same: the time of a file's last change
    tells, which no call sets back (inode(7)), and for names that are gone, whether they were there when the layer had
    something at that path for the first time.
    """

    def __init__(self, passing: Iterable[Path] = ()) -> None:
        self.passing = frozenset(passing)
        self.rules = FolderRules()  # what stays as it is
        self.reset()

    def reset(self) -> None:
        """The layer is empty, and the folder as the cell will see it."""
        self._since = time.time_ns()
        self._existed: dict[Path, bool] = {}  # what was there when something came over it
        self.applied: dict[Path, tuple[int, ...]] = {}  # what of the layer was applied
        self._made: dict[Path, tuple[int, ...]] = {}  # and what that has made in the folder

    def note(self, upper: int, folder: int) -> None:
        """Take note of what has come into the layer. Whatever is in it may change meanwhile."""
        noter = _Noter(folder, self._existed)
        walk(upper, noter, depth=WRITTEN_BACK.depth, entries=WRITTEN_BACK.entries)
        self._existed = noter.existed

    def conflict(self, path: Path, there: os.stat_result | None) -> str:
        """What the folder's owner has done to ``there``, which lies at ``path`` in it."""
        made, existed = self._made.get(path), self._existed.setdefault(path, there is not None)
        if there is None:
            return "it was removed here meanwhile" if made or existed else ""
        if stat.S_ISDIR(there.st_mode):  # what is in it is looked at by itself
            return ""
        is_changed = there.st_ctime_ns > self._since if made is None else made != signature(there)
        return "it was changed here meanwhile" if is_changed else ""

    def orphans(self, met: Mapping[Path, object], removals: Sequence[Path], complete: bool) -> list[Path]:
        """What was made here for things that are no longer in the layer, but for what is in others of these."""
        gone = {*removals}
        for path in sorted(self._made, key=len) if complete else ():
            if path not in met and not any(path[:depth] in gone for depth in range(1, len(path) + 1)):
                gone.add(path)
        return sorted(gone - {*removals})

    def remember(
        self,
        paths: Iterable[Path],
        met: Mapping[Path, tuple[int, ...]],
        made: Mapping[Path, tuple[int, ...]],
        folder: int,
    ) -> None:
        """``paths`` were applied: ``met`` in the layer, ``made`` in the folder."""
        for path in paths:
            if path in made:
                self._made[path] = made[path]
            elif not exists(folder, path):
                self._made.pop(path, None)
            if path in met:
                self.applied[path] = met[path]
        self.applied = {path: known for path, known in self.applied.items() if path in met}


class _Noter(Visitor):
    """A visit that only tells what is there."""

    def __init__(self, folder: int, before: Mapping[Path, bool]) -> None:
        self._folder, self._before = folder, before
        self.existed: dict[Path, bool] = {}

    def visit(self, entry: Entry) -> None:
        known = self._before.get(entry.path)
        self.existed[entry.path] = exists(self._folder, entry.path) if known is None else known


def signature(status: os.stat_result) -> tuple[int, ...]:
    """Which state of which thing; a program cannot set the last of these (inode(7))."""
    return status.st_ino, status.st_size, status.st_ctime_ns


def exists(folder: int, path: Path) -> bool:
    """Whether anything lies there."""
    try:
        os.stat(b"/".join(path), dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
