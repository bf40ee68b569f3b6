"""The parts of a service's sandbox: the same names as of a local one, each method an operation."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from casemate.errors import InvalidArgument
from casemate.model.approval import Decision
from casemate.model.call_options import DecisionOptions
from casemate.model.execution import Artifact
from casemate.model.options import complete, takes_options
from casemate.model.overview import Installed, InstalledPackage
from casemate.operations.documents import revive, type_named
from casemate.policy.inject import Inject
from casemate.remote.following import Ways
from casemate.remote.session import Session
from casemate.tools.connections.answers import ABSENT, Answer
from casemate.tools.tools import ToolSummary

if TYPE_CHECKING:
    from casemate.model.approval import ApprovalRequest


class RemotePart:
    """``ways``: to the service. Methods raise what it says, and ``Unavailable`` where it is gone."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways


class Sessions(RemotePart):
    """See :class:`casemate.sessions.registry.Sessions`."""

    async def get(self, id_or_name: str) -> Session:
        """The open session with this id or name. Raises ``InvalidArgument`` where there is none."""
        for state in await self._ways.call("sessions.list"):
            if id_or_name in (state["session"], state["name"]):
                return Session(state, self._ways)
        raise InvalidArgument("id_or_name", f"no session with the id or name {id_or_name!r} is open")

    async def list(self) -> builtins.list[Session]:
        """All that are open, the oldest first."""
        return [Session(state, self._ways) for state in await self._ways.call("sessions.list")]

    async def bridge(self, name: str, source: str | Session, target: str | Session) -> Any:
        """Copy the value of ``name`` from one session to another; what was copied."""
        giving, taking = (one if isinstance(one, str) else one.id for one in (source, target))
        return await self._ways.call("sessions.bridge", name=name, source=giving, target=taking)


class Approvals(RemotePart):
    """See :class:`casemate.approvals.approvals.Approvals`. As there its methods do not wait for anybody's answer; they
    block for a round trip to the service."""

    def pending(self) -> list[ApprovalRequest]:
        """Requests that wait for an answer, the oldest first."""
        return [self._ways.request(one) for one in self._ways.blocking.call("approvals.pending", {})]

    @takes_options(DecisionOptions)
    def decide(self, request_id: str, allow: bool = False, **options: Unpack[DecisionOptions]) -> bool:
        """Answer a request by its id: only ``allow=True`` allows. False where there is none, or it is over."""
        decision = Decision(allow is True, **complete(DecisionOptions, options, "decide"))
        return self._ways.decide(str(request_id), decision)

    def deny_all(self, reason: str = "", *, session: str | None = None) -> int:
        """Deny everything that waits; of one session, or of all. How many that were."""
        told = {"reason": reason, **({"session": session} if session is not None else {})}
        count: int = self._ways.blocking.call("approvals.deny_all", told)
        return count


class Tools(RemotePart):
    """See :class:`casemate.tools.tools.Tools`."""

    async def add(self, name: str, definition: Mapping[str, Any]) -> None:
        """Add a server."""
        await self._ways.call("tools.add", name=name, definition=dict(definition))

    async def register(self, name: str, definition: Mapping[str, Any]) -> list[ToolSummary]:
        """Ask for a server to be added: somebody has to allow it. Its tools."""
        return self._summaries(await self._ways.call("tools.register", name=name, definition=dict(definition)))

    async def remove(self, name: str) -> None:
        """Forget a server."""
        await self._ways.call("tools.remove", name=name)

    async def reset(self, name: str | None = None) -> None:
        """End a server, or all, which are started anew when they are next needed."""
        await self._ways.call("tools.reset", name=name)

    async def list(self) -> list[ToolSummary]:
        """Every tool of every server."""
        return self._summaries(await self._ways.call("tools.list"))

    async def problems(self) -> Mapping[str, str]:
        """Why servers, and single tools, are not there."""
        told: Mapping[str, str] = await self._ways.call("tools.problems")
        return told

    async def search(self, query: str, *, detail: str = "brief") -> str:
        """The tools that fit the words best, as a text."""
        return str(await self._ways.call("tools.search", query=query, detail=detail))

    async def describe(self, server: str, tool: str) -> str:
        """All that a program needs to know in order to call a tool, as a text."""
        return str(await self._ways.call("tools.describe", server=server, tool=tool))

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the server has it, too
    ) -> Answer:
        """Call a tool; nobody is asked."""
        given = {"server": server, "tool": tool, "arguments": arguments, "timeout": timeout}
        told = await self._ways.call("tools.call", **given)
        return Answer(told["content"], told.get("structured", ABSENT), told["is_error"])

    def _summaries(self, told: builtins.list[Any]) -> builtins.list[ToolSummary]:
        return [revive(ToolSummary, one) for one in told]


class Vault(RemotePart):
    """See :class:`casemate.vault.vault.Vault`."""

    async def set(self, name: str, value: str, *, inject: Inject | None = None) -> None:
        """Keep a secret."""
        where = {} if inject is None else {"hosts": [*inject.hosts], "header": inject.header, "format": inject.format}
        await self._ways.call("vault.set", name=name, value=value, **where)

    async def delete(self, name: str) -> None:
        """Forget a secret."""
        await self._ways.call("vault.delete", name=name)

    async def names(self) -> tuple[str, ...]:
        """The names that there are."""
        return tuple(one["name"] for one in await self._ways.call("vault.names"))

    async def injects(self) -> dict[str, Inject | None]:
        """Every name with where its value may go."""
        told = await self._ways.call("vault.names")
        return {one["name"]: revive(Inject, one["inject"]) for one in told}


class Packages(RemotePart):
    """See :class:`casemate.sessions.packages.Packages`."""

    async def install(
        self, packages: str | Iterable[str], *, language: str = "python", session: Session | str | None = None,
        sources: bool = False, scripts: bool = False, upgrade: bool = False, timeout: float | None = 300.0,  # noqa: ASYNC109
    ) -> Installed:  # fmt: skip
        """Install packages, once somebody or a rule has allowed their files."""
        given = {"sources": sources, "scripts": scripts, "upgrade": upgrade, "timeout": timeout}
        told = await self._ways.call("packages.install", **_package_arguments(packages, language, session), **given)
        return revive(Installed, told)  # type: ignore[no-any-return]

    async def list(
        self, *, language: str = "python", session: Session | str | None = None
    ) -> tuple[InstalledPackage, ...]:
        """What was installed."""
        told = await self._ways.call("packages.list", language=language, session=_id_of(session))
        return tuple(revive(InstalledPackage, one) for one in told)

    async def remove(
        self, packages: str | Iterable[str], *, language: str = "python", session: Session | str | None = None
    ) -> tuple[tuple[str, str], ...]:
        """Take away what was installed; name and version of each that was there."""
        told = await self._ways.call("packages.remove", **_package_arguments(packages, language, session))
        return tuple((one["name"], one["version"]) for one in told)


class Artifacts(RemotePart):
    """Files that runs have left, by the run's id."""

    async def list(self, run: str) -> builtins.list[Artifact]:
        """The files of a run, its full output among them where that was cut."""
        told = await self._ways.call("artifacts.list", run=run)
        named = ("name", "size", "sha256", "media_type")
        return [
            Artifact(**{name: one[name] for name in named}, content=self._ways.content(run, one["name"]))
            for one in told
        ]

    async def read(self, run: str, name: str) -> bytes:
        """The bytes of one."""
        return await self._ways.remote.download("artifacts", run, name)


class Audit(RemotePart):
    """The record of the namespace."""

    async def tail(self, limit: int = 50, **given: Any) -> builtins.list[Any]:
        """The newest rows, the newest first; ``given``: as of a local sandbox."""
        told = await self._ways.call("audit.tail", limit=limit, **given)
        return [revive(type_named("casemate.audit.reading:AuditRow"), one) for one in told]

    async def events(self, *, after: int | None = None) -> AsyncGenerator[Any]:
        """What happens, as it comes to be on record; ``after``: as of a local sandbox."""
        kind = type_named("casemate.audit.reading:AuditEvent")
        given = {} if after is None else {"cursor": after}
        async with contextlib.aclosing(self._ways.remote.stream("audit.events", given)) as events:
            async for told in events:
                yield revive(kind, told)

    async def verify(self) -> Any:
        """Whether every row is as it was written, and none is missing."""
        told = await self._ways.call("audit.verify")
        return revive(type_named("casemate.audit.chain:Verdict"), told)


class Egress(RemotePart):
    """Hosts that programs may reach."""

    async def request(self, domain: str, *, session: Session | str | None = None, **given: Any) -> Any:
        """Ask whether programs may connect to ``domain``, and wait for the answer; ``given``: as of a local sandbox."""
        told = await self._ways.call("egress.request", domain=domain, session=_id_of(session), **given)
        return revive(type_named("casemate.execution.egress_request:EgressAnswer"), told)


def _id_of(session: Session | str | None) -> str | None:
    return session.id if isinstance(session, Session) else session


def _package_arguments(packages: str | Iterable[str], language: str, session: Session | str | None) -> dict[str, Any]:
    names = [packages] if isinstance(packages, str) else list(packages)
    return {"packages": names, "language": language, "session": _id_of(session)}
