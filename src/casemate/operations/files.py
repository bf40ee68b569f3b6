"""``files``, ``artifacts``, ``archives``: what lies in workspaces, and what runs have left."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Literal

from casemate.errors import InvalidArgument, NotFound
from casemate.execution.request import check_name
from casemate.execution.threads import to_thread_to_end
from casemate.files.archives import Carried, Packer, close_after
from casemate.model.call_options import Text
from casemate.model.execution import Artifact, SkippedFile
from casemate.model.kinds import Cursor, Name, Page, Path
from casemate.model.operation import Audience, Most, Principal, operation
from casemate.operations.kept import StoredFile
from casemate.operations.sessions import Group
from casemate.sessions.files import FileInfo

_PAGE = 200_000  # bytes
_CHUNK = 1 << 20  # bytes
Base64 = Annotated[str, Most(64 << 20)]


@dataclass(frozen=True, slots=True)
class FileContent:
    """Part of a file: ``text`` where it is UTF-8, else ``base64``. ``size`` of the whole file, and ``offset`` of the
    part, in bytes; ``next``: the offset of what follows, nothing at the end."""

    path: str
    text: str | None
    base64: bytes | None
    size: int
    offset: int
    next: int | None


class FileOperations(Group):
    """Files by the handle of the session or the run that they are of."""

    @operation(audience=Audience.AGENT, while_draining=True)
    async def read(
        self,
        path: Path,
        *,
        session: Name | None = None,
        run: Name | None = None,
        offset: Cursor = 0,
        limit: Page = _PAGE,
        encoding: Literal["auto", "base64"] = "auto",
        principal: Principal,
    ) -> FileContent:
        """Read a file of a session's workspace, or one that a run has left.

        ``path``: relative to the workspace. ``session``: the session's handle or name. ``run``: instead, the handle of
        a run that is over. ``offset``: the position of the first byte. ``limit``: the most bytes.
        ``encoding``: "base64" for bytes in any case, else text where it is text.
        """
        data, size = await self._part(path, session, run, offset, limit, principal)
        return _content_of(path, data, size, offset, as_bytes=encoding == "base64")

    async def chunks(
        self, path: str, *, session: str | None = None, run: str | None = None, principal: Principal
    ) -> AsyncGenerator[bytes]:
        """The bytes of a file, about a megabyte at a time. Raises as :meth:`read`."""
        offset, size = 0, 1
        while offset < size:
            data, size = await self._part(path, session, run, offset, _CHUNK, principal)
            if not data:
                return
            yield data
            offset += len(data)

    async def _part(
        self, path: str, session: str | None, run: str | None, offset: int, limit: int, principal: Principal
    ) -> tuple[bytes, int]:
        _check_either(session, run)
        if session is not None:
            files = self._sessions.find(session, principal).session.files
            return await files.read_part(path, offset, limit)
        artifact = await self._shared.kept.file(str(run), path, principal)
        return await asyncio.to_thread(_part_of, artifact, offset, limit), artifact.size

    @operation(audience=Audience.AGENT)
    async def write(
        self,
        session: Name,
        path: Path,
        *,
        text: Text | None = None,
        base64: Base64 | None = None,
        handle: Name | None = None,
        principal: Principal,
    ) -> FileInfo:
        """Write a file into a session's workspace, in place of one that is there, making its folders.

        ``session``: its handle or name. ``path``: relative to the workspace. ``text``: the content. ``base64``: the
        content, where it is not text. ``handle``: instead, the handle of an upload.
        """
        files = self._sessions.find(session, principal).session.files
        if sum(one is not None for one in (text, base64, handle)) != 1:
            raise InvalidArgument(
                "text",
                "give one of text, base64 and handle",
                remediation='text for the content as text, also "" for an empty file; base64 for bytes; handle for '
                "what was uploaded.",
            )
        if handle is not None:
            with self._shared.uploads.use_upload(handle, principal) as source:
                await files.upload(source, path)
        else:
            await files.write(path, text if text is not None else decode_base64("base64", base64 or ""))
        return await files.info(path)

    @operation(audience=Audience.AGENT, while_draining=True)
    async def list(self, session: Name, path: Path = ".", *, principal: Principal) -> list[FileInfo]:
        """List a folder of a session's workspace, sorted by name: at most 10,000 entries.

        ``session``: its handle or name. ``path``: the folder, relative to the workspace.
        """
        files = self._sessions.find(session, principal).session.files
        return await files.list(plain(path))

    @operation(audience=Audience.AGENT, while_draining=True)
    async def info(
        self, path: Path = ".", *, session: Name | None = None, run: Name | None = None, principal: Principal
    ) -> FileInfo:
        """Describe the file or folder at a path, without opening it or following a link.

        ``path``: relative to the workspace. ``session``: the handle or name of its session. ``run``: instead, the
        handle of a finished run that left it.
        """
        _check_either(session, run)
        if session is not None:
            return await self._sessions.find(session, principal).session.files.info(plain(path))
        artifacts, name = await self._shared.kept.files_of(str(run), principal), plain(path)
        for artifact in artifacts:
            if artifact.name == name:
                return FileInfo(artifact.name, "file", artifact.size, 0.0)
        if not name or any(one.name.startswith(f"{name}/") for one in artifacts):
            return FileInfo(name, "folder", 0, 0.0)
        raise NotFound("path", f"the run has left nothing at {path[:200]!r}")


class ArtifactOperations(Group):
    """Files that runs have left, by the handle of the run."""

    @operation(audience=Audience.AGENT, while_draining=True)
    async def list(self, run: Name, *, principal: Principal) -> list[Artifact]:
        """The files that a run has left. ``run``: its handle."""
        return list(await self._shared.kept.files_of(run, principal))

    @operation(audience=Audience.AGENT, while_draining=True)
    async def read(
        self, run: Name, name: Path, *, offset: Cursor = 0, limit: Page = _PAGE, principal: Principal
    ) -> FileContent:
        """Read a file that a run has left. ``run``: its handle. ``name``: the file's. ``offset``: the position of
        the first byte. ``limit``: the most bytes."""
        artifact = await self._shared.kept.file(run, name, principal)
        return _content_of(name, await asyncio.to_thread(_part_of, artifact, offset, limit), artifact.size, offset)


def decode_base64(argument: str, text: str) -> bytes:
    """The bytes of a base64 text. Raises ``InvalidArgument``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(
            argument,
            f"is not base64: {error}",
            remediation="It is written with + and /, padded with =, and without line ends (RFC 4648, section 4).",
        ) from None


def _check_either(session: str | None, run: str | None) -> None:
    """Raise ``InvalidArgument`` if whose file it is was said twice, or not at all."""
    if (session is None) == (run is None):
        raise InvalidArgument(
            "session",
            "give either session or run",
            remediation="Give session for a file in its workspace, run for a file that a finished run left.",
        )


def plain(path: str) -> str:
    """A path relative to the workspace; nothing for the workspace itself."""
    return "" if path.strip("/") in ("", ".", "workspace") else path


def _content_of(path: str, data: bytes, size: int, offset: int, *, as_bytes: bool = False) -> FileContent:
    text = None if as_bytes else _text_of(data, is_last=offset + len(data) >= size)
    if text is not None:
        data = text.encode()
    end = offset + len(data)
    return FileContent(path, text, data if text is None else None, size, offset, end if end < size else None)


def _part_of(artifact: Artifact, offset: int, limit: int) -> bytes:
    try:
        assert isinstance(artifact.content, StoredFile)
        with artifact.content.path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except OSError:
        raise NotFound("run", "its files are no longer kept") from None


def _text_of(data: bytes, *, is_last: bool) -> str | None:
    """``data`` as text, but for a character that is cut at its end; None where it is none."""
    if b"\0" in data:
        return None
    for cut in range(1 if is_last else min(4, len(data) + 1)):
        try:
            text = data[: len(data) - cut].decode()
            return text if text or not data else None  # a page goes on by a byte at least
        except UnicodeDecodeError:
            continue
    return None


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive that was made. ``handle``: by which it is fetched, or unpacked, for an hour; ``size``: its bytes.

    ``files``, ``folders`` and ``bytes`` of contents are in it; ``left_out`` are not. ``is_whole``: that is only what
    may never be copied; False where a bound, or a failure, left out more.
    """

    handle: str
    size: int
    files: int
    folders: int
    bytes: int
    left_out: tuple[SkippedFile, ...]
    is_whole: bool


class ArchiveOperations(Group):
    """Archives are uploads: each is bound to who has made or sent it. Only regular files and folders are in them."""

    @operation(audience=Audience.AGENT, while_draining=True)
    async def pack(
        self,
        path: Path = "",
        *,
        session: Name | None = None,
        run: Name | None = None,
        top: Path = "",
        principal: Principal,
    ) -> Packed:
        """Make an archive of a folder, or a file, of a session's workspace, or of what a run has left.

        ``path``: relative to the workspace; nothing for all of it. ``session``: the handle or name of the session that
        it is of. ``run``: instead, the handle of a run that is over. ``top``: a folder that all names in the archive
        begin with.
        """
        _check_either(session, run)
        if top:
            check_name(top, "top")
        path = plain(path)
        async with self._shared.uploads.make_upload(principal) as (handle, target):
            if session is not None:
                files = self._sessions.find(session, principal).session.files
                carried = await files.pack(path, target, top=top)
            else:
                artifacts = await self._shared.kept.files_of(str(run), principal)
                carried = await to_thread_to_end(_pack, _beneath(artifacts, path), target, top)
        size = await asyncio.to_thread(lambda: target.stat().st_size)
        return Packed(
            handle, size, carried.files, carried.folders, carried.bytes, carried.left_out, carried.is_whole
        )  # fmt: skip

    @operation(audience=Audience.AGENT)
    async def unpack(self, session: Name, handle: Name, path: Path = "", *, principal: Principal) -> Carried:
        """Unpack an archive into a folder of a session's workspace, which is created if it is missing. Files of the
        same names are replaced. Links, devices and other special files are left out and reported.

        ``session``: its handle or name. ``handle``: the handle of a tar archive that was made or uploaded. ``path``:
        the folder, relative to the workspace; empty for the workspace itself.
        """
        files = self._sessions.find(session, principal).session.files
        with self._shared.uploads.use_upload(handle, principal) as source:
            return await files.unpack(source, plain(path))

    @operation(audience=Audience.AGENT, while_draining=True)
    async def drop(self, handle: Name, *, principal: Principal) -> None:
        """Forget an archive, or another upload, before its time; harmless where there is none. ``handle``: of it."""
        await self._shared.uploads.drop(handle, principal)

    async def chunks(self, handle: str, principal: Principal) -> AsyncGenerator[bytes]:
        """The bytes of one, about a megabyte at a time. Raises ``NotFound``."""
        with self._shared.uploads.use_upload(handle, principal) as path:
            file = await asyncio.to_thread(path.open, "rb")
            try:
                while piece := await asyncio.to_thread(file.read, _CHUNK):
                    yield piece
            finally:
                file.close()


def _beneath(artifacts: tuple[Artifact, ...], path: str) -> list[tuple[str, Artifact]]:
    """Those at ``path``, with their names relative to it. Raises ``NotFound``."""
    matches = [(one.name.rpartition("/")[2], one) for one in artifacts if one.name == path]
    start = f"{path}/" if path else ""
    matches = matches or [(one.name.removeprefix(start), one) for one in artifacts if one.name.startswith(start)]
    if not matches and path:
        raise NotFound("path", f"the run has left nothing at {path[:200]!r}")
    return matches


def _pack(files: list[tuple[str, Artifact]], target: FilePath, top: str) -> Carried:
    with close_after(target.open("wb")) as out:
        packer = Packer(out, tuple(part.encode() for part in top.split("/")) if top else ())
        for name, artifact in files:
            assert isinstance(artifact.content, StoredFile)
            try:
                with artifact.content.path.open("rb") as file:
                    packer.file(tuple(part.encode() for part in name.split("/")), file.fileno())
            except OSError:
                raise NotFound("run", "its files are no longer kept") from None
        return packer.end()
