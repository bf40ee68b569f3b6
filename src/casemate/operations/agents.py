"""Operations that depend on the caller, or take JSON where the method takes an object."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from casemate.audit.chain import AuditRow
from casemate.audit.reading import MOST_ROWS, AuditEvent, Rows, Time
from casemate.errors import Denied, InvalidArgument, NotFound
from casemate.execution.threads import to_thread_to_end
from casemate.host.host import Command, HostPath, session_in
from casemate.host.results import HostResult
from casemate.model.call_options import Seconds
from casemate.model.execution import Execution
from casemate.model.kinds import Cursor, Name, Names
from casemate.model.operation import Audience, Most, Principal, operation
from casemate.operations.files import decode_base64
from casemate.operations.lookup import match_handle
from casemate.operations.sessions import Group
from casemate.policy.inject import Inject
from casemate.policy.proposal import Proposal
from casemate.sessions.files import FileInfo
from casemate.tools.connections.definition import read_definition
from casemate.tools.tools import ToolSummary

Value = Annotated[str, Most(1 << 20)]
Definition = Annotated[Mapping[str, Any], Most(100)]
Text = Annotated[str, Most(16 << 20)]
Template = Annotated[str, Most(200)]


@dataclass(frozen=True, slots=True)
class EvidencePack:
    """A pack that was made. ``handle``: fetches it as an archive, for one hour; ``size``: in bytes; ``left_out``: files
    of runs of which it has only the hashes."""

    handle: str
    size: int
    left_out: tuple[str, ...]


class AgentOperations(Group):
    """Operations marked with their whole names."""

    @operation(name="vault.set")
    async def set_secret(
        self,
        name: Name,
        value: Value,
        *,
        hosts: Names | None = None,
        header: Name = "Authorization",
        format: Template = "Bearer {}",  # noqa: A002 - as Inject calls it
    ) -> None:
        """Store a secret. It replaces one of the same name.

        Args:
            name: The variable that programs get.
            value: The secret. No operation returns it.
            hosts: Hosts to which the egress proxy sends it: programs then get a placeholder.
            header: The header field of those requests.
            format: The value of that field, with {} for the secret.
        """
        inject = None if hosts is None else Inject(tuple(hosts), header, format)
        await self._shared.sandbox.vault.set(name, value, inject=inject)

    @operation(name="host.exec", audience=Audience.AGENT)
    async def exec_on_host(
        self,
        command: Command,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the command's
        secrets: Names = (),
        principal: Principal,
    ) -> HostResult:
        """Run a host command without a shell, once a rule or an approver allows exactly this command.

        Args:
            command: The program's bare name and its arguments, or one line of plain words.
            timeout: Seconds, at most the policy's.
            secrets: Names of secrets that it gets as variables.
        """
        given: Any = await self._shared.secrets_for(principal, secrets) if secrets else ()
        return await self._shared.sandbox.host.exec(command, timeout=timeout, secrets=given)

    @operation(name="host.write", audience=Audience.AGENT)
    async def write_on_host(self, path: HostPath, *, text: Text | None = None, content: Text | None = None) -> FileInfo:
        """Write a file in a host folder that the policy opens for writing, once a rule allows it, or an approver who
        sees the diff.

        Args:
            path: An absolute path.
            text: The new text of the file.
            content: The new content in base64, in place of ``text``.
        """
        if (text is None) == (content is None):
            raise InvalidArgument("text", "give text, or content in base64")
        data = text if text is not None else decode_base64("content", content or "")
        return await self._shared.sandbox.host.write(path, data)

    @operation(name="host.copy", audience=Audience.AGENT)
    async def copy_on_host(self, source: HostPath, destination: HostPath, *, principal: Principal) -> FileInfo | None:
        """Copy a file between open host folders, or into or out of a session's workspace.

        Args:
            source: An absolute path, or HANDLE:path of a session.
            destination: An absolute path, or HANDLE:path of a session.
        """

        def resolve(text: str) -> str:
            """The path with the session's id in place of its handle, if the caller may see the session."""
            handle, path = session_in(text)
            return text if handle is None else f"{self._id_of(handle, principal)}:{path}"

        return await self._shared.sandbox.host.copy(resolve(source), resolve(destination))

    @operation(name="audit.tail", audience=Audience.AGENT, while_draining=True)
    async def tail_audit(
        self,
        limit: Rows = 50,
        *,
        since: Time | None = None,
        kind: Name | None = None,
        run: Name | None = None,
        principal: Principal,
    ) -> list[AuditRow]:
        """The newest rows of the record, newest first. An agent gets those of its own runs, among the newest 1000.

        ``limit``: how many. ``since``: only rows from this time on, in seconds since 1970. ``kind``: only rows of this
        kind, such as "intent", "outcome", "decision" or "crossing". ``run``: only rows about this run, by its handle.
        """
        audit = self._shared.sandbox.audit
        if run is not None:
            run = match_handle(run, (kept.run for kept in self._shared.kept.of(principal)), "run", "runs") or run
        if principal.audience is Audience.OPERATOR:
            return await audit.tail(limit, since=since, kind=kind, run=run)
        rows = await audit.tail(MOST_ROWS, since=since, run=run)
        own = {kept.run for kept in self._shared.kept.of(principal)}
        own |= {row.run for row in rows if row.detail.get("caller") == principal.name}
        own.discard("")  # one row of the caller's without a run does not make all such rows the caller's
        return [row for row in rows if row.run in own and kind in (None, row.kind)][:limit]

    @operation(name="audit.events")
    async def follow_audit(self, *, cursor: Cursor | None = None) -> AsyncGenerator[AuditEvent]:
        """Stream events as they are recorded: executions, sessions, packages, hosts, secrets, limits, the queue.

        ``cursor``: the cursor of the caller's last event; 0 for everything on record; left out for new events only.
        """
        async with contextlib.aclosing(self._shared.sandbox.audit.events(after=cursor)) as events:
            async for event in events:
                yield event

    @operation(name="audit.propose")
    async def propose_rules(self, run: Name, *, principal: Principal) -> Proposal:
        """Rules for a policy file that allow exactly what a run, or all steps of a session, was allowed. Comments list
        what was denied.

        ``run``: its handle, or the handle or name of the session.
        """
        with contextlib.suppress(NotFound):
            run = self._sessions.find(run, principal).session.id
        run = match_handle(run, (kept.run for kept in self._shared.kept.of(principal)), "run", "runs") or run
        return await self._shared.sandbox.audit.propose(run)

    @operation(name="tools.add")
    async def add_server(self, name: Name, definition: Definition, *, principal: Principal) -> None:
        """Add an MCP server, which starts on first use. A token that may not run commands can add only servers at
        public addresses.

        ``name``: what programs call it. ``definition``: as in an "mcpServers" file: command, args and env, or url and
        headers.
        """
        if not principal.may_run_commands:
            definition = _check_public(definition, principal)
        tools = self._shared.sandbox.tools
        if read_definition(name, definition) not in tools.servers.definitions():  # the user's file may have added it
            await tools.add(name, definition)

    @operation(name="tools.register", audience=Audience.AGENT)
    async def register_server(self, name: Name, definition: Definition) -> list[ToolSummary]:
        """Ask to add an MCP server: an approver must allow exactly this definition. Returns its tools.

        ``name``: what programs call it. ``definition``: command, args and env, or url and headers. It gets none of the
        user's variables, secrets and files.
        """
        from casemate.tools.calls import CallRefused, Calls, CallTurns
        from casemate.tools.requests import Register

        sandbox = self._shared.sandbox
        async with sandbox.approvals.turn(), sandbox.approvals.open_requester(sandbox.namespace) as requester:
            calls = Calls(sandbox.tools, requester, lambda *_row: None, CallTurns())  # makes no calls
            try:
                await calls.register(Register(name, dict(definition)))
            except CallRefused as refused:
                raise Denied(f"the server {name!r} was not added: {refused}") from None
        return [one for one in await sandbox.tools.list() if one.server == name]

    @operation(name="tools.problems", audience=Audience.AGENT)
    async def find_problems(self, *, principal: Principal) -> Mapping[str, str]:
        """Why servers or single tools are unavailable. Only operators get a server's last output, which may contain
        what the server was given."""
        tools, failed = await self._shared.sandbox.tools.find_problems()
        is_told = principal.audience is Audience.OPERATOR
        return {**tools, **{name: str(error) if is_told else error.message for name, error in failed.items()}}

    @operation(name="evidence.statement", audience=Audience.AGENT, while_draining=True)
    async def sign_statement(self, run: Name, *, principal: Principal) -> dict[str, Any]:
        """Sign a statement of a run and its results: a DSSE envelope with an in-toto statement of SLSA provenance.

        ``run``: its handle. Operators can also give the id of a run that only the record has.
        """
        run, outcomes = await self._find_outcomes(run, principal)
        return await to_thread_to_end(self._shared.sandbox.evidence.sign, run, *outcomes)

    @operation(name="evidence.pack", audience=Audience.AGENT, while_draining=True)
    async def pack_evidence(self, of: Name, *, principal: Principal) -> EvidencePack:
        """Make a zip of all evidence of a run, or of a session and its steps: programs, outputs, approvals, calls,
        connections, files and rows of the record, signed as a whole.

        ``of``: the handle of a run, or the handle or name of a session. Operators can also give an id that only the
        record has. An agent gets only its own steps of a session.
        """
        of, outcomes = await self._find_outcomes(of, principal)
        own = {of, *(one.run for one in self._shared.kept.of(principal))}
        is_operator = principal.audience is Audience.OPERATOR
        async with self._shared.uploads.make_upload(principal) as (handle, target):
            left_out = await to_thread_to_end(
                self._shared.sandbox.evidence.write, of, target, outcomes, lambda run: is_operator or run in own
            )
        size = await asyncio.to_thread(lambda: target.stat().st_size)
        return EvidencePack(handle, size, tuple(left_out))

    async def _find_outcomes(self, of: str, principal: Principal) -> tuple[str, list[Execution]]:
        """The id of a run or session, and its stored executions. Raises ``NotFound``."""
        kept = self._shared.kept
        with contextlib.suppress(NotFound):
            of = self._sessions.find(of, principal).session.id
        runs = [one for one in kept.of(principal) if one.head["session"] == of]
        if not runs:
            try:
                runs = [kept.find(of, principal)]
                of = runs[0].run
            except NotFound:
                if principal.audience is not Audience.OPERATOR:
                    raise
        return of, [found for one in runs if (found := await kept.execution(one)) is not None]


def _check_public(definition: Mapping[str, Any], principal: Principal) -> dict[str, Any]:
    """The definition, limited to public addresses. Raises ``Denied`` if it uses anything of this machine."""
    auth = definition.get("auth")
    takes = [one for one in ("command", "variables") if one in definition]
    if definition.get("addresses", "public") != "public":
        takes.append("addresses")
    if auth is not None and not (isinstance(auth, Mapping) and auth.get("type") == "client_credentials"):
        takes.append("auth")  # other types open the user's browser
    if takes:
        raise Denied(
            f"{principal.name!r} may only add servers at public addresses, without {', '.join(takes)}",
            remediation="Use a token that may run commands (casemate service token add --may-run-commands), which "
            "has the rights of the user's account. Or use tools.register, which asks an approver.",
        )
    return {**definition, "addresses": "public"}
