"""Parts of a connected sandbox whose methods do more than invoke the operation of their name."""

from __future__ import annotations

import asyncio
import base64
import builtins
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Unpack

from casemate.artifacts.content import Spool
from casemate.errors import CasemateError, InvalidArgument
from casemate.event_loop import polling_loop
from casemate.model.approval import Decision
from casemate.model.call_options import DecisionOptions
from casemate.model.execution import Artifact, Download
from casemate.model.options import complete, takes_options
from casemate.model.web import BrowsedPage
from casemate.operations.documents import known_fields, revive, type_named
from casemate.policy.inject import Inject
from casemate.remote.client import RemoteOperations
from casemate.remote.methods import RemotePart, Results
from casemate.remote.runs import RemoteContent, decide, request_from
from casemate.remote.session import Session
from casemate.sessions.files import FileInfo

_TRIES_AGAIN = 2.0  # seconds before a lost service is tried again; it may be starting


class Sessions(RemotePart):
    """See :class:`casemate.sessions.registry.Sessions`."""

    async def get(self, id_or_name: str) -> Session:
        """The open session with this id or name. Raises ``InvalidArgument`` if there is none."""
        for session in await self.list():
            if id_or_name in (session.id, session.name):
                return session
        raise InvalidArgument("id_or_name", f"no open session has the id or name {id_or_name!r}")

    async def list(self) -> builtins.list[Session]:
        """All open sessions, the oldest first."""
        return [Session(state, self._remote) for state in await self._remote("sessions.list")]


class Approvals(RemotePart):
    """See :class:`casemate.approvals.approvals.Approvals`. Methods do not wait for an approver's answer, but block for
    a round trip to the service."""

    also = ("deny_all", "pending")
    results: ClassVar[Results] = {"pending": lambda told, remote: [request_from(remote, one) for one in told]}

    @takes_options(DecisionOptions)
    def decide(self, request_id: str, allow: bool = False, **options: Unpack[DecisionOptions]) -> bool:
        """Answer the request with this id. Only ``allow=True`` allows it. False if there is none, or it is over."""
        decision = Decision(allow is True, **complete(DecisionOptions, options, "decide"))
        return decide(self._remote, str(request_id), decision)

    @contextlib.contextmanager
    def watch(self, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` from a thread whenever :meth:`pending` may have changed, until this context ends. Requests keep
        waiting meanwhile."""
        remote, loop = self._remote.duplicate(), polling_loop()

        async def follow() -> None:
            try:
                while True:
                    with contextlib.suppress(CasemateError):  # pending() raises it again
                        async with contextlib.aclosing(remote.stream("approvals.events")) as events:
                            async for _ in events:
                                call()
                    call()
                    await asyncio.sleep(_TRIES_AGAIN)
            finally:
                await remote.close()

        def run_until_stopped() -> None:
            with asyncio.Runner(loop_factory=lambda: loop):  # cancels the running task, and waits for its end
                loop.run_forever()

        asyncio.run_coroutine_threadsafe(follow(), loop)
        thread = threading.Thread(target=run_until_stopped, name="casemate-approvals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


class Tools(RemotePart):
    """See :class:`casemate.tools.tools.Tools`."""

    also = ("add", "problems")


class Vault(RemotePart):
    """See :class:`casemate.vault.vault.Vault`."""

    also = ("names",)
    results: ClassVar[Results] = {
        "names": lambda told, _: tuple(one["name"] for one in told),
        "injects": lambda told, _: {one["name"]: revive(Inject, one["inject"]) for one in told},
    }

    async def set(self, name: str, value: str, *, inject: Inject | None = None) -> None:
        """See :meth:`casemate.vault.vault.Vault.set`."""
        where = {} if inject is None else {"hosts": [*inject.hosts], "header": inject.header, "format": inject.format}
        await self._remote("vault.set", {"name": name, "value": value, **where})


class Artifacts(RemotePart):
    """The artifacts of runs, by the run's id."""

    async def list(self, run: str) -> builtins.list[Artifact]:
        """The artifacts of a run, including its full output if that was truncated."""
        return [
            Artifact(**known_fields(Artifact, one), content=RemoteContent(self._remote, run, one["name"]))
            for one in await self._remote("artifacts.list", {"run": run})
        ]

    async def read(self, run: str, name: str) -> bytes:
        """The bytes of one artifact."""
        return await self._remote.download("artifacts", run, name)


class Audit(RemotePart):
    """See :class:`casemate.audit.reading.Audit`."""

    also = ("tail", "propose")

    async def events(self, *, after: int | None = None) -> AsyncGenerator[Any]:
        """See :meth:`casemate.audit.reading.Audit.events`."""
        kind = type_named("casemate.audit.reading:AuditEvent")
        arguments = {} if after is None else {"cursor": after}
        async with contextlib.aclosing(self._remote.stream("audit.events", arguments)) as events:
            async for event in events:
                yield revive(kind, event)


class Evidence(RemotePart):
    """See :class:`casemate.execution.evidence.Evidence`."""

    also = ("statement",)

    async def save(self, of: str, path: str | PathLike[str]) -> builtins.list[str]:
        """Like that of a local sandbox, with the outcomes that the service keeps."""
        packed = await self._remote("evidence.pack", {"of": of})
        await self._remote.save(("archives", packed["handle"]), Path(path))
        return list(packed["left_out"])


def _content_of(told: Mapping[str, Any], _remote: RemoteOperations) -> bytes:
    """The bytes of a host file."""
    return base64.b64decode(told["base64"]) if told["text"] is None else str(told["text"]).encode()


class Host(RemotePart):
    """See :class:`casemate.host.host.Host`."""

    also = ("exec", "copy")
    results: ClassVar[Results] = {"read": _content_of}

    async def write(self, path: str, content: bytes | str) -> FileInfo:
        """See :meth:`casemate.host.host.Host.write`."""
        data = content.encode() if isinstance(content, str) else bytes(content)
        sent = base64.b64encode(data).decode()
        written: FileInfo = revive(FileInfo, await self._remote("host.write", {"path": path, "content": sent}))
        return written


def _page_of(told: Mapping[str, Any], _remote: RemoteOperations) -> BrowsedPage:
    """A page with the contents of its downloaded files."""
    page: BrowsedPage = revive(BrowsedPage, {**told, "downloads": []})
    return replace(page, downloads=tuple(map(_download, told["downloads"])))


def _download(told: Mapping[str, Any]) -> Download:
    spool = Spool()
    spool.write(base64.b64decode(told["base64"]))
    content = spool.artifact(told["name"], told["media_type"]).content
    return Download(**known_fields(Download, told), content=content)


class Web(RemotePart):
    """See :class:`casemate.web.web.Web`."""

    results: ClassVar[Results] = {"browse": _page_of}


CLASSES: Mapping[str, type[RemotePart]] = {
    kind.__name__.lower(): kind for kind in (Approvals, Artifacts, Audit, Evidence, Host, Sessions, Tools, Vault, Web)
}
