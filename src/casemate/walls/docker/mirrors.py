"""The folder on this machine that stands for what a container's cell can write, kept up with it by records."""

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
from casemate.supervisor.trees.walk import enter_folder, identity, open_beneath, open_folder
from casemate.walls.docker.containers import new_file

_CURRENT = "current"  # in a folder that is shown: a link that changes with what is in it
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SLACK_ENTRIES = 64  # folders that casemate makes itself
_SLACK_BYTES = 1 << 20


class ShownFolder:
    """What a container has at one place of a folder of the host's that changes with its link ``current``."""

    def __init__(self) -> None:
        self._tree = Tree(-1)
        self._shown = ("", "")

    def changes(self, source: str) -> int | None:
        """A file with what there is in ``source`` that the container has not; None where nothing is. Raises
        ``OSError``."""
        self._tree.root = os.open(source, _FOLDER)
        try:
            now = source, _current(self._tree.root)
            if now == self._shown:
                return None
            self._shown = now
            return self._tree.write_changes(new_file)
        finally:
            os.close(self._tree.root)


def _current(folder: int) -> str:
    try:
        return os.readlink(_CURRENT, dir_fd=folder)
    except OSError:
        return ""


class Mirror:
    """Of one cell, or of all cells of a session. ``name``: new in the folder ``parent``; ``workspace``: as the launch
    request has it.

    `workspace/` is what the cell sees; of a caller's folder `upper/` has what is changed, as an overlay would.
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
        """The cell needs it no more. It is removed when nobody reads it any more."""
        os.close(self._tree.root)
        os.close(self.fd)
        remove_when_unused(self._path)

    def open_workspace(self) -> int:
        """A descriptor of what the cell sees."""
        return open_folder(self.fd, "workspace")

    def copy_folder(self, folder: str, hidden: Sequence[str], inode: list[int]) -> int | None:
        """A file with the caller's folder as records, which is now here, too. Raises ``OSError`` and
        ``RecordsError``."""
        source = os.open(folder, _FOLDER)
        try:
            if [*identity(os.fstat(source))] != inode:
                raise OSError(116, "the folder was replaced while the run was prepared")  # ESTALE
            self._copy.fill(source, self._tree.root, hidden)
        finally:
            os.close(source)
        records = self._tree.write_changes(new_file)
        self._copy.note(self._tree.root, now=self._tree.known)
        self._make_output()
        if records is not None and os.fstat(records).st_size > self._bounds.data:
            os.close(records)
            raise RecordsError("the folder is larger than limits.disk")
        return records

    def _make_output(self) -> None:
        with contextlib.suppress(OSError):  # the caller's own is something else
            os.close(enter_folder(self._tree.root, "output"))
            self._tree.note([(b"output",)])

    def take(self, records: int) -> None:
        """What the cell has changed. Raises ``OSError`` and ``RecordsError``: then nothing more is taken of it."""
        self._lay_out(self._tree.apply(records, self._bounds))

    def whole(self) -> int | None:
        """A file with all that is here, for a container that has nothing. Raises ``OSError``."""
        self._tree.known = {}
        return self._tree.write_changes(new_file)

    def changes(self) -> int | None:
        """A file with what has been changed here, for the cell; None where nothing has. Raises ``OSError``."""
        records = self._tree.write_changes(new_file)
        if records is not None:
            self._lay_out(self._tree.known)
        return records

    def _lay_out(self, now: dict[tuple[bytes, ...], tuple[int, int, int]]) -> None:
        """Have in `upper/` what has changed."""
        if self._is_overlay:
            upper = open_folder(self.fd, "upper")
            try:
                self._copy.lay_out(self._tree.root, upper, now=now)
            finally:
                os.close(upper)
