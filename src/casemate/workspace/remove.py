"""Remove what a run removed from a caller's folder, except protected names.

Follows no links, enters no other file system (the run did not see what is mounted there), and does not recurse.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from casemate.files.beneath import hold, mount_of
from casemate.files.names import display_path
from casemate.supervisor.trees.walk import Entry, Visitor, check_deadline, open_folder, status_of, walk

_DEPTH = 200
_ENTRIES = 1_000_000

Keep = Callable[[tuple[bytes, ...], bool], str | None]
Report = Callable[[str, str], None]


def remove(folder: int, path: tuple[bytes, ...], keep: Keep, report: Report, *, unlock: bool = False) -> bool:
    """Remove the last component of ``path`` from ``folder``, with its content. True if it is gone.

    ``keep`` says why a path (a folder or not) must stay; ``report`` gets what stays. ``unlock``: as for ``walk``.
    Raises ``OSError``.
    """
    check_deadline()
    there = status_of(folder, path[-1])
    if there is None:
        return True
    if reason := keep(path, stat.S_ISDIR(there.st_mode)):
        report(display_path(path), reason)
        return False
    if not stat.S_ISDIR(there.st_mode):
        os.unlink(path[-1], dir_fd=folder)
        return True
    _empty(folder, path, _Remover(mount_of(folder), keep, report), unlock=unlock)
    return _remove_empty(folder, path[-1])


def obstacle(folder: int, path: tuple[bytes, ...], keep: Keep) -> str | None:
    """Why the folder at the last component of ``path`` cannot be removed as a whole, or None."""
    looker = _Remover(mount_of(folder), keep, None)
    _empty(folder, path, looker)
    return looker.kept


def _empty(folder: int, path: tuple[bytes, ...], remover: _Remover, *, unlock: bool = False) -> None:
    with hold(open_folder(folder, path[-1], unlock=unlock)) as inside:
        if mount_of(inside) != remover.mount:
            remover.stay(path, "another file system is mounted there")
        else:
            walk(inside, remover, depth=_DEPTH, entries=_ENTRIES, at=path, unlock=unlock)


def _remove_empty(folder: int, name: bytes) -> bool:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


class _Remover(Visitor):
    """Removes what a walk finds or, without ``report``, only finds what would have to stay."""

    def __init__(self, mount: int, keep: Keep, report: Report | None) -> None:
        self.mount = mount
        self.kept: str | None = None
        self._keep = keep
        self._report = report

    def enter(self, entry: Entry, folder: int) -> bool:
        reason = self._keep(entry.path, True)
        if reason is None and mount_of(folder) != self.mount:
            reason = "another file system is mounted there"
        if reason:
            self.stay(entry.path, reason)
        return reason is None

    def leave(self, entry: Entry) -> None:
        if self._report and not _remove_empty(entry.parent, entry.name):
            self.kept = self.kept or f"{display_path(entry.path)} is not empty"

    def visit(self, entry: Entry) -> None:
        reason = self._keep(entry.path, False)
        if reason:
            self.stay(entry.path, reason)
        elif self._report:
            try:
                os.unlink(entry.name, dir_fd=entry.parent)
            except OSError as error:
                self.stay(entry.path, f"it cannot be removed: {error.strerror}")

    def skip(self, path: tuple[bytes, ...], reason: str) -> None:
        self.stay(path, reason)

    def stay(self, path: tuple[bytes, ...], reason: str) -> None:
        self.kept = self.kept or f"{display_path(path)}: {reason}"
        if self._report:
            self._report(display_path(path), reason)
