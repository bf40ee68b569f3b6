"""``files``: those of a session's workspace, and those that a run has left."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from casemate.api.options import Cursor, Name, Page, Path, Text
from casemate.errors import InvalidArgument, NotFound
from casemate.model.execution import Artifact
from casemate.model.operation import Audience, Most, Principal, operation
from casemate.operations.kept import StoredFile
from casemate.sessions.files import FileInfo

if TYPE_CHECKING:
    from casemate.operations.desk import Desk

_PAGE = 200_000  # bytes
_CHUNK = 1 << 20  # bytes
Base64 = Annotated[str, Most(64 << 20)]


@dataclass(frozen=True, slots=True)
class FileContent:
    """Part of a file: ``text`` where it is UTF-8, else ``base64``. ``size`` of the whole file, and ``offset`` of the
    part, in bytes; ``next``: the offset of what follows, nothing at the end."""

    path: str
    text: str | None
    base64: str | None
    size: int
    offset: int
    next: int | None


class Files:
    """Files by the handle of the session or the run that they are of."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation(audience=Audience.AGENT)
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

        ``path``: relative to the workspace. ``session``: the handle or name of the session that it is of. ``run``:
        instead, the handle of a run that is over. ``offset``: of the first byte. ``limit``: the most bytes.
        ``encoding``: "base64" for bytes in any case, else text where it is text.
        """
        data, size = await self._part(path, session, run, offset, limit, principal)
        text = None if encoding == "base64" else _text_of(data, is_last=offset + len(data) >= size)
        if text is not None:
            data = text.encode()
        reached = offset + len(data)
        coded = base64.b64encode(data).decode() if text is None else None
        return FileContent(path, text, coded, size, offset, reached if reached < size else None)

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
        if (session is None) == (run is None):
            raise neither_nor_both()
        if session is not None:
            files = self._desk.sessions.find(session, principal).session.files
            return await files.read_part(path, offset, limit)
        artifact = await self.artifact(str(run), path, principal)
        return await asyncio.to_thread(_part_of, artifact, offset, limit), artifact.size

    async def artifact(self, run: str, name: str, principal: Principal) -> Artifact:
        """A file that a run has left, or its full output. Raises ``NotFound``."""
        for artifact in await self._desk.artifacts.of(run, principal):
            if artifact.name == name:
                return artifact
        raise NotFound("path", f"the run has left no file {name[:200]!r}")

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
        content, where it is not text. ``handle``: of an upload, instead.
        """
        files = self._desk.sessions.find(session, principal).session.files
        if sum(one is not None for one in (text, base64, handle)) != 1:
            raise InvalidArgument(
                "text",
                "give one of text, base64 and handle",
                remediation='text for the content as text, also "" for an empty file; base64 for bytes; handle for '
                "what was uploaded.",
            )
        if handle is not None:
            with self._desk.uploads.using(handle, principal) as source:
                await files.upload(source, path)
        else:
            await files.write(path, text if text is not None else decoded("base64", base64 or ""))
        return await files.info(path)

    @operation(audience=Audience.AGENT)
    async def list(self, session: Name, path: Path = ".", *, principal: Principal) -> list[FileInfo]:
        """What lies in a folder of a session's workspace, by name; at most 10,000 entries.

        ``session``: its handle or name. ``path``: the folder, relative to the workspace.
        """
        files = self._desk.sessions.find(session, principal).session.files
        return await files.list(plain(path))

    @operation(audience=Audience.AGENT)
    async def info(
        self, path: Path = ".", *, session: Name | None = None, run: Name | None = None, principal: Principal
    ) -> FileInfo:
        """What lies at a path, without opening it or following a link.

        ``path``: relative to the workspace. ``session``: the handle or name of the session that it is of. ``run``:
        instead, the handle of a run that is over, in what it has left.
        """
        if (session is None) == (run is None):
            raise neither_nor_both()
        if session is not None:
            return await self._desk.sessions.find(session, principal).session.files.info(plain(path))
        left, wanted = await self._desk.artifacts.of(str(run), principal), plain(path)
        for artifact in left:
            if artifact.name == wanted:
                return FileInfo(artifact.name, "file", artifact.size, 0.0)
        if not wanted or any(one.name.startswith(f"{wanted}/") for one in left):
            return FileInfo(wanted, "folder", 0, 0.0)
        raise NotFound("path", f"the run has left nothing at {path[:200]!r}")

    @operation(audience=Audience.AGENT)
    async def remove(self, session: Name, path: Path, *, principal: Principal) -> None:
        """Remove a file, a link or an empty folder of a session's workspace.

        ``session``: its handle or name. ``path``: relative to the workspace.
        """
        await self._desk.sessions.find(session, principal).session.files.remove(path)


class Artifacts:
    """Files that runs have left, by the handle of the run."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation(audience=Audience.AGENT)
    async def list(self, run: Name, *, principal: Principal) -> list[Artifact]:
        """The files that a run has left. ``run``: its handle."""
        return list(await self.of(run, principal))

    @operation(audience=Audience.AGENT)
    async def read(
        self, run: Name, name: Path, *, offset: Cursor = 0, limit: Page = _PAGE, principal: Principal
    ) -> FileContent:
        """Read a file that a run has left. ``run``: its handle. ``name``: the file's. ``offset``: of the first byte.
        ``limit``: the most bytes."""
        read = partial(self._desk.files.read, name, run=run, offset=offset, limit=limit)
        return await read(principal=principal)

    async def of(self, run: str, principal: Principal) -> tuple[Artifact, ...]:
        """The same with their contents. Raises ``NotFound``."""
        execution = await self._desk.kept.execution(self._desk.kept.find(run, principal))
        if execution is None:
            return ()
        return (*execution.artifacts, *([execution.full_output] if execution.full_output else []))


def decoded(argument: str, text: str) -> bytes:
    """The bytes of a base64 text. Raises ``InvalidArgument``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(
            argument,
            f"is not base64: {error}",
            remediation="It is written with + and /, padded with =, and without line ends (RFC 4648, section 4).",
        ) from None


def neither_nor_both() -> InvalidArgument:
    """Whose file it is was said twice, or not at all."""
    return InvalidArgument(
        "session",
        "give either session or run",
        remediation="session for what lies in its workspace, run for what a run that is over has left.",
    )


def plain(path: str) -> str:
    """A path relative to the workspace; nothing for the workspace itself."""
    return "" if path.strip("/") in ("", ".", "workspace") else path


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
