"""Files that callers have sent ahead, by handle, until a run or a session takes them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from casemate.errors import InvalidArgument, NotFound, Unavailable
from casemate.execution.finishing import finishing
from casemate.files.temporary import TemporaryFolder, sweep
from casemate.model.operation import Principal
from casemate.model.sizes import format_size

MOST_BYTES = 256 << 20  # of one upload
MOST_OF_ONE = 1 << 30  # bytes of one caller's uploads together
MOST_UPLOADS = 1000  # of one caller
SECONDS = 3600.0  # that one is kept after its last use
_WAIT_FOR_ROOM = "Use some, or wait an hour."


@dataclass(slots=True, eq=False)
class _Upload:
    owner: str
    payer: str
    path: Path
    size: int = 0
    until: float = 0.0
    users: int = 0


class Uploads:
    """Each is bound to who has sent it."""

    def __init__(self) -> None:
        self._uploads: dict[str, _Upload] = {}
        self._folder: TemporaryFolder | None = None

    async def load(self) -> None:
        """Remove what processes that were killed have left."""
        await finishing(sweep)

    async def put(self, data: AsyncIterable[bytes], principal: Principal) -> str:
        """Keep the bytes; the handle. Raises ``InvalidArgument`` for more than is taken, and ``Unavailable``."""
        async with self._begun(principal) as (handle, upload):
            await self._write(upload, data)
        return handle

    @contextlib.asynccontextmanager
    async def making(self, principal: Principal) -> AsyncIterator[tuple[str, Path]]:
        """One that is made here: its handle, and the file to write, of which the most counts until it is there. It is
        kept where the block is left without an error. Raises ``Unavailable`` where there is no room."""
        async with self._begun(principal) as (handle, upload):
            if self._total(upload.payer) + MOST_BYTES > MOST_OF_ONE:
                raise Unavailable(
                    f"{format_size(MOST_OF_ONE)} of uploads and archives are the most", remediation=_WAIT_FOR_ROOM
                )
            upload.size = MOST_BYTES
            yield handle, upload.path
            upload.size = await finishing(lambda: upload.path.stat().st_size)

    @contextlib.asynccontextmanager
    async def _begun(self, principal: Principal) -> AsyncIterator[tuple[str, _Upload]]:
        await self._sweep()
        own = [one for one in self._uploads.values() if one.payer == principal.payer]
        if len(own) >= MOST_UPLOADS:
            raise Unavailable(f"{MOST_UPLOADS} uploads are kept already", remediation=_WAIT_FOR_ROOM)
        if self._folder is None:
            self._folder = TemporaryFolder("uploads")
        handle = secrets.token_urlsafe(24)
        upload = _Upload(principal.name, principal.payer, self._folder.path / handle, users=1)
        self._uploads[handle] = upload
        try:
            yield handle, upload
        except BaseException:
            await finishing(self._forget, handle)
            raise
        finally:
            upload.users, upload.until = upload.users - 1, time.monotonic() + SECONDS

    def _total(self, payer: str) -> int:
        return sum(one.size for one in self._uploads.values() if one.payer == payer)

    async def _write(self, upload: _Upload, data: AsyncIterable[bytes]) -> None:
        try:
            file = await asyncio.to_thread(upload.path.open, "xb")
            try:
                async for piece in data:
                    upload.size += len(piece)
                    if upload.size > MOST_BYTES or self._total(upload.payer) > MOST_OF_ONE:
                        most = f"{format_size(MOST_BYTES)} each, {format_size(MOST_OF_ONE)} together"
                        raise InvalidArgument("upload", f"is more than is taken: {most}")
                    await finishing(file.write, piece)
            finally:
                await finishing(file.close)
        except OSError as error:
            raise Unavailable(f"the upload cannot be kept: {error.strerror or error}") from None

    @contextlib.contextmanager
    def using(self, handle: str, principal: Principal) -> Iterator[Path]:
        """Where it lies; it stays there meanwhile, and an hour longer. Raises ``NotFound``."""
        upload = self._uploads.get(handle)
        if upload is None or not principal.may_see(upload.owner):
            raise NotFound(
                "handle",
                f"there is no upload {handle[:100]!r}, or it is no longer kept",
                remediation="Upload the file again, or make the archive again.",
            )
        upload.users += 1
        try:
            yield upload.path
        finally:
            upload.users, upload.until = upload.users - 1, time.monotonic() + SECONDS

    async def drop(self, handle: str, principal: Principal) -> None:
        """Forget one, unless it is being used; harmless where there is none."""
        upload = self._uploads.get(handle)
        if upload is not None and principal.may_see(upload.owner) and not upload.users:
            await finishing(self._forget, handle)

    async def _sweep(self) -> None:
        now = time.monotonic()
        for handle in [known for known, one in self._uploads.items() if not one.users and one.until < now]:
            await finishing(self._forget, handle)

    def _forget(self, handle: str) -> None:
        upload = self._uploads.pop(handle, None)
        if upload is not None:
            upload.path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Remove all of them."""
        self._uploads.clear()
        if self._folder is not None:
            await finishing(self._folder.remove)
