"""The parts of a service's sandbox: the methods of the local ones, each an operation."""

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
from typing import TYPE_CHECKING, Any, Unpack

from casemate.artifacts.content import Spool
from casemate.errors import CasemateError, InvalidArgument
from casemate.event_loop import polling_loop
from casemate.model.approval import Decision
from casemate.model.call_options import DecisionOptions
from casemate.model.execution import Artifact
from casemate.model.options import complete, takes_options
from casemate.model.web import BrowsedPage
from casemate.operations.documents import known_fields, revive, type_named
from casemate.policy.inject import Inject
from casemate.remote.runs import decide, request_from
from casemate.remote.service import RemotePart, ServiceConnection, json_argument
from casemate.remote.session import Session
from casemate.sessions.files import FileInfo
from casemate.tools.connections.answers import ABSENT, Answer

if TYPE_CHECKING:
    from casemate.model.approval import ApprovalRequest

_TRIES_AGAIN = 2.0  # seconds after a service is gone; it may be starting anew


class Sessions(RemotePart):
    local_class = "casemate.sessions.registry:Sessions"
    operations = frozenset({"bridge"})

    async def get(self, id_or_name: str) -> Session:
        """The open session with this id or name. Raises ``InvalidArgument`` where there is none."""
        for session in await self.list():
            if id_or_name in (session.id, session.name):
                return session
        raise InvalidArgument("id_or_name", f"no session with the id or name {id_or_name!r} is open")

    async def list(self) -> builtins.list[Session]:
        """All that are open, the oldest first."""
        return [Session(state, self._service) for state in await self._service.call("sessions.list")]


class Approvals:
    """See :class:`casemate.approvals.approvals.Approvals`. As there its methods do not wait for anybody's answer; they
    block for a round trip to the service."""

    def __init__(self, service: ServiceConnection) -> None:
        self._service = service

    def pending(self) -> list[ApprovalRequest]:
        """Requests that wait for an answer, the oldest first."""
        return [request_from(self._service, one) for one in self._service.call_blocking("approvals.pending", {})]

    @takes_options(DecisionOptions)
    def decide(self, request_id: str, allow: bool = False, **options: Unpack[DecisionOptions]) -> bool:
        """Answer a request by its id: only ``allow=True`` allows. False where there is none, or it is over."""
        decision = Decision(allow is True, **complete(DecisionOptions, options, "decide"))
        return decide(self._service, str(request_id), decision)

    @contextlib.contextmanager
    def watch(self, call: Callable[[], None]) -> Iterator[None]:
        """``call`` whenever :meth:`pending` may give something else, from a thread, as long as this is entered. What
        waits is kept waiting meanwhile."""
        remote, loop = self._service.remote.duplicate(), polling_loop()

        async def follow() -> None:
            try:
                while True:
                    with contextlib.suppress(CasemateError):  # whoever looks at what waits is told
                        async with contextlib.aclosing(remote.stream("approvals.events")) as events:
                            async for _ in events:
                                call()
                    call()
                    await asyncio.sleep(_TRIES_AGAIN)
            finally:
                await remote.close()

        def run_until_stopped() -> None:
            with asyncio.Runner(loop_factory=lambda: loop):  # which cancels what runs, and waits for its end
                loop.run_forever()

        asyncio.run_coroutine_threadsafe(follow(), loop)
        thread = threading.Thread(target=run_until_stopped, name="casemate-approvals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def deny_all(self, reason: str = "", *, session: str | None = None) -> int:
        """Deny everything that waits; of one session, or of all. How many that were."""
        scope = {} if session is None else {"session": session}
        count: int = self._service.call_blocking("approvals.deny_all", {"reason": reason, **scope})
        return count


class Tools(RemotePart):
    local_class = "casemate.tools.tools:Tools"
    operations = frozenset({"add", "register", "remove", "reset", "list", "problems", "search", "describe"})

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Answer:
        """Call a tool; nobody is asked. ``options``: as of a local sandbox."""
        answer = await self._service.call("tools.call", server=server, tool=tool, arguments=arguments, **options)
        return Answer(answer["content"], answer.get("structured", ABSENT), answer["is_error"])


class Vault(RemotePart):
    local_class = "casemate.vault.vault:Vault"
    operations = frozenset({"delete"})

    async def set(self, name: str, value: str, *, inject: Inject | None = None) -> None:
        """Keep a secret."""
        where = {} if inject is None else {"hosts": [*inject.hosts], "header": inject.header, "format": inject.format}
        await self._service.call("vault.set", name=name, value=value, **where)

    async def names(self) -> tuple[str, ...]:
        """The names that there are."""
        return tuple(await self.injects())

    async def injects(self) -> dict[str, Inject | None]:
        """Every name with where its value may go."""
        return {one["name"]: revive(Inject, one["inject"]) for one in await self._service.call("vault.names")}


class Packages(RemotePart):
    local_class = "casemate.sessions.packages:Packages"
    operations = frozenset({"install", "list"})

    async def remove(self, packages: Any, **options: Any) -> tuple[tuple[str, str], ...]:
        """Take away what was installed; name and version of each that was there. ``options``: as of a local sandbox."""
        sent = {name: json_argument(name, value) for name, value in {"packages": packages, **options}.items()}
        removed = await self._service.call("packages.remove", **sent)
        return tuple((one["name"], one["version"]) for one in removed)


class Artifacts:
    """Files that runs have left, by the run's id."""

    def __init__(self, service: ServiceConnection) -> None:
        self._service = service

    async def list(self, run: str) -> builtins.list[Artifact]:
        """The files of a run, its full output among them where that was cut."""
        return [
            Artifact(**known_fields(Artifact, one), content=self._service.content(run, one["name"]))
            for one in await self._service.call("artifacts.list", run=run)
        ]

    async def read(self, run: str, name: str) -> bytes:
        """The bytes of one."""
        return await self._service.remote.download("artifacts", run, name)


class Audit(RemotePart):
    local_class = "casemate.audit.reading:Audit"
    operations = frozenset({"tail", "verify", "export", "prune", "crossings", "propose", "chart"})

    async def events(self, *, after: int | None = None) -> AsyncGenerator[Any]:
        """What happens, as it comes to be on record; ``after``: as of a local sandbox."""
        kind = type_named("casemate.audit.reading:AuditEvent")
        arguments = {} if after is None else {"cursor": after}
        async with contextlib.aclosing(self._service.remote.stream("audit.events", arguments)) as events:
            async for event in events:
                yield revive(kind, event)


class Egress(RemotePart):
    local_class = "casemate.execution.egress_request:Egress"
    operations = frozenset({"request"})


class Evidence(RemotePart):
    local_class = "casemate.execution.evidence:Evidence"
    operations = frozenset({"statement"})

    async def save(self, of: str, path: str | PathLike[str]) -> builtins.list[str]:
        """As of a local sandbox, with the outcomes that the service keeps."""
        packed = await self._service.call("evidence.pack", of=of)
        await self._service.remote.save(("archives", packed["handle"]), Path(path))
        return list(packed["left_out"])


class Host(RemotePart):
    local_class = "casemate.host.host:Host"
    operations = frozenset({"exec", "request_access", "access", "list", "copy"})

    async def read(self, path: str, **options: Any) -> bytes:
        """See :meth:`casemate.host.host.Host.read`."""
        found = await self._service.call("host.read", path=path, **options)
        return base64.b64decode(found["base64"]) if found["text"] is None else found["text"].encode()

    async def write(self, path: str, content: bytes | str) -> FileInfo:
        """See :meth:`casemate.host.host.Host.write`."""
        data = content.encode() if isinstance(content, str) else bytes(content)
        sent = base64.b64encode(data).decode()
        written: FileInfo = revive(FileInfo, await self._service.call("host.write", path=path, content=sent))
        return written


class Web(RemotePart):
    local_class = "casemate.web.web:Web"
    operations = frozenset({"search", "fetch"})

    async def browse(self, url: str, **options: Any) -> BrowsedPage:
        """Open a page in a browser of the service's. ``options``: as of a local sandbox."""
        page = await self._service.call("web.browse", url=url, **options)
        files = []
        for one in page["downloads"]:
            spool = Spool()
            spool.write(base64.b64decode(one["base64"]))
            files.append(spool.artifact(one["name"], one["media_type"]))
        picture = None if page["screenshot"] is None else base64.b64decode(page["screenshot"])
        known: BrowsedPage = revive(BrowsedPage, {**page, "downloads": []})
        return replace(known, screenshot=picture, downloads=tuple(files))
