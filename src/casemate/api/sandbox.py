"""`Sandbox`: the facade."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from casemate.api.arguments import check_files, checked_cwd, checked_folder
from casemate.api.options import CellOptions, RunOptions, SandboxOptions, SessionOptions
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


class Sandbox(SandboxParts, metaclass=HintingClass):
    """Runs untrusted code, each program in its own cell.

    It starts on first use; ``async with`` only ensures :meth:`close`. Use a sandbox in one event loop.
    ``casemate.sync.Sandbox`` is the same for scripts and notebooks.
    """

    @takes_options(SandboxOptions)
    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        """Check the options. This starts nothing.

        Args:
            **options: See :class:`casemate.api.options.SandboxOptions`; docs/reference/api.md describes each.

        Raises:
            InvalidArgument: It names the argument.
            Unavailable: This version or machine does not support an option.
        """
        super().__init__(complete(SandboxOptions, options, "Sandbox"))

    if not TYPE_CHECKING:  # a type checker has its own message

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Sandbox", name, dir(type(self)))

    @classmethod
    @takes_options(SandboxOptions)
    def from_file(cls, path: str | os.PathLike[str], **options: Unpack[SandboxOptions]) -> Self:
        """Make a sandbox with the arguments and the policy in a file.

        Args:
            path: The file, as docs/reference/configuration.md describes it.
            **options: They narrow those in the file; see :class:`casemate.api.options.SandboxOptions`.

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
            **options: They replace those in variables; see :class:`casemate.api.options.SandboxOptions`.

        Returns:
            The sandbox; nothing is started. It raises what the class raises.
        """
        from casemate.api.settings import arguments_of_environment

        return cls(**arguments_of_environment(os.environ, options))

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
            url: ``unix:///path``, ``https://host:port``, or ``http://host:port`` of this machine; None for the user's
                own.
            token: The token of a service on TCP.
            start: Whether to start the user's own service if it is not running.
            namespace: The namespace of the user's own service.
            agent: Act as an agent of this name, with an agent's rights only.
            insecure: Permit http to other machines.

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
            WallUnavailable: No wall passes its self-tests here, or not the requested one.
            QueueFull: It could not start, for lack of slots, memory or processes.
            RecordUnavailable: The record cannot be written, so nothing runs.
            SandboxClosed: The sandbox was closed before or during the run.
            Fault: casemate itself failed.
        """
        request = await self._resolved_request("run", code, options)
        from casemate.execution import pipeline

        async with self._slot(request):
            self._check_open()
            return await pipeline.execute(request, self._context)

    @takes_options(RunOptions)
    async def stream(self, code: str | bytes, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """Run ``code`` as :meth:`run` does, and yield events as they happen.

        Leaving the stream early ends the cell. A slow consumer makes the program wait once its pipes are full: no
        output is lost and memory does not grow. It raises what :meth:`run` raises.

        Args:
            code: The program, as text or UTF-8 bytes.
            **options: See :class:`casemate.api.options.RunOptions`.

        Yields:
            The events; ``Done(execution)`` is always the last.
        """
        request = await self._resolved_request("stream", code, options)
        from casemate.execution import pipeline
        from casemate.execution.capture import stream_events

        async with self._slot(request):
            self._check_open()
            async with contextlib.aclosing(
                stream_events(partial(pipeline.execute, request, self._context))
            ) as happened:
                async for event in happened:
                    yield event

    @takes_options(RunOptions)
    def start(self, code: str | bytes, **options: Unpack[RunOptions]) -> Run:
        """Start ``code`` as a run in the background. It raises what :meth:`run` raises.

        Args:
            code: The program, as text or UTF-8 bytes.
            **options: See :class:`casemate.api.options.RunOptions`.

        Returns:
            The run. Readers can attach to it until the sandbox is closed.
        """
        values = complete(RunOptions, options, "start")
        secrets = self._resolve_secrets(values["secrets"])
        return self._start_run(self._request(code, **{**values, "secrets": secrets}))

    @takes_options(RunOptions)
    async def plan(
        self, code: str | bytes, *, session: Session | None = None, **options: Unpack[RunOptions]
    ) -> ProgramPlan:
        """Find the calls that a program would make, by a trial in a throwaway cell.

        The trial makes only calls that a rule allows. It notes all other calls, and asks for no approval. ``await
        plan.run()`` has the list decided at once, and runs the program with exactly those calls. It raises what
        :meth:`run` raises.

        Args:
            code: The program, as text or UTF-8 bytes.
            session: Must be None: a trial cannot copy a session's state, so a session raises ``Unavailable``.
            **options: See :class:`casemate.api.options.RunOptions`.

        Returns:
            The plan, with the calls that were noted.
        """
        from casemate.api.call_plan import check_no_session, foresee

        check_no_session(session)
        request = await self._resolved_request("plan", code, options)
        return await foresee(request, self)

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

        context = self._context
        return pipeline.explain(request, context, await guarding.find_guarded(context))

    @takes_options(SessionOptions)
    def session(self, language: str = "python", **options: Unpack[SessionOptions]) -> Session:
        """Make a session: a stateful interpreter in its own cell, which starts on first use.

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
        of_cell["secrets"] = self._resolve_secrets(values["secrets"])
        request = self._request(session_runtime(language).session.program, language=language, **of_cell)
        terms = SessionTerms(
            name=values["name"],
            admitted=self._context.admit(request, stream=False),
            cwd=checked_cwd("." if values["cwd"] is None and values["restore_cwd"] else values["cwd"]),
            restore_cwd=values["restore_cwd"],
            idle_timeout=check_timeout(values["idle_timeout"], "idle_timeout"),
            lifetime=check_timeout(values["lifetime"], "lifetime"),
        )
        return self.sessions.add(Session(terms, self._context, self._slot))

    @operation(audience=Audience.AGENT)
    async def validate(
        self, code: str | bytes, language: str = "python", fix: bool = False, *, session: bool = False
    ) -> Validation:
        """Check ``code`` for errors and doubtful parts. A cell parses it, and never runs it.

        Code that cannot be parsed within 512 MiB and 10 s is rejected, with an issue that says so.

        Args:
            code: The program.
            language: ``"python"``, ``"node"`` or ``"shell"``.
            fix: Also return the program with the fixes applied.
            session: Whether it is a step of a session, which may have top-level await, and in Python %magics and
                !commands.

        Raises:
            CasemateError: As of :meth:`run`.
        """
        from casemate.execution.validate import validate

        self._check_open()
        async with self._slot():
            self._check_open()
            return await validate(
                code, language, self._context, self._namespace, fix=fix is True, session=session is True
            )

    @operation(audience=Audience.AGENT, while_draining=True)
    async def runtimes(self) -> list[RuntimeInfo]:
        """List the languages, with what this machine has or lacks for each, and the wall in force.

        This starts each interpreter once at most, and again after it is replaced.
        """
        from casemate.execution.overview import runtimes

        self._check_open()
        return await runtimes(self._context)

    @operation(audience=Audience.AGENT, while_draining=True)
    async def stats(self) -> Stats:
        """Count executions, cells and their usage, sessions, pending requests, and totals so far."""
        import asyncio

        self._check_open()
        return await asyncio.to_thread(self._count)

    async def inspect(self, session: str | Session) -> Inspection:
        """Describe a session, without values of secrets.

        Its interpreter lists its variables only if it is idle.

        Args:
            session: An open session, or its id or name.

        Returns:
            The inspection.

        Raises:
            InvalidArgument: There is no such session.
            SandboxClosed: The sandbox was closed.
        """
        from casemate.policy.rules import PACKAGE_LANGUAGES
        from casemate.sessions.inspection import inspect

        self._check_open()
        found = await self.sessions.get(session if isinstance(session, str) else session.id)
        if "packages" not in vars(self) or found.language not in PACKAGE_LANGUAGES:
            return await inspect(found, ())
        return await inspect(found, await self.packages.list(language=found.language, session=found))

    async def set_limits(self, **limits: Unpack[LimitOptions]) -> Limits:
        """Change the limits of later runs and sessions.

        They cannot exceed those that the sandbox was made with, or its policy. Running programs and open sessions keep
        their limits.

        Args:
            **limits: The limits to change; see :class:`casemate.model.limits.LimitOptions`. A ``cpu_time`` of 0 sets no
                separate limit.

        Returns:
            The limits in force.

        Raises:
            InvalidArgument: It names a limit that is too high; then no limit changes.
        """
        from casemate.execution.admit import Cap

        self._check_open()
        changes = {name: value for name, value in limits.items() if value is not None}
        most = Cap(self._most, self._policy)
        self._context = replace(self._context, limits=most.change(self._context.limits, changes))
        return self._context.limits

    async def doctor(self) -> Diagnosis:
        """What this machine offers, as proved by self-tests. Missing parts raise no error."""
        from casemate.execution.overview import examine

        return await examine(self._wall, self.warm_up)

    @staticmethod
    def language_of(file_name: str) -> str | None:
        """The language of a program by its file's ending; None if no language has it.

        Args:
            file_name: The name or path of the file.
        """
        return language_of(file_name)

    def warm_up(self, *languages: str) -> None:
        """Start what the first run needs, without waiting, and keep cells ready for programs in ``languages``.

        After its first run, a sandbox keeps cells ready by itself. Ready cells end after half a minute without use. It
        raises what :meth:`run` raises.

        Args:
            *languages: ``"python"``, ``"node"``, ``"shell"``; without any, this only starts what the first run needs.
        """
        self._wall.warm_up()
        from casemate.execution import pipeline

        for language in languages:
            for code in runtime_for(language).examples(self._context.preload):
                request = self._request(code, language=language)
                self._wall.keep_ready(pipeline.explain(request, self._context))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def _begin_trial(self, code: str | bytes, options: Mapping[str, Any]) -> Trial:
        """Start the trial of :meth:`plan` in the background. Raises as that does, and ``QueueFull``."""
        from casemate.api.call_plan import begin_trial

        return begin_trial(self._request(code, **complete(RunOptions, options, "plan")), self)

    async def _resolved_request(self, call: str, code: str | bytes, options: Mapping[str, Any]) -> Request:
        """The request of ``call`` with these options. Raises as :meth:`run`."""
        values = complete(RunOptions, options, call)
        names = values["secrets"]
        secrets = await self.vault.resolve_async(names) if names not in (None, (), []) else NO_SECRETS
        return self._request(code, **{**values, "secrets": secrets})

    def _request(self, code: str | bytes, *, language: str, **options: Any) -> Request:
        """``options``: those of `make_request`, with secrets resolved."""
        self._check_open()
        context = self._context
        request = make_request(code, language, namespace=self._namespace, **options)
        if (folder := context.folder).path is not None:
            checked_folder("workspace", folder.path)  # it may have been removed
            check_files(request, folder.path, folder.mode)
        return request
