"""``audit``, ``egress``, ``packages``, ``tools``, ``vault``: what a sandbox has besides runs and sessions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from casemate.api.options import Cursor, Name, Names
from casemate.audit.chain import AuditRow, Verdict
from casemate.audit.reading import MOST_ROWS, AuditEvent
from casemate.audit.summary import MOST_MINUTES, Minute, ProgramUses
from casemate.errors import Denied, NotFound
from casemate.execution.egress_request import EgressAnswer
from casemate.model.call_options import Seconds
from casemate.model.operation import Audience, Between, Most, OneOf, Principal, called_by, operation
from casemate.model.overview import Installed
from casemate.operations.lookup import match_handle
from casemate.operations.sessions import Group
from casemate.policy.inject import Inject
from casemate.policy.proposal import Proposal
from casemate.policy.rules import PACKAGE_LANGUAGES
from casemate.tools.connections.definition import read_definition
from casemate.tools.tools import ToolSummary

Rows = Annotated[int, Between(1, MOST_ROWS)]
Time = Annotated[float, Between(0, 2**40)]
Hash = Annotated[str, Most(64)]
Text = Annotated[str, Most(4 << 20)]
Bytes = Annotated[int, Between(0, 2**62)]
Minutes = Annotated[int, Between(1, MOST_MINUTES)]


class AuditOperations(Group):
    """The record of the namespace."""

    @operation(audience=Audience.AGENT)
    async def tail(
        self,
        limit: Rows = 50,
        *,
        since: Time | None = None,
        kind: Name | None = None,
        run: Name | None = None,
        principal: Principal,
    ) -> list[AuditRow]:
        """The newest rows of the record, the newest first: for an agent those of its own runs, among the newest 1000.

        ``limit``: how many. ``since``: only those from then on, in seconds since 1970. ``kind``: only these, such as
        "intent", "outcome", "decision" or "crossing". ``run``: only those about one run, by its handle.
        """
        audit = self._shared.sandbox.audit
        if run is not None:
            run = match_handle(run, (kept.run for kept in self._shared.kept.of(principal)), "run", "runs") or run
        if principal.audience is Audience.OPERATOR:
            return await audit.tail(limit, since=since, kind=kind, run=run)
        rows = await audit.tail(MOST_ROWS, since=since, run=run)
        own = {kept.run for kept in self._shared.kept.of(principal)}
        own |= {row.run for row in rows if row.detail.get("caller") == principal.name}
        own.discard("")  # what is about no run is not the caller's because another such row is
        return [row for row in rows if row.run in own and kind in (None, row.kind)][:limit]

    @operation()
    async def events(self, *, cursor: Cursor | None = None) -> AsyncGenerator[AuditEvent]:
        """What happens, as it comes to be on record: executions, sessions, packages, hosts, secrets, limits, the queue.

        ``cursor``: of the last event that was had, 0 for all that is on record; nothing for what happens from now on.
        """
        async with contextlib.aclosing(self._shared.sandbox.audit.events(after=cursor)) as events:
            async for event in events:
                yield event

    @operation()
    async def verify(self, *, head: Hash | None = None, anchor: Text | None = None) -> Verdict:
        """Whether every row of the whole record, of all namespaces, is as it was written and signed, and none is
        missing.

        ``head``: the hash of a last row that was noted elsewhere, and must be there still. ``anchor``: the text of a
        file of anchors that was kept elsewhere, which the record must agree with.
        """
        return await self._shared.sandbox.audit.verify(head, anchor)

    @operation()
    async def export(
        self,
        *,
        after: Cursor = 0,
        limit: Rows = MOST_ROWS,
        format: Literal["jsonl", "ocsf"] = "jsonl",  # noqa: A002 - as the command calls it
    ) -> list[dict[str, Any]]:
        """Rows of the record, the oldest first, for other programs.

        ``after``: the number of the last row that was had. ``limit``: how many. ``format``: "jsonl" for the rows
        themselves, "ocsf" for events of the Open Cybersecurity Schema Framework.
        """
        return await self._shared.sandbox.audit.export(after=after, limit=limit, format=format)

    @operation()
    async def crossings(self, *, since: Time = 0.0) -> list[ProgramUses]:
        """Which hosts, tools, packages and commands programs used, and which they were refused: by program, the one
        that did so last first.

        ``since``: only what is on record from then on, in seconds since 1970.
        """
        return await self._shared.sandbox.audit.crossings(since=since)

    @operation()
    async def propose(self, run: Name, *, principal: Principal) -> Proposal:
        """Rules for a policy file that allow exactly what a run, or a session in all its steps, was allowed. What it
        was refused stands in comments.

        ``run``: its handle, or the handle or name of the session.
        """
        with contextlib.suppress(NotFound):
            run = self._sessions.find(run, principal).session.id
        run = match_handle(run, (kept.run for kept in self._shared.kept.of(principal)), "run", "runs") or run
        return await self._shared.sandbox.audit.propose(run)

    @operation()
    async def chart(self, minutes: Minutes = 60) -> list[Minute]:
        """How much went on in each of the last minutes: executions by status, how long they took, what crossed.

        ``minutes``: how many.
        """
        return await self._shared.sandbox.audit.chart(minutes)

    @operation()
    async def prune(self, *, max_age: Time | None = None, max_size: Bytes | None = None) -> int:
        """Drop the oldest rows of the whole record, of all namespaces, and say how many; the rest stays provable.

        ``max_age``: seconds after which rows are dropped. ``max_size``: bytes that the rest may take.
        """
        return await self._shared.sandbox.audit.prune(max_age=max_age, max_size=max_size)


Port = Annotated[int, Between(1, 65535)]
Reason = Annotated[str, Most(500)]


class EgressOperations(Group):
    """The network of the sandbox."""

    @operation(audience=Audience.AGENT)
    async def request(
        self, domain: Name, *, port: Port = 443, reason: Reason = "", session: Name | None = None, principal: Principal
    ) -> EgressAnswer:
        """Ask whether programs may connect to a host, wait until somebody decides, and say what was decided.

        ``domain``: the host's name. ``port``: of the connection. ``reason``: shown to whoever decides, as the
        requester's own words. ``session``: the handle or name of the session that alone is to reach it; nothing for all
        runs and sessions.
        """
        of = None if session is None else self._sessions.find(session, principal).session
        with called_by(principal):
            return await self._shared.sandbox.egress.request(domain, port=port, reason=reason, session=of)


Packaged = Annotated[str, OneOf(PACKAGE_LANGUAGES)]


@dataclass(frozen=True, slots=True)
class PackageVersion:
    """A package that is there."""

    name: str
    version: str


class PackageOperations(Group):
    """The packages of the sandbox."""

    @operation(audience=Audience.AGENT)
    async def install(
        self,
        packages: Names,
        *,
        language: Packaged = "python",
        session: Name | None = None,
        sources: bool = False,
        scripts: bool = False,
        upgrade: bool = False,
        timeout: Seconds | None = 300.0,  # noqa: ASYNC109 - the cell's, not the call's
        principal: Principal,
    ) -> Installed:
        """Install packages, and whatever they need, once somebody or a rule has allowed their files.

        ``packages``: requirements, such as "requests>=2", or "left-pad@1.3.0" of Node. ``language``: whose packages
        they are. ``session``: the handle or name of the session that is to have them; nothing for all later runs and
        sessions. ``sources``: also Python packages that must be built, which runs their code in a cell. ``scripts``:
        likewise the scripts of Node's packages for when they are installed. ``upgrade``: the newest that fit.
        ``timeout``: seconds for the cell that installs.
        """
        with called_by(principal):
            return await self._shared.sandbox.packages.install(
                packages, language=language, session=self._id_of(session, principal), sources=sources,
                scripts=scripts, upgrade=upgrade, timeout=timeout,
            )  # fmt: skip

    @operation(audience=Audience.AGENT)
    async def list(
        self, *, language: Packaged = "python", session: Name | None = None, principal: Principal
    ) -> list[PackageVersion]:
        """What was installed. ``language``: of which language. ``session``: of this session, by its handle or name;
        nothing for what all have."""
        packages = await self._shared.sandbox.packages.list(language=language, session=self._id_of(session, principal))
        return [PackageVersion(one.name, one.version) for one in packages]

    @operation()
    async def remove(
        self, packages: Names, *, language: Packaged = "python", session: Name | None = None, principal: Principal
    ) -> tuple[PackageVersion, ...]:
        """Take away what was installed; the answer is what was there. ``packages``: their names. ``language``: whose
        packages they are. ``session``: only from this session, by its handle or name."""
        of = self._id_of(session, principal)
        removed = await self._shared.sandbox.packages.remove(packages, language=language, session=of)
        return tuple(PackageVersion(*one) for one in removed)


Definition = Annotated[Mapping[str, Any], Most(100)]
Words = Annotated[str, Most(2000)]


class ToolOperations(Group):
    """The servers of the sandbox."""

    @operation()
    async def add(self, name: Name, definition: Definition, *, principal: Principal) -> None:
        """Add a server, which is started when it is first needed. With a token that may not run commands, one at a
        public address.

        ``name``: what programs call it. ``definition``: as in other programs' "mcpServers": command, args and env, or
        url and headers.
        """
        if not principal.may_run_commands:
            definition = _check_public(definition, principal)
        tools = self._shared.sandbox.tools
        if read_definition(name, definition) not in tools.servers.definitions():  # the user's file may be read by now
            await tools.add(name, definition)

    @operation(audience=Audience.AGENT)
    async def register(self, name: Name, definition: Definition, *, principal: Principal) -> list[ToolSummary]:
        """Ask for a server to be added: somebody has to allow exactly that. The answer is its tools.

        ``name``: what programs call it. ``definition``: command, args and env, or url and headers; it gets none of the
        user's variables, secrets and files.
        """
        from casemate.tools.calls import CallRefused, Calls, CallTurns
        from casemate.tools.requests import Register

        sandbox = self._shared.sandbox
        with called_by(principal):
            async with sandbox.approvals.turn(), sandbox.approvals.open_requester(sandbox.namespace) as requester:
                calls = Calls(sandbox.tools, requester, lambda *_row: None, CallTurns())  # nothing is called
                try:
                    await calls.register(Register(name, dict(definition)))
                except CallRefused as refused:
                    raise Denied(f"the server {name!r} was not added: {refused}") from None
        return [one for one in await sandbox.tools.list() if one.server == name]

    @operation()
    async def remove(self, name: Name) -> None:
        """Forget a server, and end what runs of it. ``name``: the server's."""
        await self._shared.sandbox.tools.remove(name)

    @operation()
    async def reset(self, name: Name | None = None) -> None:
        """End a server, which is started anew when it is next needed. ``name``: the server's; nothing for all."""
        await self._shared.sandbox.tools.reset(name)

    @operation(audience=Audience.AGENT)
    async def list(self) -> list[ToolSummary]:
        """Every tool of every server; "problems" says why others are not there."""
        return await self._shared.sandbox.tools.list()

    @operation(audience=Audience.AGENT)
    async def problems(self, *, principal: Principal) -> Mapping[str, str]:
        """Why servers, and single tools, are not there. What a server said last is for operators alone: it may have
        printed what it was given."""
        tools, failed = await self._shared.sandbox.tools.find_problems()
        is_told = principal.audience is Audience.OPERATOR
        return {**tools, **{name: str(error) if is_told else error.message for name, error in failed.items()}}

    @operation(audience=Audience.AGENT)
    async def search(self, query: Words, *, detail: Literal["names", "brief", "full"] = "brief") -> str:
        """The tools that fit some words best, as a text. ``query``: the words. ``detail``: "names" alone, a line each
        ("brief"), or all about them."""
        return await self._shared.sandbox.tools.search(query, detail=detail)

    @operation(audience=Audience.AGENT)
    async def describe(self, server: Name, tool: Name) -> str:
        """All that a program needs to know in order to call a tool, as a text. ``server``: its server's name. ``tool``:
        its own."""
        return await self._shared.sandbox.tools.describe(server, tool)

    @operation()
    async def call(
        self,
        server: Name,
        tool: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the server has it, too
    ) -> dict[str, Any]:
        """Call a tool; nobody is asked. The answer has "content", "is_error", and "structured" where there is any.

        ``server``: the name of its server. ``tool``: its own. ``arguments``: as its schema says. ``timeout``: seconds
        that it may take.
        """
        answer = await self._shared.sandbox.tools.call(server, tool, arguments, timeout=timeout)
        structured = {"structured": answer.structured} if answer.has_structured else {}
        return {"content": answer.content, "is_error": answer.is_error, **structured}


def _check_public(definition: Mapping[str, Any], principal: Principal) -> dict[str, Any]:
    """The definition of a server in the public network, that takes nothing of this machine. Raises ``Denied``."""
    auth = definition.get("auth")
    takes = [one for one in ("command", "variables") if one in definition]
    if definition.get("addresses", "public") != "public":
        takes.append("addresses")
    if auth is not None and not (isinstance(auth, Mapping) and auth.get("type") == "client_credentials"):
        takes.append("auth")  # others open the user's browser
    if takes:
        raise Denied(
            f"{principal.name!r} may add servers at public addresses alone, without {', '.join(takes)}",
            remediation="It needs a token that may run commands (casemate service token add --may-run-commands), which "
            "is as much as the user's account. tools.register asks somebody who may allow a command.",
        )
    return {**definition, "addresses": "public"}


Value = Annotated[str, Most(1 << 20)]
Template = Annotated[str, Most(200)]


@dataclass(frozen=True, slots=True)
class SecretName:
    """A secret that there is; ``inject``: where its value is put, nothing for one that programs get."""

    name: str
    inject: Inject | None


class VaultOperations(Group):
    """The secrets of the sandbox."""

    @operation()
    async def set(
        self,
        name: Name,
        value: Value,
        *,
        hosts: Names | None = None,
        header: Name = "Authorization",
        format: Template = "Bearer {}",  # noqa: A002 - as Inject calls it
    ) -> None:
        """Keep a secret, in place of one of that name.

        ``name``: of the variable that programs get. ``value``: the secret, which nothing gives back. ``hosts``: where
        the egress proxy puts it into requests: then programs get a placeholder instead. ``header``: the field of such
        requests. ``format``: the whole of that field, with {} for the secret.
        """
        inject = None if hosts is None else Inject(tuple(hosts), header, format)
        await self._shared.sandbox.vault.set(name, value, inject=inject)

    @operation()
    async def delete(self, name: Name) -> None:
        """Forget a secret. ``name``: of its variable."""
        await self._shared.sandbox.vault.delete(name)

    @operation()
    async def names(self) -> list[SecretName]:
        """The names that there are, never a value."""
        return [SecretName(name, inject) for name, inject in (await self._shared.sandbox.vault.injects()).items()]
