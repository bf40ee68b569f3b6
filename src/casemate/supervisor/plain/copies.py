"""A caller's folder in a cell without mounts: a copy, and what has become of it, as an overlay would have it.

An upper directory is laid out from the copy: what is new or changed, as another name of the same file, and what is
removed, as a device 0/0, which needs no right (mknod(2)). So the host applies it as it applies that of an overlay.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from casemate.supervisor.namespaces import Identity
from casemate.supervisor.plain import places

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable

    State = tuple[int, int, int]  # inode number, mode, and time of the last change, in nanoseconds

_CLONE = 0x40049409  # FICLONE
_PIECE = 1 << 24
_MOST_ENTRIES, _MOST_BYTES, _MOST_DEPTH = 100_000, 4 << 30, 200
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT = stat.S_IFCHR


class FolderCopy:
    """The copy at ``place`` of the folder ``source`` (a descriptor), without the paths ``hidden``.

    Raises ``OSError``: E2BIG where it is too large to be copied.
    """

    def __init__(self, source: int, place: str, hidden: Iterable[str], identity: Identity) -> None:
        self._place, self._identity = place, identity
        self._left_out = frozenset(hidden)
        self._before: dict[str, State] = {}
        self._entries, self._bytes = _MOST_ENTRIES, _MOST_BYTES
        target = os.open(place, _FOLDER)
        try:
            self._device = os.fstat(source).st_dev
            self._copy_folder(source, target, "", 0)
        finally:
            os.close(target)

    def note(self) -> None:
        """What is there now is no change."""
        self._before = dict(self._states())

    def _copy_folder(self, source: int, target: int, path: str, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise OSError(errno.E2BIG, "its folders are nested too deeply to be copied")
        for name in os.listdir(source):
            inner = f"{path}/{name}" if path else name
            if inner in self._left_out:
                continue
            self._entries -= 1
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            self._bytes -= status.st_size
            if self._entries < 0 or self._bytes < 0:
                raise OSError(errno.E2BIG, "it has too many or too large files to be copied")
            with contextlib.suppress(PermissionError):  # what we may not read, the cell shall not either
                self._copy(source, target, name, status, inner, depth)

    def _copy(self, source: int, target: int, name: str, status: os.stat_result, path: str, depth: int) -> None:
        if stat.S_ISDIR(status.st_mode):
            folder = os.open(name, _FOLDER, dir_fd=source)
            try:
                os.mkdir(name, 0o700, dir_fd=target)
                copy = os.open(name, _FOLDER, dir_fd=target)
                try:
                    if status.st_dev == self._device:
                        self._copy_folder(folder, copy, path, depth + 1)
                    self._finish(copy, status)
                finally:
                    os.close(copy)
            finally:
                os.close(folder)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            if self._identity.mapped:
                os.chown(name, self._identity.uid, self._identity.gid, dir_fd=target, follow_symlinks=False)
        elif stat.S_ISREG(status.st_mode):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
            try:
                copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
                try:
                    _copy_content(file, copy)
                    self._finish(copy, status)
                finally:
                    os.close(copy)
            finally:
                os.close(file)

    def _finish(self, copy: int, status: os.stat_result) -> None:
        if self._identity.mapped:
            os.fchown(copy, self._identity.uid, self._identity.gid)
        os.fchmod(copy, status.st_mode & 0o777)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))

    # -- what has become of it

    def lay_out(self, upper: str) -> None:
        """Make the folder ``upper`` what an overlay's would be. Nothing of the cell runs. Raises ``OSError``."""
        now = dict(self._states())
        wanted: dict[str, int] = {}  # mode by path
        for path, (_, mode, _) in now.items():
            before = self._before.get(path)
            is_new_folder = stat.S_ISDIR(mode) and (before is None or before[1] != mode)
            if is_new_folder or (not stat.S_ISDIR(mode) and now[path] != before):
                wanted[path] = mode
        wanted.update({path: _WHITEOUT for path in self._before if path not in now and _parent(path) not in wanted})
        removed = [path for path, mode in wanted.items() if mode == _WHITEOUT and _is_below(path, wanted)]
        for path in removed:
            del wanted[path]
        for path in list(wanted):
            while (path := _parent(path)) and path not in wanted:
                wanted[path] = now[path][1]
        self._write(upper, wanted)

    def _write(self, upper: str, wanted: dict[str, int]) -> None:
        for path, status in sorted(_walk(upper), reverse=True):
            mode = wanted.get(path)
            if mode is None or stat.S_IFMT(mode) != stat.S_IFMT(status.st_mode) or not self._is_same(path, status):
                with contextlib.suppress(OSError):
                    (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(f"{upper}/{path}")
        for path in sorted(wanted):
            there, mode = f"{upper}/{path}", wanted[path]
            if stat.S_ISDIR(mode):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(there, 0o700)
                os.chmod(there, mode & 0o777 | 0o700)
            elif not os.path.lexists(there):
                if mode == _WHITEOUT:
                    os.mknod(there, _WHITEOUT, os.makedev(0, 0))
                else:
                    os.link(f"{self._place}/{path}", there, follow_symlinks=False)

    def _is_same(self, path: str, status: os.stat_result) -> bool:
        if stat.S_ISDIR(status.st_mode) or stat.S_ISCHR(status.st_mode):
            return True
        try:
            return os.lstat(f"{self._place}/{path}").st_ino == status.st_ino
        except OSError:
            return False

    def _states(self) -> Iterable[tuple[str, State]]:
        return [
            (path, (status.st_ino, status.st_mode, status.st_ctime_ns))
            for path, status in _walk(self._place)
            if path not in self._left_out
        ]


def copy(source: str, place: str) -> None:
    """Copy a file or a folder, which everybody may read then. Raises ``OSError``."""
    if os.path.isdir(source):
        os.mkdir(place, 0o755)
        folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            FolderCopy(folder, place, (), Identity(0, 0, mapped=False))
        finally:
            os.close(folder)
        return
    with open(source, "rb") as file, open(place, "wb") as copied:
        _copy_content(file.fileno(), copied.fileno())


def show(source: str, place: str, table: places.Table) -> str:
    """Have ``place`` be a link to what the folder ``source`` of packages has now: other names of the same files, and
    links in it to places of the cell's as they are. The folder of what was shown before the last time, which can go.
    Raises ``OSError``."""
    try:
        before = int(os.readlink(place).rpartition(".")[2])
    except (OSError, ValueError):
        before = 0
    number = before + 1
    while os.path.lexists(f"{place}.{number}"):
        number += 1
    copied = f"{place}.{number}"
    _link_folder(source, copied, table)
    os.symlink(os.path.basename(copied), f"{place}.new")
    os.rename(f"{place}.new", place)
    return f"{place}.{before - 1}"


def _link_folder(source: str, place: str, table: places.Table) -> None:
    os.mkdir(place, 0o755)
    with os.scandir(source) as entries:
        for entry in entries:
            there = f"{place}/{entry.name}"
            if entry.is_symlink():
                os.symlink(places.real(os.readlink(entry.path), table), there)
            elif entry.is_dir():
                _link_folder(entry.path, there, table)
            else:
                try:
                    os.link(entry.path, there)
                except OSError:  # on another file system, or not ours
                    copy(entry.path, there)
                    os.chmod(there, entry.stat().st_mode & 0o755)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _is_below(path: str, wanted: dict[str, int]) -> bool:
    """Whether a folder above ``path`` is removed as well, or is something else now."""
    while path := _parent(path):
        if path in wanted and not stat.S_ISDIR(wanted[path]):
            return True
    return False


def _copy_content(source: int, copy: int) -> None:
    try:
        fcntl.ioctl(copy, _CLONE, source)
    except OSError:
        while os.sendfile(copy, source, None, _PIECE):
            pass


def _walk(top: str) -> list[tuple[str, os.stat_result]]:
    """Everything below ``top``; a folder that cannot be read is opened to its owner first. Nothing of the cell runs."""
    found: list[tuple[str, os.stat_result]] = []
    waiting = [""]
    while waiting and len(found) < 2 * _MOST_ENTRIES:
        folder = waiting.pop()
        place = f"{top}/{folder}" if folder else top
        with contextlib.suppress(OSError):
            if not os.stat(place).st_mode & stat.S_IRUSR:
                os.chmod(place, 0o700)
            with os.scandir(place) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    status = entry.stat(follow_symlinks=False)
                    found.append((path, status))
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(path)
    return found
