"""Access to the files of a session's workspace from outside, while its interpreter runs.

Programs in the cell may change them at any moment. Every name is opened one component at a time beneath the workspace,
no link is followed, and only regular files are read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from casemate.errors import InvalidArgument
from casemate.execution.request import check_name
from casemate.execution.threads import to_thread_to_end
from casemate.files.beneath import CHUNK, Attributes, Hashed, pieces_of, write_file
from casemate.files.names import text_of
from casemate.files.walk import kind_of
from casemate.model import kinds
from casemate.model.operation import Audience, operation
from casemate.model.plan import WORKSPACE
from casemate.supervisor.trees.walk import Entry, data_in, open_beneath, open_file
from casemate.workspace.rules import path_of

if TYPE_CHECKING:
    from casemate.files.archives import Carried, Refuses
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import StepUsage
    from casemate.workspace.rules import FolderRules

T = TypeVar("T")
NoteUpload = Callable[[str, str], None]  # a file's name and the SHA-256 of its content
_HIDDEN = "it is hidden in this workspace"
_MOST_LISTED = 10_000
_MOST_READ = 1 << 30  # bytes of a file that is returned; a larger one must be downloaded
_MOST_HOLES = 1 << 20  # bytes of holes in a file that is returned
_PAGE = 4096  # bytes; files take whole pages
_BLOCK = 512  # bytes; the unit of st_blocks (stat(2))


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Metadata of an entry of a workspace, or of the host.

    Attributes:
        name: Its path, relative to the workspace; absolute on the host.
        kind: "file", "folder", "link" or "other".
        size: In bytes.
        modified: Seconds since 1970.
    """

    name: str
    kind: str
    size: int
    modified: float


@dataclass(slots=True)
class WriteBounds:
    rules: FolderRules | None = None  # what to protect in the caller's folder
    room: tuple[int, int] | None = None  # bytes and inodes left; None where the kernel enforces the limits
    usage: StepUsage | None = None  # `room` was counted from it

    def why_kept(self, path: str, *, folder: bool) -> str | None:
        """Return why a path may not be written or removed, or None. The output folder belongs to the session."""
        if self.rules is None or path.partition("/")[0] == self.rules.output:
            return None
        return self.rules.reason(path_of(path), folder=folder)

    def take(self, root: int, path: Sequence[str | bytes], size: int) -> None:
        """Reserve room for a file of ``size`` bytes, or a folder. Raises ``OSError`` if none is left."""
        if self.room is None:
            return
        missing = len(path)
        with suppress(OSError):  # a parent folder does not exist
            for depth in range(1, len(path)):
                os.close(open_beneath(root, path[:depth]))
                missing = len(path) - depth
        left = self.room[0] - (-(-max(size, 1) // _PAGE) + missing - 1) * _PAGE, self.room[1] - missing
        if min(left) <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room = left


class SessionFiles:
    """The files of a session's workspace.

    Names are relative to the workspace, with ``/`` between folders. All methods raise ``InvalidArgument`` for wrong
    arguments and for files that cannot be used. In a caller's folder, changes go into the session's layer over it, and
    into the folder after the next step.
    """

    def __init__(
        self,
        workspace: Callable[[], AbstractAsyncContextManager[int]],
        redaction: Redaction | None = None,
        hides: Callable[[str], bool] = lambda _: False,
        note_upload: NoteUpload = lambda _name, _sha256: None,
        bounds: Callable[[], Awaitable[WriteBounds]] | None = None,
    ) -> None:
        """``redaction`` applies to what is read and listed. ``hides`` returns whether a name is hidden from the
        session's programs; it is called once the workspace is open. ``note_upload`` is called with the name and the
        SHA-256 of each file before it appears. ``bounds`` returns what may be written."""
        self._hides, self._note_upload, self._bounds = hides, note_upload, bounds
        self._workspace = workspace
        self._redaction = redaction

    async def read_bytes(self, path: str) -> bytes:
        """Read a file of at most 1 GiB, with the session's secrets redacted."""
        return await self._do(_read, path, self._redaction)

    async def read_part(self, path: str, offset: int, most: int) -> tuple[bytes, int]:
        """Read at most ``most`` bytes from ``offset``. Returns them and the size of the whole file in bytes."""
        if self._redaction is not None:  # a piece may hold part of a secret
            data = await self.read_bytes(path)
            return data[offset : offset + most], len(data)
        return await self._do(_part, path, offset, most)

    async def info(self, path: str) -> FileInfo:
        """Return the metadata of a file, a folder or a link without opening it."""
        return await self._do(_about, path)

    async def read_text(self, path: str) -> str:
        """Read a UTF-8 file."""
        data = await self.read_bytes(path)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument("path", f"{path!r} is not UTF-8 text: {error.reason}; use read_bytes") from None

    async def write(self, path: str, content: bytes | str) -> None:
        """Write a file, creating its folders. An existing file is replaced."""
        if not isinstance(content, str | bytes | bytearray | memoryview):
            raise InvalidArgument("content", f"must be bytes or str, not {type(content).__name__}; upload takes a path")
        data = content.encode() if isinstance(content, str) else bytes(content)
        await self._do(_write, path, lambda: iter((data,)), len(data), self._note_upload, changes=True)

    async def list(self, path: str = "") -> list[FileInfo]:
        """List a folder by name, at most 10,000 entries."""
        entries = await self._do(_list, path)
        if (redaction := self._redaction) is None:
            return entries
        return [replace(entry, name=redaction.text(entry.name)) for entry in entries]

    @operation(audience=Audience.AGENT)
    async def remove(self, path: kinds.Path) -> None:
        """Remove a file, a link or an empty folder of a session's workspace. ``path``: relative to the workspace."""
        await self._do(_remove, path, changes=True)

    async def upload(self, source: str | os.PathLike[str], path: str | None = None) -> None:
        """Copy a host file into the workspace, under its own name unless ``path`` is given."""
        file = Path(source)
        await self._do(_upload, file.name if path is None else path, file, self._note_upload, changes=True)

    async def download(self, path: str, target: str | os.PathLike[str]) -> Path:
        """Copy a file to ``target`` on the host, a path or a folder. Returns the path of the copy."""
        return await self._do(_download, path, Path(target), self._redaction)

    async def pack(self, path: str, target: str | os.PathLike[str], *, top: str = "") -> Carried:
        """Write a folder or a file to ``target`` on the host as a tar archive, with the session's secrets redacted.

        Names in the archive begin with ``top``; a packed file keeps its own name. Only regular files and folders are
        included, with at most 224 MiB of contents. ``path`` "" packs the whole workspace.

        Raises:
            InvalidArgument: The name does not exist, is a link, or is hidden.
            Unavailable: The archive cannot be written.
        """
        if top:
            check_name(top, "top")
        return await self._do(_pack, path, Path(target), top, self._redaction, self._refuses_in(path))

    async def unpack(self, source: str | os.PathLike[str], path: str = "") -> Carried:
        """Unpack a tar archive of the host into a folder of the workspace, creating the folder if needed.

        Files of the same names are replaced. Links and special files are left out. Returns what was unpacked.

        Raises:
            InvalidArgument: It is not an archive, or there is no room.
        """
        return await self._do(
            _unpack, path, Path(source), partial(self._refuses_in, path), self._note_upload, changes=True
        )

    def _refuses_in(self, folder: str, bounds: WriteBounds | None = None) -> Refuses:
        """Return a function that says why a path in ``folder`` is left out. ``bounds``: the bounds of writes there."""
        outer = [_inner(folder)] if _inner(folder) else []

        def refuses(path: tuple[bytes, ...], is_folder: bool) -> str | None:
            name = "/".join((*outer, *map(os.fsdecode, path)))
            return _HIDDEN if self._hides(name) else (bounds or WriteBounds()).why_kept(name, folder=is_folder)

        return refuses

    async def _do(self, work: Callable[..., T], path: str, *arguments: object, changes: bool = False) -> T:
        name = _inner(path)
        if name:
            check_name(name, "path")
        async with self._workspace() as root:
            if name and self._hides(name):
                raise InvalidArgument(
                    "path",
                    f"{name!r}: {_HIDDEN}",
                    remediation="It can be shown with allow_read, when the sandbox is made.",
                )
            if changes:
                bounds = await self._bounds() if self._bounds else WriteBounds()
                if name and work is not _unpack and (why := bounds.why_kept(name, folder=False)):
                    raise InvalidArgument("path", f"{name!r}: {why}")
                arguments = (*arguments, bounds)
            return await to_thread_to_end(_run_on, work, root, name, *arguments)


def _inner(path: str) -> str:
    """A path relative to the workspace. Code in the cell uses absolute paths."""
    return path.removeprefix(f"{WORKSPACE}/") if isinstance(path, str) else path


def _run_on(work: Callable[..., T], root: int, name: str, *arguments: object) -> T:
    """Call ``work``; an ``OSError`` becomes an error about ``name``."""
    try:
        return work(root, name, *arguments)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "there is no room for it: limits.disk or limits.inodes is used up" if full else error.strerror or error
        raise InvalidArgument("path", f"{name!r}: {why}") from None


def _owner(root: int) -> tuple[int, int]:
    status = os.fstat(root)
    return status.st_uid, status.st_gid


@contextmanager
def _parent(root: int, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    *folders, last = name.split("/")
    folder = open_beneath(root, folders, make=make, owner=_owner(root))
    try:
        yield folder, last
    finally:
        os.close(folder)


@contextmanager
def _open_file(root: int, name: str) -> Iterator[int]:
    with _parent(root, name) as (folder, last):
        status = os.stat(last, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, f"is {kind_of(status.st_mode)}; only regular files are read")
        fd = open_file(Entry((os.fsencode(last),), status, folder))
        try:
            yield fd
        finally:
            os.close(fd)


def _read(root: int, name: str, redaction: Redaction | None) -> bytes:
    data = _content(root, name)
    return data if redaction is None else _redact(data, redaction)


def _redact(data: bytes, redaction: Redaction) -> bytes:
    """Redact the content of a file. Raises ``OSError`` if that is impossible."""
    from casemate.redaction.content import Budget, RedactedContent, reason_to_withhold

    content, pieces, size = RedactedContent(redaction), [], 0
    for at in range(0, len(data), CHUNK):
        pieces.append(content.feed(data[at : at + CHUNK]))
        size += len(pieces[-1])
        if size > _MOST_READ:
            raise OSError(errno.EFBIG, "is larger than 1 GiB with its secrets replaced")
    kept = b"".join((*pieces, content.finish()))
    why = content.withheld or reason_to_withhold(
        lambda at, size: kept[at : at + size], len(kept), redaction, Budget(_MOST_READ)
    )
    if why:
        raise OSError(0, why)
    return kept


def _part(root: int, name: str, offset: int, most: int) -> tuple[bytes, int]:
    with _open_file(root, name) as fd:
        return os.pread(fd, most, offset), os.fstat(fd).st_size


def _about(root: int, name: str) -> FileInfo:
    if not name:
        return FileInfo("", "folder", 0, os.fstat(root).st_mtime)
    with _parent(root, name) as (folder, last):
        return info_of(folder, name, last)


def _content(root: int, name: str) -> bytes:
    with _open_file(root, name) as fd:
        status = os.fstat(fd)
        if status.st_size > _MOST_READ:
            raise OSError(errno.EFBIG, "is larger than 1 GiB; download it")
        if status.st_size > status.st_blocks * _BLOCK + _MOST_HOLES:
            raise OSError(errno.EFBIG, "has more than 1 MiB of holes; download it")
        return os.read(fd, status.st_size) if status.st_size < CHUNK else b"".join(pieces_of(fd, status.st_size))


def _write(
    root: int, name: str, chunks: Callable[[], Iterator[bytes]], size: int, note_upload: NoteUpload, bounds: WriteBounds
) -> None:
    bounds.take(root, name.split("/"), size)
    owner, hashed = os.fstat(root), Hashed(chunks())
    with _parent(root, name, make=True) as (folder, last):
        attributes = Attributes(0o644, (owner.st_uid, owner.st_gid))
        write_file(folder, last, hashed, attributes, before=lambda: note_upload(name, hashed.sha256))


def _list(root: int, name: str) -> list[FileInfo]:
    with _folder(root, name) as folder:
        names = sorted(os.listdir(folder))[:_MOST_LISTED]
        return [info_of(folder, f"{name}/{entry}" if name else entry, entry) for entry in names]


@contextmanager
def _folder(root: int, name: str) -> Iterator[int]:
    folder = open_beneath(root, tuple(name.split("/")) if name else ())
    try:
        yield folder
    finally:
        os.close(folder)


def info_of(folder: int, name: str, entry: str) -> FileInfo:
    """Return the metadata of ``entry`` in a folder, under ``name``. Raises ``OSError``."""
    status = os.stat(entry, dir_fd=folder, follow_symlinks=False)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    return FileInfo(name, kinds.get(stat.S_IFMT(status.st_mode), "other"), status.st_size, status.st_mtime)


def _remove(root: int, name: str, _bounds: WriteBounds) -> None:
    with _parent(root, name) as (folder, last):
        if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
            os.rmdir(last, dir_fd=folder)
        else:
            os.unlink(last, dir_fd=folder)


def _pack(root: int, name: str, target: Path, top: str, redaction: Redaction | None, refuses: Refuses) -> Carried:
    from casemate.files.archives import Packer, Withheld, close_after

    def redact_file(file: int) -> bytes:
        assert redaction is not None
        try:
            return _redact(b"".join(pieces_of(file, os.fstat(file).st_size)), redaction)
        except OSError as error:
            raise Withheld(error.strerror or str(error)) from None

    is_folder = _about(root, name).kind == "folder"
    with (_folder if is_folder else _open_file)(root, name) as opened, close_after(_new(target)) as out:
        packer = Packer(
            out, tuple(map(os.fsencode, top.split("/"))) if top else (), content=redact_file if redaction else None,
            named=redaction.text if redaction else str, refuses=refuses,
        )  # fmt: skip
        if is_folder:
            packer.tree(opened)
        else:
            packer.file((os.fsencode(name.rpartition("/")[2]),), opened)
        return packer.end()


def _unpack(
    root: int, name: str, source: Path, refuses: Callable[[WriteBounds], Refuses], note_upload: NoteUpload,
    bounds: WriteBounds,
) -> Carried:  # fmt: skip
    from casemate.files.archives import unpack

    status, outer = os.fstat(root), f"{name}/" if name else ""
    with _on_the_host("source", source):
        archive = source.open("rb")
    with archive:
        folder = open_beneath(root, name.split("/") if name else (), make=True, owner=_owner(root))
        try:
            return unpack(
                archive, folder, owner=(status.st_uid, status.st_gid), refuses=refuses(bounds),
                take_room=lambda path, size: bounds.take(folder, path, size),
                report_file=lambda path, sha256: note_upload(outer + text_of(path), sha256),
            )  # fmt: skip
        finally:
            os.close(folder)


def _upload(root: int, name: str, source: Path, note_upload: NoteUpload, bounds: WriteBounds) -> None:
    if not source.is_file():
        raise InvalidArgument("source", f"{str(source)!r} is not a file")
    _write(root, name, lambda: _chunks_of(source), source.stat().st_size, note_upload, bounds)


def _download(root: int, name: str, target: Path, redaction: Redaction | None) -> Path:
    if target.is_dir():
        target = target / name.rpartition("/")[2]
    if redaction is not None:
        data = _read(root, name, redaction)
        with _on_the_host("target", target):
            target.write_bytes(data)
        return target
    with _open_file(root, name) as fd, _on_the_host("target", target), target.open("wb") as file:
        size = os.fstat(fd).st_size
        for start, end in data_in(fd, size):
            os.lseek(fd, start, os.SEEK_SET)
            file.seek(start)
            for piece in pieces_of(fd, end - start):
                file.write(piece)
        file.truncate(size)
    return target


def _new(target: Path) -> BinaryIO:
    with _on_the_host("target", target):
        return target.open("wb")


@contextmanager
def _on_the_host(argument: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgument(argument, f"{str(path)!r}: {error.strerror or error}") from None


def _chunks_of(path: Path) -> Iterator[bytes]:
    with _on_the_host("source", path), path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece
