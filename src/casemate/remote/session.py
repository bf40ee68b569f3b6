"""A session of a service, as if it were here."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, Unpack

from casemate.errors import InvalidArgument, NotFound, SandboxClosed, Unavailable
from casemate.model.call_options import StepOptions
from casemate.model.options import complete, takes_options
from casemate.model.shown import ShownSession
from casemate.operations.documents import revive, type_named
from casemate.remote.arguments import plain
from casemate.remote.runs import Run, run_to_end, stream_to_end
from casemate.remote.service import RemotePart, ServiceConnection
from casemate.sessions.files import FileInfo

if TYPE_CHECKING:
    from casemate.files.archives import Carried
    from casemate.model.events import Event
    from casemate.model.execution import Execution


class Session(RemotePart, ShownSession):
    """See :class:`casemate.Session`: the same methods, and they do the same; ``id`` is its handle."""

    local_class = "casemate.sessions.session:Session"
    operations = frozenset(
        ["reset", "variables", "get", "set", "diff", "apply", "discard", "expose", "unexpose", "previews"]
    )
    group = "sessions"

    def __init__(self, state: Mapping[str, Any], service: ServiceConnection) -> None:
        super().__init__(service)
        self.id: str = state["session"]
        self.name: str | None = state["name"]
        self.language: str = state["language"]
        self.files = Files(self.id, service)
        self.bound = {"session": self.id}
        self._closed = False

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
        await self._check_wait(wait)
        return await run_to_end(partial(self._start, self._step("run", code, options)))

    @takes_options(StepOptions)
    async def stream(
        self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]
    ) -> AsyncGenerator[Event]:
        """See :meth:`casemate.Session.stream`. Leaving early interrupts the step."""
        await self._check_wait(wait)
        events = stream_to_end(partial(self._start, self._step("stream", code, options)))
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    @takes_options(StepOptions)
    def start(self, code: str | bytes, **options: Unpack[StepOptions]) -> Run:
        """See :meth:`casemate.Session.start`. Blocks for a round trip to the service."""
        started = self._service.call_blocking("runs.start", self._step("start", code, options))
        return Run(started["run"], self._service)

    async def attach(self, run_id: str) -> Run:
        """The run with this id of this session. Raises ``InvalidArgument`` where there is none."""
        state = await self._service.call("runs.get", run=run_id)
        if state["session"] != self.id:
            raise NotFound("run_id", f"this session has no run {run_id!r}")
        return Run(run_id, self._service)

    def interrupt(self) -> None:
        """See :meth:`casemate.Session.interrupt`. Blocks for a round trip to the service."""
        self._service.call_blocking("sessions.interrupt", {"session": self.id})

    async def close(self) -> None:
        """End it. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._service.call("sessions.close", session=self.id)
        except (NotFound, SandboxClosed):
            return  # it has ended by itself

    async def _start(self, step: Mapping[str, Any]) -> Run:
        return Run((await self._service.remote("runs.start", step))["run"], self._service)

    def _step(self, call: str, code: str | bytes, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of ``runs.start`` for a step."""
        if self._closed:
            raise SandboxClosed("the session was closed")
        values = complete(StepOptions, options, call)
        step = {"session": self.id, "language": self.language, "timeout": values["timeout"]}
        return {**plain({"code": code, **values}), **step}

    async def _check_wait(self, wait: bool) -> None:
        """Raises ``InvalidArgument`` for a session that is busy, unless it may be waited for."""
        if wait:
            return
        states = await self._service.call("sessions.list")
        if any(one["is_busy"] for one in states if one["session"] == self.id):
            raise InvalidArgument("wait", "this session is busy; leave wait out to queue behind what it does")


class Files:
    """See :class:`casemate.sessions.files.SessionFiles`."""

    def __init__(self, session: str, service: ServiceConnection) -> None:
        self._session = session
        self._service = service

    async def read_bytes(self, name: str) -> bytes:
        """The content of a file."""
        return await self._service.remote.download("files", self._session, name)

    async def read_text(self, name: str) -> str:
        """The content of a file of UTF-8."""
        data = await self.read_bytes(name)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise InvalidArgument("name", f"{name!r} is not UTF-8 text; use read_bytes") from None

    async def write(self, name: str, content: bytes | str) -> None:
        """Write a file, replacing what is there."""
        if isinstance(content, str) and len(content) < _SMALL:
            await self._service.call("files.write", session=self._session, path=name, text=content)
            return
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)
        handle = await self._service.remote.upload(data)
        await self._service.call("files.write", session=self._session, path=name, handle=handle)

    async def list(self, name: str = "") -> builtins.list[FileInfo]:
        """What lies in a folder."""
        entries = await self._service.call("files.list", session=self._session, path=name or ".")
        return [revive(FileInfo, one) for one in entries]

    async def remove(self, name: str) -> None:
        """Remove a file, a link or an empty folder."""
        await self._service.call("files.remove", session=self._session, path=name)

    async def pack(self, name: str, target: str | os.PathLike[str], *, top: str = "") -> Carried:
        """Write a folder as a tar archive to a file of this machine; what is in it."""
        packed = await self._service.remote("archives.pack", {"session": self._session, "path": name, "top": top})
        try:
            with _open_target(target) as file:
                await self._service.remote.fetch(("archives", packed["handle"]), file)
        except OSError as error:
            raise Unavailable(f"the archive cannot be written: {error.strerror or error}") from None
        finally:
            await self._service.call("archives.drop", handle=packed["handle"])
        return _carried_of(packed)

    async def unpack(self, source: str | os.PathLike[str], name: str = "") -> Carried:
        """Put the files and folders of a tar archive of this machine into a folder of the workspace; what came out."""
        handle = await self._service.remote.upload(await _content(source))
        arguments = {"session": self._session, "handle": handle, "path": name}
        try:
            return _carried_of(await self._service.remote("archives.unpack", arguments))
        finally:
            await self._service.call("archives.drop", handle=handle)

    async def upload(self, source: str | os.PathLike[str], name: str | None = None) -> None:
        """Copy a file of this machine into the workspace."""
        data = await _content(source)
        await self.write(Path(source).name if name is None else name, data)

    async def download(self, name: str, target: str | os.PathLike[str]) -> Path:
        """Copy a file of the workspace to this machine; where it lies now."""
        path = _target_path(Path(target), Path(name).name)
        await self._service.remote.save(("files", self._session, name), path)
        return path


_SMALL = 256 * 1024  # characters that travel with the arguments


async def _content(source: str | os.PathLike[str]) -> bytes:
    """The bytes of a file of this machine. Raises ``InvalidArgument``."""
    import asyncio

    try:
        return await asyncio.to_thread(Path(source).read_bytes)
    except OSError as error:
        raise InvalidArgument("source", f"{os.fspath(source)!r}: {error.strerror}") from None


def _target_path(target: Path, name: str) -> Path:
    return target / name if target.is_dir() else target


def _open_target(target: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open(target, "wb")
    except OSError as error:
        raise InvalidArgument("target", f"{os.fspath(target)!r}: {error.strerror}") from None


def _carried_of(source: Mapping[str, Any]) -> Carried:
    known = {name: source[name] for name in ("files", "folders", "bytes", "left_out", "is_whole")}
    carried: Carried = revive(type_named("casemate.files.archives:Carried"), known)
    return carried
