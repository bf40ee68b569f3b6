"""The state of a caller's folder when a run or session began, and what was applied to it since."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence

from casemate.supervisor.trees.walk import Entry, Visitor, walk
from casemate.workspace.apply import WRITTEN_BACK
from casemate.workspace.rules import FolderRules, Path


class Baseline:
    """The baseline of one run or session, taken before its first cell.

    If the folder's owner changes what the cell changed too, that is a conflict. For files, the time of the last status
    change shows it, which no call sets back (inode(7)). For missing names, it depends on whether they existed when the
    layer first had something at that path.
    """

    def __init__(self, passing: Iterable[Path] = ()) -> None:
        # Folders that count as no change while they are empty.
        self.passing = frozenset(passing)
        self.rules = FolderRules()  # what stays as it is
        self.reset()

    def reset(self) -> None:
        """Start over: the layer is empty, and the folder is as the cell will see it."""
        self._since = time.time_ns()
        self._existed: dict[Path, bool] = {}  # whether a path existed when the layer first covered it
        self.applied: dict[Path, tuple[int, ...]] = {}  # signatures of what was applied from the layer
        self._made: dict[Path, tuple[int, ...]] = {}  # signatures of what this made in the folder

    def note(self, upper: int, folder: int) -> None:
        """Record new entries of the layer. Its content may change meanwhile."""
        noter = _Noter(folder, self._existed)
        walk(upper, noter, depth=WRITTEN_BACK.depth, entries=WRITTEN_BACK.entries)
        self._existed = noter.existed

    def conflict(self, path: Path, there: os.stat_result | None) -> str:
        """How the folder's owner changed ``there`` at ``path``; empty if not."""
        made, existed = self._made.get(path), self._existed.setdefault(path, there is not None)
        if there is None:
            return "it was removed here meanwhile" if made or existed else ""
        if stat.S_ISDIR(there.st_mode):  # its content is checked separately
            return ""
        is_changed = there.st_ctime_ns > self._since if made is None else made != signature(there)
        return "it was changed here meanwhile" if is_changed else ""

    def orphans(self, met: Mapping[Path, object], removals: Sequence[Path], complete: bool) -> list[Path]:
        """The outermost paths that were made for entries which are gone from the layer."""
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
        """Record that ``paths`` were applied: ``met`` in the layer, ``made`` in the folder."""
        for path in paths:
            if path in made:
                self._made[path] = made[path]
            elif not exists(folder, path):
                self._made.pop(path, None)
            if path in met:
                self.applied[path] = met[path]
        self.applied = {path: known for path, known in self.applied.items() if path in met}


class _Noter(Visitor):
    def __init__(self, folder: int, before: Mapping[Path, bool]) -> None:
        self._folder, self._before = folder, before
        self.existed: dict[Path, bool] = {}

    def visit(self, entry: Entry) -> None:
        known = self._before.get(entry.path)
        self.existed[entry.path] = exists(self._folder, entry.path) if known is None else known


def signature(status: os.stat_result) -> tuple[int, ...]:
    """Identifies a file and its state. A program cannot set the last number (inode(7))."""
    return status.st_ino, status.st_size, status.st_ctime_ns


def exists(folder: int, path: Path) -> bool:
    """Whether anything is at ``path``. Follows no link in the last component."""
    try:
        os.stat(b"/".join(path), dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
