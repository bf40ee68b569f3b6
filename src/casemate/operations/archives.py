"""``archives``: whole folders, out of sessions and runs and into sessions, as tar archives by handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from casemate.api.options import Name, Path
from casemate.errors import NotFound
from casemate.execution.finishing import finishing
from casemate.execution.request import check_name
from casemate.files.archives import Carried, Packer, closing
from casemate.model.execution import SkippedFile
from casemate.model.operation import Audience, Principal, operation
from casemate.operations.files import neither_nor_both, plain
from casemate.operations.kept import StoredFile

if TYPE_CHECKING:
    from casemate.model.execution import Artifact
    from casemate.operations.desk import Desk

_CHUNK = 1 << 20  # bytes


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


class Archives:
    """Archives are uploads: each is bound to who has made or sent it. Only regular files and folders are in them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation(audience=Audience.AGENT)
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
        if (session is None) == (run is None):
            raise neither_nor_both()
        if top:
            check_name(top, "top")
        path = plain(path)
        async with self._desk.uploads.making(principal) as (handle, target):
            if session is not None:
                files = self._desk.sessions.find(session, principal).session.files
                carried = await files.pack(path, target, top=top)
            else:
                left = await self._desk.artifacts.of(str(run), principal)
                carried = await finishing(_pack, _beneath(left, path), target, top)
        size = await asyncio.to_thread(lambda: target.stat().st_size)
        return Packed(
            handle, size, carried.files, carried.folders, carried.bytes, carried.left_out, carried.is_whole
        )  # fmt: skip

    @operation(audience=Audience.AGENT)
    async def unpack(self, session: Name, handle: Name, path: Path = "", *, principal: Principal) -> Carried:
        """Put the files and folders of an archive into a folder of a session's workspace, which is made where it is
        missing; files of the same names are replaced. Links, devices and their like are left out, and that is told.

        ``session``: its handle or name. ``handle``: of a tar archive that was made, or uploaded. ``path``: the folder,
        relative to the workspace; nothing for the workspace itself.
        """
        files = self._desk.sessions.find(session, principal).session.files
        with self._desk.uploads.using(handle, principal) as source:
            return await files.unpack(source, plain(path))

    @operation(audience=Audience.AGENT)
    async def drop(self, handle: Name, *, principal: Principal) -> None:
        """Forget an archive, or another upload, before its time; harmless where there is none. ``handle``: of it."""
        await self._desk.uploads.drop(handle, principal)

    async def chunks(self, handle: str, principal: Principal) -> AsyncGenerator[bytes]:
        """The bytes of one, about a megabyte at a time. Raises ``NotFound``."""
        with self._desk.uploads.using(handle, principal) as path:
            file = await asyncio.to_thread(path.open, "rb")
            try:
                while piece := await asyncio.to_thread(file.read, _CHUNK):
                    yield piece
            finally:
                file.close()


def _beneath(left: tuple[Artifact, ...], path: str) -> list[tuple[str, Artifact]]:
    """Those at ``path``, with their names relative to it. Raises ``NotFound``."""
    found = [(one.name.rpartition("/")[2], one) for one in left if one.name == path]
    start = f"{path}/" if path else ""
    found = found or [(one.name.removeprefix(start), one) for one in left if one.name.startswith(start)]
    if not found and path:
        raise NotFound("path", f"the run has left nothing at {path[:200]!r}")
    return found


def _pack(files: list[tuple[str, Artifact]], target: FilePath, top: str) -> Carried:
    with closing(target.open("wb")) as out:
        packer = Packer(out, tuple(part.encode() for part in top.split("/")) if top else ())
        for name, artifact in files:
            assert isinstance(artifact.content, StoredFile)
            try:
                with artifact.content.path.open("rb") as file:
                    packer.file(tuple(part.encode() for part in name.split("/")), file.fileno())
            except OSError:
                raise NotFound("run", "its files are no longer kept") from None
        return packer.end()
