"""Packs and unpacks folders as tar archives in places that may be hostile: only regular files and folders.

Follows and makes no links, and makes no devices, fifos or sockets. Names must be safe to leave a cell. Of permissions
only the executable bit is kept, so no file becomes setuid. Everything left out is reported with the reason.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import BinaryIO, cast

from casemate.errors import InvalidArgument, Unavailable
from casemate.files.beneath import CHUNK, Attributes, Hashed, hold, write_file
from casemate.files.bounds import Skipped, TreeBounds
from casemate.files.heads import Heads
from casemate.files.names import LONGEST_NAME, LONGEST_PATH, display_path, path_problem
from casemate.files.walk import kind_of
from casemate.model.execution import SkippedFile
from casemate.supervisor.trees.walk import Entry, Visitor, enter_folder, open_beneath, open_file, walk

_MIB = 2**20
# Of one archive. With its headers, it stays within the limit on uploads.
BOUNDS = TreeBounds(files=10_000, file_bytes=224 * _MIB, total_bytes=224 * _MIB, depth=64, entries=50_000, reports=100)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
Path = tuple[bytes, ...]
Tell = Callable[[int, int], None]
Content = Callable[[int], bytes]
Refuses = Callable[[Path, bool], str | None]
ReportFile = Callable[[Path, str], None]


@dataclass(frozen=True, slots=True)
class Carried:
    """What went into an archive, or came out of one: how many ``files`` and ``folders``, and ``bytes`` of contents.

    ``left_out``: what was left out, and why. ``is_whole``: False if a bound or a failure left out something that may be
    copied.
    """

    files: int
    folders: int
    bytes: int
    left_out: tuple[SkippedFile, ...]
    is_whole: bool


@dataclass(slots=True)
class _Count:
    tell: Tell  # called after each file
    named: Callable[[str], str] = str  # redacts names for reports
    files: int = 0
    folders: int = 0
    bytes: int = 0
    skipped: Skipped = field(default_factory=lambda: Skipped(BOUNDS.reports))

    def has_room(self, path: Path, size: int) -> bool:
        """Whether a file of ``size`` bytes still fits. If not, report it as lost."""
        if self.files >= BOUNDS.files:
            self.lose(path, f"there are more than {BOUNDS.files} files")
        elif size > BOUNDS.file_bytes or self.bytes + size > BOUNDS.total_bytes:
            self.lose(path, f"all files together have more than {BOUNDS.total_bytes} bytes")
        else:
            return True
        return False

    def refuse(self, path: Path, reason: str) -> None:
        self.skipped.refuse(self._shown_path(path), reason)

    def lose(self, path: Path, reason: str) -> None:
        self.skipped.lose(self._shown_path(path), reason)

    def _shown_path(self, path: Path) -> str:
        # Formatting is slower than reading the name
        return "" if self.skipped.is_full else self.named(display_path(path))

    def add(self, size: int) -> None:
        self.files, self.bytes = self.files + 1, self.bytes + size
        self.tell(self.files, self.bytes)

    def summary(self) -> Carried:
        return Carried(self.files, self.folders, self.bytes, self.skipped.as_tuple(), self.skipped.complete)


class Packer(Visitor):
    """Writes an archive to ``out``. ``top``: a folder that all names begin with. Raises ``Unavailable`` if writing to
    ``out`` fails.

    ``content``: returns what an opened file may reveal, if not all of it, or raises :class:`Withheld` to leave it out.
    ``named``: redacts a name; an entry whose name this changes is left out. ``refuses``: why a path is left out, in
    addition to the fixed rules; its second argument is whether the path is a folder. ``tell``: called with the number
    of files and bytes after each file.
    """

    def __init__(
        self,
        out: BinaryIO,
        top: Path = (),
        *,
        content: Content | None = None,
        named: Callable[[str], str] = str,
        refuses: Refuses = lambda _path, _is_folder: None,
        tell: Tell = lambda _files, _bytes: None,
    ) -> None:
        self._out = out
        self._tar = tarfile.TarFile(fileobj=out, mode="w", format=tarfile.PAX_FORMAT)
        self._top = top
        self._content = content
        self._named = named
        self._refuses = refuses
        self._count = _Count(tell, named)
        if top:
            self._folder((), None)

    def tree(self, root: int) -> None:
        """Add everything beneath the folder ``root``."""
        walk(root, self, depth=BOUNDS.depth, entries=BOUNDS.entries)

    def file(self, path: Path, file: int) -> None:
        """Add an open regular file as ``path``. Raises ``OSError`` if it is withheld or unreadable."""
        status = os.fstat(file)
        if not self._count.has_room(path, status.st_size):
            return
        if self._content is None:
            source = _Exactly(file, status.st_size)
            self._add(path, status, source, status.st_size)
            if source.is_short:
                self._count.lose(path, "not all of it could be read; the rest is zeros")
        else:
            data = self._content(file)
            self._add(path, status, BytesIO(data), len(data))

    def refuse(self, path: Path, reason: str) -> None:
        """Leave out something that may not be copied."""
        self._count.refuse(path, reason)

    def end(self) -> Carried:
        """Finish and flush the archive. Returns what is in it. Raises ``Unavailable``."""
        with _name_write_errors():
            self._tar.close()
            self._out.flush()
        return self._count.summary()

    def enter(self, entry: Entry, _folder: int, /) -> bool:
        if (why := self._problem(entry.path, is_folder=True)) is not None:
            self.refuse(entry.path, why)
            return False
        self._folder(entry.path, entry.stat)
        return True

    def visit(self, entry: Entry) -> None:
        why = self._problem(entry.path, is_folder=False)
        if why is None and not stat.S_ISREG(entry.stat.st_mode):
            why = f"it is {kind_of(entry.stat.st_mode)}; only files and folders are copied"
        if why is not None:
            self.refuse(entry.path, why)
            return
        try:
            file = open_file(entry)
        except OSError as error:
            self._count.lose(entry.path, f"it cannot be read: {error.strerror}")
            return
        with hold(file):
            try:
                self.file(entry.path, file)
            except Withheld as withheld:
                self.refuse(entry.path, str(withheld))

    def skip(self, path: Path, reason: str) -> None:
        if (why := self._refuses(path, True)) is not None:
            self.refuse(path, why)
        else:
            self._count.lose(path, reason)

    def _problem(self, path: Path, *, is_folder: bool) -> str | None:
        text = b"/".join(path).decode("utf-8", "replace")
        if self._named(text) != text:
            return "its name has a secret in it"
        return path_problem(path) or self._refuses(path, is_folder)

    def _folder(self, path: Path, status: os.stat_result | None) -> None:
        info = self._info(path, status)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        self._write(info)
        self._count.folders += 1

    def _add(self, path: Path, status: os.stat_result, source: BytesIO | _Exactly, size: int) -> None:
        info = self._info(path, status)
        info.size, info.mode = size, 0o755 if status.st_mode & 0o100 else 0o644
        self._write(info, source)
        self._count.add(size)

    def _write(self, info: tarfile.TarInfo, source: BytesIO | _Exactly | None = None) -> None:
        with _name_write_errors():  # the source raises nothing
            self._tar.addfile(info, cast("BytesIO", source))  # addfile only reads from it

    def _info(self, path: Path, status: os.stat_result | None) -> tarfile.TarInfo:
        info = tarfile.TarInfo(b"/".join((*self._top, *path)).decode())
        info.mtime = max(0, int(status.st_mtime)) if status else 0
        return info


@contextmanager
def close_after(out: BinaryIO) -> Iterator[BinaryIO]:
    """``out``, for a :class:`Packer` that ends within this context and reports write errors."""
    try:
        yield out
    finally:
        with suppress(OSError):  # an earlier write error
            out.close()


@contextmanager
def _name_write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the archive cannot be written: {error.strerror or error}") from None


class Withheld(OSError):
    """Raised by ``content`` to leave out a file. The message is the reason."""


class _Exactly:
    """Exactly ``size`` bytes of a file that may change meanwhile. Zeros replace missing bytes."""

    def __init__(self, file: int, size: int) -> None:
        self._file, self._at, self._size = file, 0, size
        self.is_short = False

    def read(self, most: int) -> bytes:
        most = min(most, self._size - self._at)
        data = b""
        with suppress(OSError):
            data = os.pread(self._file, most, self._at) if most > 0 else b""
        if not data and most > 0:
            self.is_short, data = True, bytes(most)
        self._at += len(data)
        return data


def unpack(
    source: BinaryIO,
    root: int,
    *,
    owner: tuple[int, int] | None = None,
    masked: int = 0o022,
    refuses: Refuses = lambda _path, _is_folder: None,
    tell: Tell = lambda _files, _bytes: None,
    report_file: ReportFile = lambda _path, _sha256: None,
    take_room: Callable[[tuple[bytes, ...], int], None] = lambda _path, _size: None,
) -> Carried:
    """Unpack an untrusted archive beneath the folder ``root``, replacing files of the same names.

    ``owner``: the new files' owner. ``masked``: permissions that are removed. ``refuses``: why a path is left out, in
    addition to the fixed rules; its second argument is whether the path is a folder. ``report_file``: called with the
    path and SHA-256 of each file before it appears. ``take_room``: called with the path and size of each file and
    folder; raises ``OSError`` if there is no room. Raises ``InvalidArgument`` if ``source`` is not an archive, and
    ``OSError`` if there is no room.
    """
    unpacking = _Unpacking(root, owner, masked, refuses, report_file, take_room, _Count(tell))
    try:
        heads = Heads(source)
        with tarfile.TarFile(fileobj=cast("BinaryIO", heads), mode="r", tarinfo=heads.member) as tar:
            for member in _members(tar, heads, unpacking.count):
                unpacking.take(tar, member)
    except (tarfile.TarError, RecursionError, ValueError, OverflowError, EOFError) as error:
        raise InvalidArgument("archive", f"is not a complete tar archive: {error}") from None
    return unpacking.count.summary()


def _members(tar: tarfile.TarFile, heads: Heads, count: _Count) -> Iterator[tarfile.TarInfo]:
    """The members of an archive, up to the bound, and never the same offset twice."""
    reached, number = -1, 0
    while (member := tar.next()) is not None:
        vars(tar)["members"] = []  # otherwise all would be kept
        if member.offset <= reached or member.size < 0:
            raise tarfile.ReadError("its parts overlap")
        if (number := number + 1) > BOUNDS.entries:
            count.skipped.lose("…", f"there are more than {BOUNDS.entries} entries; the rest was not read")
            return
        reached = member.offset
        heads.complete(member)
        with heads.content():
            yield member


@dataclass(slots=True)
class _Unpacking:
    root: int
    owner: tuple[int, int] | None
    masked: int
    refuses: Refuses
    report_file: ReportFile
    take_room: Callable[[tuple[bytes, ...], int], None]
    count: _Count

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack one member, or report why not."""
        if len(member.name) > LONGEST_PATH:
            self.count.refuse(_path_of(member.name[:LONGEST_NAME]), f"its path is longer than {LONGEST_PATH} bytes")
            return
        path = _path_of(member.name)
        if not path:
            return  # the folder itself
        if (why := self._problem(path, member)) is not None:
            self.count.refuse(path, why)
            return
        try:
            self.take_room(path, member.size)
            if member.isdir():
                os.close(self._folder(path))
            elif self.count.has_room(path, member.size):
                self._file(tar, member, path)
                self.count.add(member.size)
        except OSError as error:
            if error.errno in _FULL:
                raise
            self.count.lose(path, f"it cannot be written: {error.strerror or error}")

    def _problem(self, path: Path, member: tarfile.TarInfo) -> str | None:
        if member.name.startswith("/") or b".." in path:
            return "its name leads out of the folder"
        if len(path) > BOUNDS.depth:
            return f"it lies deeper than {BOUNDS.depth} folders"
        if not member.isdir() and (member.type not in _PLAIN or member.issparse()):
            return "it is neither a regular file nor a folder"
        bad = next((why for number in range(len(path)) if (why := path_problem(path[: number + 1]))), None)
        return bad or self.refuses(path, member.isdir())

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        content = tar.extractfile(member)
        assert content is not None
        mode = (0o777 if member.mode & 0o100 else 0o666) & ~self.masked
        chunks = Hashed(iter(lambda: content.read(CHUNK), b""))
        attributes = Attributes(mode, self.owner, int(member.mtime) * 10**9)
        with hold(self._folder(path[:-1])) as folder:
            write_file(
                folder, os.fsdecode(path[-1]), chunks, attributes, before=lambda: self.report_file(path, chunks.sha256)
            )

    def _folder(self, path: Path) -> int:
        """A descriptor of a folder beneath the root, created if missing."""
        folder = open_beneath(self.root, ())
        for part in path:
            with hold(folder):
                folder = self._below(folder, os.fsdecode(part))
        return folder

    def _below(self, folder: int, name: str) -> int:
        with suppress(FileExistsError):
            os.mkdir(name, 0o777 & ~self.masked, dir_fd=folder)
            self.count.folders += 1
            if self.owner is not None:
                os.chown(name, *self.owner, dir_fd=folder, follow_symlinks=False)
        return enter_folder(folder, name)


def _path_of(name: str) -> Path:
    return tuple(part for part in os.fsencode(name).split(b"/") if part not in (b"", b"."))
