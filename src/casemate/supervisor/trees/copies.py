"""Copies a caller's folder for a cell without mounts, and lays out the changes as an overlay would.

The upper directory holds new and changed files as hard links, and removals as devices 0/0, which need no capability
(mknod(2)). The host then applies it like the upper directory of an overlay.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from casemate.supervisor.trees.remove import remove_entry
from casemate.supervisor.trees.rights import OwnersRights
from casemate.supervisor.trees.walk import Entry, Visitor, data_in, identity, open_file, open_folder, opened, walk

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable

    from casemate.supervisor.trees.walk import Owner, Path

    State = tuple[int, int, int]  # inode number, mode, and ctime in nanoseconds

_CLONE = 0x40049409  # FICLONE
_PIECE = 1 << 24
_MOST_ENTRIES, _MOST_BYTES, _MOST_DEPTH = 100_000, 4 << 30, 200
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT = stat.S_IFCHR


class FolderCopy:
    """A copy of a caller's folder. ``owner`` is the cell's user and group, if it has its own."""

    def __init__(self, owner: Owner | None = None) -> None:
        self._owner = owner
        self._before: dict[Path, State] = {}
        self._unread: list[Path] = []  # entries that their owner cannot read, whose moves cannot be tracked

    def fill(self, source: int, place: int, hidden: Iterable[str] = ()) -> None:
        """Copy the folder ``source`` less ``hidden`` paths, with its owner's rights, into the empty ``place``.
        Unreadable entries become names that cannot be opened. Raises ``OSError``: E2BIG if it is too large."""
        copier = _TreeCopier(source, self._owner, hidden)
        copier.copy_folder(source, place, b"", 0)
        self._unread = copier.unread

    def note(self, place: int, *, now: dict[Path, State] | None = None) -> None:
        """Take the copy ``place`` as unchanged, in its current state or in ``now``. Raises ``OSError``."""
        self._before = _states(place) if now is None else {**now}

    def lay_out(self, place: int, upper: int, *, now: dict[Path, State] | None = None) -> None:
        """Lay out the changes of the copy ``place`` in the folder ``upper``. ``now`` is the copy's state, if known.
        Nothing of the cell may run; if it does, this may raise ``OSError``."""
        wanted = changes(self._before, _states(place) if now is None else now, self._unread)
        _write_layout(wanted, (), place, upper)


class _TreeCopier:
    def __init__(self, source: int, owner: Owner | None, hidden: Iterable[str]) -> None:
        status = os.fstat(source)
        self._rights, self._source_owner = OwnersRights(source), (status.st_uid, status.st_gid)
        self._owner = owner
        self._left_out = {os.fsencode(path) for path in hidden}
        self._device = status.st_dev
        self._entries, self._bytes = _MOST_ENTRIES, _MOST_BYTES
        self.unread: list[Path] = []

    def copy_folder(self, source: int, target: int, path: bytes, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise OSError(errno.E2BIG, "its folders are nested too deeply to be copied")
        with self._rights:
            names = [os.fsencode(name) for name in os.listdir(source)]
        for name in names:
            inner = path + b"/" + name if path else name
            if inner not in self._left_out:
                with contextlib.suppress(PermissionError):  # a folder that can be listed but not searched
                    self._copy(source, target, inner, depth)

    def _copy(self, source: int, target: int, path: bytes, depth: int) -> None:
        name = path.rpartition(b"/")[2]
        with self._rights:
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            content = _open(source, name, status)
        if content < 0 and not stat.S_ISLNK(status.st_mode):
            self.unread.append(tuple(path.split(b"/")))
        try:
            self._count(status)
            if stat.S_ISDIR(status.st_mode):
                self._copy_inside(content, status, target, path, depth)
            elif stat.S_ISREG(status.st_mode):
                self._copy_file(content, status, target, name)
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                if self._owner:
                    os.chown(name, *self._owner, dir_fd=target, follow_symlinks=False)
        finally:
            if content >= 0:
                os.close(content)

    def _count(self, status: os.stat_result) -> None:
        self._entries -= 1
        self._bytes -= min(status.st_size, status.st_blocks * 512)
        if self._entries < 0 or self._bytes < 0:
            raise OSError(errno.E2BIG, "it has too many or too large files to be copied")

    def _copy_inside(self, folder: int, status: os.stat_result, target: int, path: bytes, depth: int) -> None:
        name = path.rpartition(b"/")[2]
        os.mkdir(name, 0o700, dir_fd=target)
        with opened(open_folder(target, name)) as copy:
            if folder >= 0 and status.st_dev == self._device:
                self.copy_folder(folder, copy, path, depth + 1)
            self._finish(copy, status, is_readable=folder >= 0)

    def _copy_file(self, file: int, status: os.stat_result, target: int, name: bytes) -> None:
        with opened(os.open(name, _NEW, 0o600, dir_fd=target)) as copy:
            if file >= 0:
                copy_content(file, copy, status.st_size)
            self._finish(copy, status, is_readable=file >= 0)

    def _mode(self, status: os.stat_result) -> int:
        """The mode that gives the cell the rights on the copy that it would have behind an overlay: to read what the
        folder's owner can read, and to write the owner's files. A cell without its own user owns all of the copy."""
        mode = status.st_mode & 0o777
        if status.st_uid == self._source_owner[0]:
            return mode
        if self._owner:
            return mode & ~0o222
        bits = mode >> 3 if status.st_gid == self._source_owner[1] else mode
        return (bits & 5) << 6 | mode & 0o055

    def _finish(self, copy: int, status: os.stat_result, *, is_readable: bool) -> None:
        if self._owner:
            user, group = self._owner
            is_owners, is_groups = status.st_uid == self._source_owner[0], status.st_gid == self._source_owner[1]
            os.fchown(copy, user if is_owners else 0, group if is_groups else 0)
        os.fchmod(copy, self._mode(status) if is_readable else 0)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _open(folder: int, name: bytes, status: os.stat_result) -> int:
    """Open what ``status`` describes for reading; -1 if it has no content or cannot be read."""
    try:
        if stat.S_ISDIR(status.st_mode):
            opened = open_folder(folder, name)
        elif stat.S_ISREG(status.st_mode):
            opened = os.open(name, _FILE, dir_fd=folder)
        else:
            return -1
    except PermissionError:
        return -1
    if identity(os.fstat(opened)) != identity(status):
        os.close(opened)
        raise OSError(errno.ESTALE, f"{name!a} was replaced while it was copied")
    return opened


def copy_file(source: int, target: int, name: str, mode: int) -> None:
    """Copy the regular file ``name`` from one folder to another (descriptors). Raises ``OSError``."""
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    with (
        opened(open_file(Entry((os.fsencode(name),), status, source), unlock=True)) as file,
        opened(os.open(name, _NEW, 0o600, dir_fd=target)) as copy,
    ):
        copy_content(file, copy, status.st_size)
        os.fchmod(copy, mode)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_content(source: int, copy: int, size: int) -> None:
    """Copy ``size`` bytes into a new file, keeping holes. Raises ``OSError``."""
    try:
        fcntl.ioctl(copy, _CLONE, source)
        return
    except OSError:  # another file system, or one that cannot share blocks
        os.ftruncate(copy, size)
    for start, end in data_in(source, size):
        at = os.lseek(copy, start, os.SEEK_SET)
        while at < end:
            sent = os.sendfile(copy, source, at, min(end - at, _PIECE))
            if sent == 0:
                return  # the file was truncated meanwhile
            at += sent


class _States(Visitor):
    def __init__(self) -> None:
        self.found: dict[Path, State] = {}

    def enter(self, entry: Entry, _folder: int) -> bool:
        self.visit(entry)
        return True

    def visit(self, entry: Entry) -> None:
        self.found[entry.path] = entry.stat.st_ino, entry.stat.st_mode, entry.stat.st_ctime_ns

    def skip(self, path: Path, reason: str) -> None:
        if len(path) <= _MOST_DEPTH:  # deeper entries are not applied
            raise _Unseen(f"{b'/'.join(path)!a}: {reason}")


class _Unseen(Exception):
    """Part of a copy was not examined, so removals in it are unknown."""


def _states(place: int) -> dict[Path, State]:
    states = _States()
    try:
        walk(place, states, depth=_MOST_DEPTH, entries=2 * _MOST_ENTRIES, unlock=True, relock=True)
    except _Unseen as error:
        raise OSError(errno.E2BIG, str(error)) from None
    return states.found


def changes(
    before: dict[Path, State], now: dict[Path, State], unread: Iterable[Path] = ()
) -> dict[Path, dict[bytes, State]]:
    """The content of an upper directory: the names of each folder, with their states. Holds what is new or changed, the
    folders above it, and whiteouts. Of folders only the mode counts. ``unread`` entries and their folders stay."""
    wanted: dict[Path, dict[bytes, State]] = {}
    kept = {path[:depth] for path in unread for depth in range(1, len(path) + 1)}
    without_content = {before[path][0] for path in unread if path in before}
    for path, state in now.items():
        known = before.get(path)
        is_same = known == state or (known and stat.S_ISDIR(state[1]) and known[1] == state[1])
        is_unread = not stat.S_ISDIR(state[1]) and (path in kept or state[0] in without_content)
        if not is_same and not is_unread:
            wanted.setdefault(path[:-1], {})[path[-1]] = state
    for path in before:
        folder = path[:-1]
        if path not in now and path not in kept and (not folder or stat.S_ISDIR(now.get(folder, (0, 0, 0))[1])):
            wanted.setdefault(folder, {})[path[-1]] = (0, _WHITEOUT, 0)
    for folder in list(wanted):
        for depth in range(len(folder), 0, -1):
            if folder[:depth] in now:
                names = wanted.setdefault(folder[: depth - 1], {})
                if folder[depth - 1] in names:
                    break  # the folders above are there too, or will be added
                names[folder[depth - 1]] = now[folder[:depth]]
    return wanted


def _write_layout(wanted: dict[Path, dict[bytes, State]], path: Path, place: int, upper: int) -> None:
    """Make the folder ``upper`` what is ``wanted`` at ``path``. ``place`` is the same folder of the copy."""
    names = wanted.get(path, {})
    for name in map(os.fsencode, os.listdir(upper)):
        there = os.stat(name, dir_fd=upper, follow_symlinks=False)
        if name not in names or not _is_as_wanted(there, names[name]):
            remove_entry(upper, name)
    for name, state in names.items():
        if stat.S_ISDIR(state[1]):
            _write_folder(wanted, (*path, name), state, place, upper)
        else:
            _write_entry(name, state, place, upper)


def _write_folder(wanted: dict[Path, dict[bytes, State]], path: Path, state: State, place: int, upper: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path[-1], 0o700, dir_fd=upper)
    with opened(open_folder(place, path[-1], unlock=True)) as copy:
        with opened(open_folder(upper, path[-1], unlock=True)) as there:
            _write_layout(wanted, path, copy, there)
            os.fchmod(there, state[1] & 0o777)
        if state[1] & 0o700 != 0o700:
            os.fchmod(copy, stat.S_IMODE(state[1]))


def _write_entry(name: bytes, state: State, place: int, upper: int) -> None:
    with contextlib.suppress(FileExistsError):  # it is already as wanted
        if state[1] == _WHITEOUT:
            os.mknod(name, _WHITEOUT, os.makedev(0, 0), dir_fd=upper)
            return
        os.link(name, name, src_dir_fd=place, dst_dir_fd=upper, follow_symlinks=False)
        if not _is_as_wanted(os.stat(name, dir_fd=upper, follow_symlinks=False), state):
            os.unlink(name, dir_fd=upper)
            raise OSError(errno.ESTALE, f"{name!a} was replaced while the changes were laid out")


def _is_as_wanted(there: os.stat_result, state: State) -> bool:
    is_same_kind = stat.S_IFMT(there.st_mode) == stat.S_IFMT(state[1])
    return is_same_kind and (stat.S_IFMT(state[1]) in (stat.S_IFDIR, _WHITEOUT) or there.st_ino == state[0])
