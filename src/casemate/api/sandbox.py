"""The facade: what can be asked of a sandbox."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from casemate.api.arguments import check_files, checked_cwd, checked_folder
from casemate.api.options import CellOptions, RunOptions, SandboxOptions, SessionOptions
from casemate.api.properties import SandboxProperties
from casemate.api.wiring import SandboxParts
from casemate.execution.request import check_timeout, make_request
from casemate.languages.catalogue import language_of, runtime_for, session_runtime
from casemate.model.foreign import HintingClass, no_attribute
from casemate.model.limits import LimitOptions
from casemate.model.operation import Audience, operation
from casemate.model.options import complete, defaults_of, takes_options
from casemate.model.plan import NO_SECRETS

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan, Trial
    from casemate.model.diagnosis import Diagnosis
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.limits import Limits
    from casemate.model.overview import Inspection, RuntimeInfo, Stats, Validation
    from casemate.model.plan import Plan, Request
    from casemate.remote.facade import ConnectedSandbox
    from casemate.sessions.run import Run
    from casemate.sessions.session import Session


_NONE: tuple[object, ...] = (None, (), [])


class Sandbox(SandboxProperties, metaclass=HintingClass):
    """Runs code that nobody has read, each program in a cell of its own.

    It starts on first use; ``async with`` only makes sure of :meth:`close`. Use one sandbox in one
    event loop; ``casemate.sync.Sandbox`` is the same for scripts and notebooks.
    """

    @takes_options(SandboxOptions)
    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        """Check the options; nothing is started.

        Args:
            workspace: The folder that programs work in; None gives each run a private one.
            workspace_mode: `"overlay"` (unless given) writes at the end, `"direct"` at once, `"review"` if allowed.
            output_dir: A folder for copies of artifacts.
            environment: Interpreter and packages: None for casemate's, the path of others, or a list of requirements.
            preload: Modules that Python programs find loaded; None for the usual ones.
            isolation: The wall, by name; `"auto"` is the strongest that proves itself here.
            image: The image of containers that are cells; for `isolation="docker"` alone.
            runtime: The engine's runtime for them, such as `"runsc"`, gVisor's.
            policy: A file or mapping: the most that is permitted, which other options narrow.
            network: Hosts that there are: `"none"`, `"public"`, or `"listed"` (unless given) in `allowed_domains`.
            allowed_domains: Hosts that programs may reach: `example.org`, `*.example.org`, `example.org:5432`.
            allow_local: Ports of this machine's loopback that programs may reach.
            intercept: Hosts whose TLS ends at the egress proxy, so that their requests are seen.
            trust: A PEM file of authorities that intercepted hosts may have besides those of the system.
            limits: The most that any run may use.
            approve: Called with each `ApprovalRequest`; only True or a `Decision` that allows lets it cross.
            approval_timeout: Seconds that somebody has to answer; None for no bound.
            vault: Where secrets are kept: None for memory, the path of an encrypted file, or a store.
            audit: Path of the record; by default in the user's state folder.
            audit_sync: When a row is on the disk: `"grouped"`, a moment later with others, or `"row"`, at once.
            audit_anchors: Where signed heads go besides: an absolute path, `|command`, a time stamp server's address.
            audit_max_age: Seconds after which rows of the record are dropped.
            audit_max_size: Bytes, or `"1GiB"`, beyond which the oldest rows of the record are dropped.
            namespace: Whose secrets there are, and what each row of the record carries.
            concurrency: Runs and steps of sessions at once, from 1 to 10000; None for 16.
            package_indexes: Where packages come from; those of the operator's pip unless given.
            tools: MCP servers from the start: names and definitions, or the path of a file with `mcpServers`.
            allow_read: Files called `.env` in the workspace that programs may read and change; others are hidden.

        Raises:
            InvalidArgument: It names the argument.
            Unavailable: This version or machine cannot do what was asked.
        """
        super().__init__(SandboxParts(complete(SandboxOptions, options, "Sandbox")))

    if not TYPE_CHECKING:  # a type checker has its own message

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Sandbox", name, dir(type(self)))

    @classmethod
    @takes_options(SandboxOptions)
    def from_file(cls, path: str | os.PathLike[str], **options: Unpack[SandboxOptions]) -> Self:
        """Make a sandbox with the arguments and the policy in a file.

        Args:
            path: The file, as docs/reference/configuration.md describes it.
            **options: They narrow what the file says; see :class:`casemate.api.options.SandboxOptions`.

        Returns:
            The sandbox; nothing is started. It raises what the class raises.
        """
        from casemate.api.settings import arguments_of_file

        return cls(**arguments_of_file(path, os.environ, options))

    @classmethod
    @takes_options(SandboxOptions)
    def from_env(cls, **options: Unpack[SandboxOptions]) -> Self:
        """Make a sandbox with the arguments in ``CASEMATE_*`` variables.

        Args:
            **options: They replace what variables say; see :class:`casemate.api.options.SandboxOptions`.

        Returns:
            The sandbox; nothing is started. It raises what the class raises.
        """
        from casemate.api.settings import arguments_of_environment

        values: dict[str, Any] = {**arguments_of_environment(os.environ), **options}
        return cls(**values)

    @staticmethod
    async def connect(
        url: str | None = None,
        token: str | None = None,
        *,
        start: bool = True,
        namespace: str | None = None,
        agent: str | None = None,
        insecure: bool = False,
    ) -> ConnectedSandbox:
        """Use a running service through the same facade.

        Args:
            url: ``unix:///path``, ``https://host:port``, or ``http://host:port`` of this machine; None: the user's.
            token: The token of a service on TCP.
            start: Whether to start the user's own service where it does not run.
            namespace: Which namespace of the user's own service.
            agent: A name under which everything is done, with no more than an agent's rights.
            insecure: Permits http to other machines.

        Returns:
            The sandbox of the service.

        Raises:
            InvalidArgument: It names the argument.
            Unavailable: The service cannot be reached or started.
        """
        from casemate.remote.facade import connected_sandbox

        return await connected_sandbox(url, token, start=start, namespace=namespace, agent=agent, insecure=insecure)

    @takes_options(RunOptions)
    async def run(self, code: str | bytes, **options: Unpack[RunOptions]) -> Execution:
        """Run ``code`` once, in a fresh cell. Cancelling ends the cell.

        Args:
            code: The program, as text or UTF-8 bytes.
            **options: See :class:`casemate.api.options.RunOptions`.

        Returns:
            The outcome. A failing program, a limit and a timeout are values of it.

        Raises:
            InvalidArgument: It names the argument.
            RuntimeMissing: The interpreter of the language was not found.
            WallUnavailable: No wall can be proved here, or not the one asked for.
            QueueFull: It could not begin: there are no turns, no memory or no processes for it.
            RecordUnavailable: The record cannot be written, so nothing is run.
            SandboxClosed: The sandbox was closed before or while this ran.
            Fault: casemate itself failed.
        """
        request = await self._resolved_request("run", code, options)
        from casemate.execution import pipeline

        async with self._parts.slot(request):
            self._parts.check_open()
            return await pipeline.execute(request, self._parts.context)

    @takes_options(RunOptions)
    async def stream(self, code: str | bytes, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """Run ``code`` as :meth:`run` does, and give events as they happen.

        Leaving the stream early ends the cell. A slow consumer makes the program wait when the pipes are full;
        nothing is lost and memory does not grow. It raises what :meth:`run` raises.

        Args:
            code: The program, as text or UTF-8 bytes.
            **options: See :class:`casemate.api.options.RunOptions`.

        Yields:
            The events; ``Done(execution)`` is always the last.
        """
        request = await self._resolved_request("stream", code, options)
        from casemate.execution import pipeline
        from casemate.execution.capture import stream_events

        async with self._parts.slot(request):
            self._parts.check_open()
            async with contextlib.aclosing(
                stream_events(partial(pipeline.execute, request, self._parts.context))
            ) as happened:
                async for event in happened:
                    yield event

    @takes_options(RunOptions)
    def start(self, code: str | bytes, **options: Unpack[RunOptions]) -> Run:
        """Start ``code`` as a run that goes on when the caller goes away. It raises what :meth:`run` raises.

        Args:
            code: The program, as text or UTF-8 bytes.
            **options: See :class:`casemate.api.options.RunOptions`.

        Returns:
            The run, which can be attached to until the sandbox is closed.
        """
        values = complete(RunOptions, options, "start")
        secrets = self._parts.resolve_secrets(values["secrets"])
        return self._parts.start_run(self._request(code, **{**values, "secrets": secrets}))

    @takes_options(RunOptions)
    async def plan(
        self, code: str | bytes, *, session: Session | None = None, **options: Unpack[RunOptions]
    ) -> ProgramPlan:
        """Find out what a program would call, by a trial in a throwaway cell.

        The trial makes only calls that a rule allows. It notes all others and asks nobody. ``await plan.run()`` has
        the list decided at once, and runs the program with exactly those calls. It raises what :meth:`run` raises.

        Args:
            code: The program, as text or UTF-8 bytes.
            session: None; for a session it raises ``Unavailable``, whose state a throwaway cell does not have.
            **options: See :class:`casemate.api.options.RunOptions`.

        Returns:
            The plan, with the calls that were noted.
        """
        from casemate.api.call_plan import check_no_session, foresee

        check_no_session(session)
        request = await self._resolved_request("plan", code, options)
        return await foresee(request, self._parts)

    @takes_options(RunOptions)
    async def explain(self, code: str | bytes, **options: Unpack[RunOptions]) -> Plan:
        """Plan a run without starting anything. It raises what :meth:`run` raises.

        Args:
            code: The program, as text or UTF-8 bytes.
            **options: See :class:`casemate.api.options.RunOptions`.

        Returns:
            The plan of the run, as data.
        """
        request = await self._resolved_request("explain", code, options)
        from casemate.execution import guarding, pipeline

        context = self._parts.context
        return pipeline.explain(request, context, await guarding.find_guarded(context))

    @takes_options(SessionOptions)
    def session(self, language: str = "python", **options: Unpack[SessionOptions]) -> Session:
        """Make a session: a stateful interpreter in a cell of its own, which starts on first use.

        Args:
            language: The language of its programs: ``"python"``, ``"node"`` or ``"shell"``.
            **options: See :class:`casemate.api.options.SessionOptions`.

        Returns:
            The session.

        Raises:
            InvalidArgument: It names the argument.
            RuntimeMissing: The interpreter of the language was not found.
            SandboxClosed: The sandbox was closed.
        """
        from casemate.sessions.session import Session
        from casemate.sessions.terms import SessionTerms

        values = complete(SessionOptions, options, "session")
        of_cell = {name: values[name] for name in (*defaults_of(CellOptions), "metadata")}
        of_cell["secrets"] = self._parts.resolve_secrets(values["secrets"])
        request = self._request(session_runtime(language).session.program, language=language, **of_cell)
        terms = SessionTerms(
            name=values["name"],
            admitted=self._parts.context.admit(request, stream=False),
            cwd=checked_cwd("." if values["cwd"] is None and values["restore_cwd"] else values["cwd"]),
            restore_cwd=values["restore_cwd"],
            idle_timeout=check_timeout(values["idle_timeout"], "idle_timeout"),
            lifetime=check_timeout(values["lifetime"], "lifetime"),
        )
        return self.sessions.add(Session(terms, self._parts.context, self._parts.slot))

    @operation(audience=Audience.AGENT)
    async def validate(
        self, code: str | bytes, language: str = "python", fix: bool = False, *, session: bool = False
    ) -> Validation:
        """Say whether ``code`` is a program, and what in it is doubtful; it is parsed in a cell and never run.

        Whatever cannot be read within 512 MiB and 10 s is rejected, which says so.

        Args:
            code: The program.
            language: ``"python"``, ``"node"`` or ``"shell"``.
            fix: Also give the program with the fixes in it.
            session: It is a step of a session, so that top-level await is right, and in Python %magics and !commands.

        Raises:
            CasemateError: As of :meth:`run`.
        """
        from casemate.execution.validate import validate

        self._parts.check_open()
        async with self._parts.slot():
            self._parts.check_open()
            return await validate(
                code, language, self._parts.context, self._parts.namespace, fix=fix is True, session=session is True
            )

    @operation(audience=Audience.AGENT)
    async def runtimes(self) -> list[RuntimeInfo]:
        """List the languages, with what this machine has or lacks for each, and the wall that is in force.

        Interpreters are started to find that out once at most, and again when they are replaced.
        """
        from casemate.execution.overview import runtimes

        self._parts.check_open()
        return await runtimes(self._parts.context)

    @operation(audience=Audience.AGENT)
    async def stats(self) -> Stats:
        """Count executions that run and wait, cells and what they use, sessions, approvals, and totals so far."""
        import asyncio

        self._parts.check_open()
        return await asyncio.to_thread(self._parts.stats)

    async def inspect(self, session: str | Session) -> Inspection:
        """Say what a session is and has, without its secrets' values.

        Its interpreter is asked for the names of variables where it has nothing else to do.

        Args:
            session: An open session, or its id or name.

        Returns:
            The inspection.

        Raises:
            InvalidArgument: There is no such session.
            SandboxClosed: The sandbox was closed.
        """
        from casemate.sessions.inspection import inspect

        self._parts.check_open()
        open_session = await self._parts.sessions.get(session if isinstance(session, str) else session.id)
        return await inspect(open_session, await self._parts.packages_of(open_session))

    async def set_limits(self, **limits: Unpack[LimitOptions]) -> Limits:
        """Change the limits of later runs and sessions.

        The most is what the sandbox was made with, within its policy. What runs, and sessions that are open, keep the
        limits that they began with.

        Args:
            **limits: Those that change; see :class:`casemate.model.limits.LimitOptions`. 0 as ``cpu_time`` is no limit
                of its own.

        Returns:
            The limits that are in force now.

        Raises:
            InvalidArgument: For a limit beyond the most, which it names; nothing is changed then.
        """
        self._parts.check_open()
        return self._parts.set_limits({name: value for name, value in limits.items() if value is not None})

    async def doctor(self) -> Diagnosis:
        """Say what this machine offers, as proved by the self-tests. What is missing raises nothing."""
        from casemate.execution.overview import examine

        return await examine(self._parts.wall, self.warm_up)

    @staticmethod
    def language_of(file_name: str) -> str | None:
        """Tell the language of a program by its file's ending; None where no language has it.

        Args:
            file_name: The name or path of the file.
        """
        return language_of(file_name)

    def warm_up(self, *languages: str) -> None:
        """Start what the first run needs, without waiting for it; and keep cells ready for programs in ``languages``.

        A sandbox does the latter by itself from a moment after its first run on. Cells that nothing runs in for half
        a minute are ended. It raises what :meth:`run` raises.

        Args:
            *languages: ``"python"``, ``"node"``, ``"shell"``; without any, only what the first run needs is started.
        """
        self._parts.wall.warm_up()
        from casemate.execution import pipeline

        for language in languages:
            for code in runtime_for(language).examples(self._parts.context.preload):
                request = self._request(code, language=language)
                self._parts.wall.keep_ready(pipeline.explain(request, self._parts.context))

    async def close(self) -> None:
        """End every cell and everything this sandbox started. Bounded; harmless when repeated."""
        await self._parts.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def _begin_trial(self, code: str | bytes, options: Mapping[str, Any]) -> Trial:
        """Begin to find out what a program would call, as a run that goes on by itself. ``options``: those of
        :meth:`plan`, with secrets resolved. Raises as that does, and ``QueueFull``."""
        from casemate.api.call_plan import begin_trial

        return begin_trial(self._request(code, **complete(RunOptions, options, "plan")), self._parts)

    async def _resolved_request(self, call: str, code: str | bytes, options: Mapping[str, Any]) -> Request:
        """The request for ``call`` with these options. Raises as :meth:`run`."""
        values = complete(RunOptions, options, call)
        names = values["secrets"]
        secrets = await self.vault.resolve_async(names) if names not in (None, (), []) else NO_SECRETS
        return self._request(code, **{**values, "secrets": secrets})

    def _request(self, code: str | bytes, *, language: str, **options: Any) -> Request:
        """``options``: those of `make_request`, with secrets resolved."""
        self._parts.check_open()
        context = self._parts.context
        request = make_request(code, language, namespace=self._parts.namespace, **options)
        if context.workspace is not None:
            checked_folder("workspace", context.workspace)  # it may have gone since
            check_files(request, context.workspace, context.workspace_mode)
        return request
