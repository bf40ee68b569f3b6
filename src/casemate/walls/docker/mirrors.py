"""Host folders that mirror what a container's cell can write, kept in sync by records."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from casemate.supervisor.trees.copies import FolderCopy
from casemate.supervisor.trees.records import Bounds, RecordsError, Tree
from casemate.supervisor.trees.remove import remove_when_unused
from casemate.supervisor.trees.walk import enter_folder, identity, open_beneath, open_folder, opened
from casemate.walls.docker.containers import new_file

_CURRENT = "current"  # a link in a shown folder; it changes when the folder's content does
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SLACK_ENTRIES = 64  # folders that casemate makes itself
_SLACK_BYTES = 1 << 20


class ShownFolder:
    """A container's copy of a host folder, refreshed when the folder's link ``current`` changes."""

    def __init__(self) -> None:
        self._tree = Tree(-1)
        self._shown = ("", "")

    def changes(self, source: str) -> int | None:
        """Return a file with the records of ``source`` that the container lacks, or None. Raises ``OSError``."""
        with opened(os.open(source, _FOLDER)) as self._tree.root:
            now = source, _current(self._tree.root)
            if now == self._shown:
                return None
            self._shown = now
            return self._tree.write_changes(new_file)


def _current(folder: int) -> str:
    try:
        return os.readlink(_CURRENT, dir_fd=folder)
    except OSError:
        return ""


class Mirror:
    """The mirror of one cell, or of all cells of a session. ``name``: the name of its new folder in ``parent``.
    ``workspace``: as in the launch request.

    `workspace/` is what the cell sees. With a caller's folder, `upper/` holds the changes, like the upper layer of an
    overlay.
    """

    def __init__(self, parent: Path, name: str, workspace: dict[str, Any], limits: dict[str, Any]) -> None:
        """Raises ``OSError``."""
        self._path = str(parent / name)
        self._bounds = Bounds(limits["disk"] + _SLACK_BYTES, limits["inodes"] + _SLACK_ENTRIES)
        self._is_overlay = workspace["kind"] == "overlay"
        self._copy = FolderCopy()  # of a caller's folder
        os.mkdir(self._path)
        self.fd = os.open(self._path, _FOLDER)
        fcntl.flock(self.fd, fcntl.LOCK_SH)
        self._tree = Tree(enter_folder(self.fd, "workspace"))
        if self._is_overlay:
            os.close(open_beneath(self.fd, ("upper", "output"), make=True))
        else:
            self._make_output()

    def close(self) -> None:
        """Close the mirror. It is removed once no process reads it."""
        os.close(self._tree.root)
        os.close(self.fd)
        remove_when_unused(self._path)

    def open_workspace(self) -> int:
        """Open the workspace folder of the mirror."""
        return open_folder(self.fd, "workspace")

    def copy_folder(self, folder: str, hidden: Sequence[str], inode: list[int]) -> int | None:
        """Copy the caller's folder into the mirror; its records as a file. Raises ``OSError`` and ``RecordsError``."""
        with opened(os.open(folder, _FOLDER)) as source:
            if [*identity(os.fstat(source))] != inode:
                raise OSError(116, "the folder was replaced while the run was being prepared")  # ESTALE
            self._copy.fill(source, self._tree.root, hidden)
        records = self._tree.write_changes(new_file)
        self._copy.note(self._tree.root, now=self._tree.known)
        self._make_output()
        if records is not None and os.fstat(records).st_size > self._bounds.data:
            os.close(records)
            raise RecordsError("the folder is larger than limits.disk")
        return records

    def _make_output(self) -> None:
        with contextlib.suppress(OSError):  # the caller's `output` is not a folder
            os.close(enter_folder(self._tree.root, "output"))
            self._tree.note([(b"output",)])

    def take(self, records: int) -> None:
        """Apply the cell's changes. Raises ``OSError`` and ``RecordsError``; then take nothing more from the cell."""
        self._lay_out(self._tree.apply(records, self._bounds))

    def whole(self) -> int | None:
        """Return a file with the records of everything, for a new container. Raises ``OSError``."""
        self._tree.known = {}
        return self._tree.write_changes(new_file)

    def changes(self) -> int | None:
        """Return a file with the records of what the host changed, or None. Raises ``OSError``."""
        records = self._tree.write_changes(new_file)
        if records is not None:
            self._lay_out(self._tree.known)
        return records

    def _lay_out(self, now: dict[tuple[bytes, ...], tuple[int, int, int]]) -> None:
        """Put the changes into `upper/`."""
        if self._is_overlay:
            with opened(open_folder(self.fd, "upper")) as upper:
                self._copy.lay_out(self._tree.root, upper, now=now)
