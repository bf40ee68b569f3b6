"""The folder on this machine that stands for what a container's cell can write, kept up with it by records."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from casemate.supervisor import mirror
from casemate.walls.docker.containers import new_file

_CURRENT = "current"  # in a folder that is shown: a link that changes with what is in it
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SLACK_ENTRIES = 64  # folders that casemate makes itself
_SLACK_BYTES = 1 << 20


class ShownFolder:
    """What a container has at one place of a folder of the host's that changes with its link ``current``."""

    def __init__(self) -> None:
        self._tree = mirror.Tree("")
        self._shown = ("", "")

    def changes(self, source: str) -> int | None:
        """A file with what there is in ``source`` that the container has not; None where nothing is. Raises
        ``OSError``."""
        link = f"{source}/{_CURRENT}"
        now = source, os.readlink(link) if os.path.islink(link) else ""
        if now == self._shown:
            return None
        records = new_file()
        self._shown, self._tree.root = now, os.fsencode(source)
        self._tree.write_changes(records)
        return records


class Mirror:
    """Of one cell, or of all cells of a session. ``path``: a new folder; ``workspace``: as the launch request has it.

    `workspace/` is what the cell sees; of a caller's folder `upper/` has what is changed, as an overlay would.
    """

    def __init__(self, path: Path, workspace: dict[str, Any], limits: dict[str, Any]) -> None:
        """Raises ``OSError``."""
        self.path = path
        self._bounds = mirror.Bounds(limits["disk"] + _SLACK_BYTES, 2 * limits["inodes"] + _SLACK_ENTRIES)
        self._is_overlay = workspace["kind"] == "overlay"
        self._base: dict[bytes, bool] = {}  # paths of the caller's folder, and whether each is a folder
        os.makedirs(path / "workspace" / "output")
        self.tree = mirror.Tree(str(path / "workspace"))
        self.tree.note([b"output"])
        if self._is_overlay:
            os.mkdir(path / "upper")
            os.mkdir(path / "upper" / "output")
        self.fd = os.open(path, _FOLDER)
        fcntl.flock(self.fd, fcntl.LOCK_SH)

    def open_workspace(self) -> int:
        """A descriptor of what the cell sees."""
        return os.open(self.path / "workspace", _FOLDER)

    def copy_folder(self, folder: str, hidden: Iterable[str], inode: list[int], records: int) -> None:
        """Write the caller's folder as records, and have it here, too. Raises ``OSError`` and ``MirrorError``."""
        status = os.stat(folder)
        if [status.st_dev, status.st_ino] != inode:
            raise OSError(116, "the folder was replaced while the run was prepared")  # ESTALE
        mirror.Tree(folder, hidden).write_changes(records)
        paths = self.tree.apply(records, self._bounds)
        workspace = os.fsencode(self.path / "workspace")
        self._base = {path: os.path.isdir(workspace + b"/" + path) for path in paths}

    def take(self, records: int) -> None:
        """What the cell has changed. Raises ``OSError`` and ``MirrorError``: then nothing more is taken of it."""
        self._lay_out(self.tree.apply(records, self._bounds))

    def changes(self) -> int | None:
        """A file with what has been changed here, for the cell; None where nothing has. Raises ``OSError``."""
        if not self.tree.has_changed():
            return None
        records = new_file()
        self._lay_out(self.tree.write_changes(records))
        return records

    def remove_if_unused(self) -> bool:
        """Remove it when nobody holds its descriptor any more; whether that is so."""
        fd = os.open(self.path, _FOLDER)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        shutil.rmtree(self.path, ignore_errors=True)
        return True

    def _lay_out(self, paths: Iterable[bytes]) -> None:
        """Have in `upper/` what these paths are now."""
        if not self._is_overlay:
            return
        seen, upper = (os.fsencode(self.path / name) for name in ("workspace", "upper"))
        for path in sorted(set(paths)):
            source, target = seen + b"/" + path, upper + b"/" + path
            _clear(target)
            try:
                status = os.lstat(source)
            except OSError:
                if path in self._base and _is_real_folder(os.path.dirname(source)):
                    _make_parents(upper, path, seen)
                    os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
                continue
            _make_parents(upper, path, seen)
            if stat.S_ISDIR(status.st_mode):
                os.makedirs(target, exist_ok=True)
                os.chmod(target, status.st_mode & 0o777)
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(source), target)
            elif stat.S_ISFIFO(status.st_mode):
                os.mkfifo(target)
            else:
                shutil.copy2(source, target, follow_symlinks=False)


def _clear(target: bytes) -> None:
    """Remove a file; a folder stays, for what is in it is dealt with path by path, and goes when it is empty."""
    try:
        if _is_real_folder(target):
            os.rmdir(target)
        else:
            os.unlink(target)
    except OSError:
        return


def _is_real_folder(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _make_parents(upper: bytes, path: bytes, seen: bytes) -> None:
    at = b""
    for name in path.split(b"/")[:-1]:
        at = at + b"/" + name
        if not _is_real_folder(upper + at):
            _clear(upper + at)
            os.mkdir(upper + at)
            shutil.copymode(seen + at, upper + at)
