"""A copy of a caller's folder for a cell without mounts, and what has become of it, as an overlay would have it.

An upper directory is laid out from the copy: what is new or changed, as another name of the same file, and what is
removed, as a device 0/0, which needs no right (mknod(2)). So the host applies it as it applies that of an overlay.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from casemate.supervisor.trees.remove import remove_entry
from casemate.supervisor.trees.rights import OwnersRights
from casemate.supervisor.trees.walk import Entry, Visitor, data_in, identity, open_file, open_folder, walk

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable

    from casemate.supervisor.trees.walk import Owner, Path

    State = tuple[int, int, int]  # inode number, mode, and time of the last change, in nanoseconds

_CLONE = 0x40049409  # FICLONE
_PIECE = 1 << 24
_MOST_ENTRIES, _MOST_BYTES, _MOST_DEPTH = 100_000, 4 << 30, 200
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT = stat.S_IFCHR


class FolderCopy:
    """A copy of a caller's folder. ``owner``: the cell's user and group, where it has its own, else None."""

    def __init__(self, owner: Owner | None = None) -> None:
        self._owner = owner
        self._before: dict[Path, State] = {}
        self._unread: list[Path] = []  # what its owner cannot read: where it was moved cannot be told

    def fill(self, source: int, place: int, hidden: Iterable[str] = ()) -> None:
        """Copy the folder ``source`` without the paths ``hidden`` into the empty folder ``place`` (descriptors).

        It is read as its owner reads it. What its owner cannot read has its name in the copy, and cannot be opened.
        Raises ``OSError``: E2BIG where it is too large to be copied.
        """
        copier = _TreeCopier(source, self._owner, hidden)
        copier.copy_folder(source, place, b"", 0)
        self._unread = copier.unread

    def note(self, place: int, *, now: dict[Path, State] | None = None) -> None:
        """What is in the copy ``place`` is no change; ``now``: its state where that is known. Raises ``OSError``."""
        self._before = _states(place) if now is None else {**now}

    def lay_out(self, place: int, upper: int, *, now: dict[Path, State] | None = None) -> None:
        """Make the folder ``upper`` what an overlay with the changes of the copy ``place`` would have; ``now``: as of
        `note`. Nothing of the cell runs. Raises ``OSError``, also where something has run all the same."""
        _Layout(changes(self._before, _states(place) if now is None else now, self._unread)).write((), place, upper)


class _TreeCopier:
    """One copy of a folder ``source``."""

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
                with contextlib.suppress(PermissionError):  # a folder that may be listed, and not searched
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
        copy = open_folder(target, name)
        try:
            if folder >= 0 and status.st_dev == self._device:
                self.copy_folder(folder, copy, path, depth + 1)
            self._finish(copy, status, is_readable=folder >= 0)
        finally:
            os.close(copy)

    def _copy_file(self, file: int, status: os.stat_result, target: int, name: bytes) -> None:
        copy = os.open(name, _NEW, 0o600, dir_fd=target)
        try:
            if file >= 0:
                copy_content(file, copy, status.st_size)
            self._finish(copy, status, is_readable=file >= 0)
        finally:
            os.close(copy)

    def _mode(self, status: os.stat_result) -> int:
        """Permission bits with which the cell can do with the copy what it could do behind an overlay: read what the
        owner of the folder can read, and write to what is the owner's. A cell without a user of its own owns all."""
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
    """A descriptor to read what ``status`` is of; -1 for what has no content, or may not be read."""
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
    file = open_file(Entry((os.fsencode(name),), status, source), unlock=True)
    try:
        copy = os.open(name, _NEW, 0o600, dir_fd=target)
        try:
            copy_content(file, copy, status.st_size)
            os.fchmod(copy, mode)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(copy)
    finally:
        os.close(file)


def copy_content(source: int, copy: int, size: int) -> None:
    """Copy ``size`` bytes of a file into a new one. What is a hole stays one. Raises ``OSError``."""
    try:
        fcntl.ioctl(copy, _CLONE, source)
        return
    except OSError:  # on another file system, or on one that cannot share blocks
        os.ftruncate(copy, size)
    for start, end in data_in(source, size):
        at = os.lseek(copy, start, os.SEEK_SET)
        while at < end:
            sent = os.sendfile(copy, source, at, min(end - at, _PIECE))
            if sent == 0:
                return  # it was cut meanwhile
            at += sent


class _States(Visitor):
    """A walk that takes down the state of everything."""

    def __init__(self) -> None:
        self.found: dict[Path, State] = {}

    def enter(self, entry: Entry, _folder: int) -> bool:
        self.visit(entry)
        return True

    def visit(self, entry: Entry) -> None:
        self.found[entry.path] = entry.stat.st_ino, entry.stat.st_mode, entry.stat.st_ctime_ns

    def skip(self, path: Path, reason: str) -> None:
        if len(path) <= _MOST_DEPTH:  # what lies deeper is not applied
            raise _Unseen(f"{b'/'.join(path)!a}: {reason}")


class _Unseen(Exception):
    """Part of a copy was not looked at: what is missing in it cannot be told."""


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
    """What an upper directory has: by folder, its names, and what each is: the state of what is new or changed, of
    folders on the way there, or that of a whiteout. Of a folder the mode alone counts. What is ``unread`` stays, and
    so does a folder that holds it."""
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
                    break  # and so are the folders above it, or they come in their turn
                names[folder[depth - 1]] = now[folder[:depth]]
    return wanted


class _Layout:
    """Writes what an upper directory is to have, given as `changes` returns it."""

    def __init__(self, wanted: dict[Path, dict[bytes, State]]) -> None:
        self._wanted = wanted

    def write(self, path: Path, place: int, upper: int) -> None:
        """Make ``upper`` what is wanted at ``path``, where the copy has ``place``. Raises ``OSError``."""
        wanted = self._wanted.get(path, {})
        for name in map(os.fsencode, os.listdir(upper)):
            there = os.stat(name, dir_fd=upper, follow_symlinks=False)
            if name not in wanted or not _is_as_wanted(there, wanted[name]):
                remove_entry(upper, name)
        for name, state in wanted.items():
            if stat.S_ISDIR(state[1]):
                self._write_folder((*path, name), state, place, upper)
            else:
                self._write_entry(name, state, place, upper)

    def _write_folder(self, path: Path, state: State, place: int, upper: int) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path[-1], 0o700, dir_fd=upper)
        copy = open_folder(place, path[-1], unlock=True)
        try:
            there = open_folder(upper, path[-1], unlock=True)
            try:
                self.write(path, copy, there)
                os.fchmod(there, state[1] & 0o777)
            finally:
                os.close(there)
            if state[1] & 0o700 != 0o700:
                os.fchmod(copy, stat.S_IMODE(state[1]))
        finally:
            os.close(copy)

    def _write_entry(self, name: bytes, state: State, place: int, upper: int) -> None:
        with contextlib.suppress(FileExistsError):  # as it is wanted, else it would have been removed
            if state[1] == _WHITEOUT:
                os.mknod(name, _WHITEOUT, os.makedev(0, 0), dir_fd=upper)
            else:
                self._link(name, state, place, upper)

    def _link(self, name: bytes, state: State, place: int, upper: int) -> None:
        os.link(name, name, src_dir_fd=place, dst_dir_fd=upper, follow_symlinks=False)
        if not _is_as_wanted(os.stat(name, dir_fd=upper, follow_symlinks=False), state):
            os.unlink(name, dir_fd=upper)
            raise OSError(errno.ESTALE, f"{name!a} was replaced while the changes were laid out")


def _is_as_wanted(there: os.stat_result, state: State) -> bool:
    """Whether it is a folder or a whiteout where that is wanted, else the very same file."""
    is_same_kind = stat.S_IFMT(there.st_mode) == stat.S_IFMT(state[1])
    return is_same_kind and (stat.S_IFMT(state[1]) in (stat.S_IFDIR, _WHITEOUT) or there.st_ino == state[0])
