"""A session of a service, as if it were here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from casemate.errors import InvalidArgument, NotFound, SandboxClosed, Unavailable
from casemate.model.call_options import StepOptions
from casemate.model.options import takes_options
from casemate.model.shown import ShownSession
from casemate.operations import SESSION
from casemate.operations.documents import revive, type_named
from casemate.remote.client import RemoteOperations
from casemate.remote.methods import RemotePart, call_with_options
from casemate.remote.runs import Run, run_to_end, stream_to_end
from casemate.sessions.files import SessionFiles

if TYPE_CHECKING:
    from casemate.files.archives import Carried
    from casemate.model.events import Event
    from casemate.model.execution import Execution

T = TypeVar("T")
_CARRIED = "casemate.files.archives:Carried"  # loaded when it is needed
_SMALL = 256 * 1024  # characters that travel with the arguments


class Session(RemotePart, ShownSession):
    """See :class:`casemate.Session`: the same methods, and they do the same; ``id`` is its handle."""

    also = ("previews",)

    def __init__(self, state: Mapping[str, Any], remote: RemoteOperations) -> None:
        self.id: str = state["session"]
        self.name: str | None = state["name"]
        self.language: str = state["language"]
        self.files = cast("SessionFiles", Files(self.id, remote))
        self._closed = False
        super().__init__(remote, SESSION, "sessions.", session=self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed here; one that has ended by itself says so when it is used."""
        return self._closed

    @takes_options(StepOptions)
    async def run(self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]) -> Execution:
        """See :meth:`casemate.Session.run`. Cancelling interrupts the step."""
        return await run_to_end(partial(self._start, "run", code, options, wait=wait))

    @takes_options(StepOptions)
    def stream(self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]) -> AsyncGenerator[Event]:
        """See :meth:`casemate.Session.stream`. Leaving early interrupts the step."""
        return stream_to_end(partial(self._start, "stream", code, options, wait=wait))

    @takes_options(StepOptions)
    def start(self, code: str | bytes, **options: Unpack[StepOptions]) -> Run:
        """See :meth:`casemate.Session.start`. Blocks for a round trip to the service."""
        return self._remote.block(partial(self._start, "start", code, options))

    async def attach(self, run_id: str) -> Run:
        """The run with this id of this session. Raises ``InvalidArgument`` where there is none."""
        state = await self._remote("runs.get", {"run": run_id})
        if state["session"] != self.id:
            raise NotFound("run_id", f"this session has no run {run_id!r}")
        return Run(state, self._remote)

    async def close(self) -> None:
        """End the session. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(NotFound, SandboxClosed):  # it has ended by itself
            await self._remote("sessions.close", {"session": self.id})

    async def _start(
        self,
        call: str,
        code: str | bytes,
        options: Mapping[str, Any],
        remote: RemoteOperations | None = None,
        *,
        wait: bool = True,
    ) -> Run:
        remote = remote or self._remote
        if self._closed:
            raise SandboxClosed("the session was closed")
        if not wait and any(one["session"] == self.id and one["is_busy"] for one in await remote("sessions.list")):
            raise InvalidArgument("wait", "this session is busy; omit wait to queue behind the running step")
        given = {"session": self.id, "code": code}
        return Run(await call_with_options(remote, "runs.start", call, StepOptions, options, **given), self._remote)


class Files(RemotePart):
    """See :class:`casemate.sessions.files.SessionFiles`."""

    also = ("info", "list")
    read_text = SessionFiles.read_text

    def __init__(self, session: str, remote: RemoteOperations) -> None:
        super().__init__(remote, "casemate.sessions.files:SessionFiles", "files.", session=session)
        self._session = session

    async def read_bytes(self, path: str) -> bytes:
        """The content of a file."""
        return await self._remote.download("files", self._session, path)

    async def write(self, path: str, content: bytes | str) -> None:
        """Write a file, replacing what is there."""
        if isinstance(content, str) and len(content) < _SMALL:
            await self._remote("files.write", {"session": self._session, "path": path, "text": content})
            return
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)
        handle = await self._remote.upload(data)
        await self._remote("files.write", {"session": self._session, "path": path, "handle": handle})

    async def pack(self, path: str, target: str | os.PathLike[str], *, top: str = "") -> Carried:
        """Write a folder as a tar archive to a file of this machine; what is in it."""
        packed = await self._remote("archives.pack", {"session": self._session, "path": path, "top": top})
        try:
            with _use("target", target, lambda place: place.open("wb")) as file:
                await self._remote.fetch(("archives", packed["handle"]), file)
        except OSError as error:
            raise Unavailable(f"the archive cannot be written: {error.strerror or error}") from None
        finally:
            await self._remote("archives.drop", {"handle": packed["handle"]})
        return cast("Carried", revive(type_named(_CARRIED), packed))

    async def unpack(self, source: str | os.PathLike[str], path: str = "") -> Carried:
        """Put the files and folders of a tar archive of this machine into a folder of the workspace; what came out."""
        data = await asyncio.to_thread(_use, "source", source, Path.read_bytes)
        handle = await self._remote.upload(data)
        arguments = {"session": self._session, "handle": handle, "path": path}
        try:
            unpacked = await self._remote("archives.unpack", arguments)
        finally:
            await self._remote("archives.drop", {"handle": handle})
        return cast("Carried", revive(type_named(_CARRIED), unpacked))

    async def upload(self, source: str | os.PathLike[str], path: str | None = None) -> None:
        """Copy a file of this machine into the workspace."""
        data = await asyncio.to_thread(_use, "source", source, Path.read_bytes)
        await self.write(Path(source).name if path is None else path, data)

    async def download(self, path: str, target: str | os.PathLike[str]) -> Path:
        """Copy a file of the workspace to this machine; where it lies now."""
        place = _path_in(Path(target), Path(path).name)
        await self._remote.save(("files", self._session, path), place)
        return place


def _use(argument: str, place: str | os.PathLike[str], action: Callable[[Path], T]) -> T:
    """What ``action`` gives of a file of this machine. Raises ``InvalidArgument``."""
    try:
        return action(Path(place))
    except OSError as error:
        raise InvalidArgument(argument, f"{os.fspath(place)!r}: {error.strerror}") from None


def _path_in(target: Path, name: str) -> Path:
    return target / name if target.is_dir() else target
