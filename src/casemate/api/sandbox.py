"""The facade: what can be asked of a sandbox."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from casemate.api.connect import Connecting
from casemate.api.options import CellOptions, RunOptions, SandboxOptions, SessionOptions
from casemate.api.oversight import Oversight
from casemate.api.planning import Planning
from casemate.api.settings.arguments import arguments_of_environment, arguments_of_file
from casemate.api.wiring import Rooms
from casemate.execution.given import check_files, checked_cwd, checked_folder
from casemate.execution.request import check_timeout, make_request
from casemate.languages.catalogue import examples, language_of, runtime_for
from casemate.model.options import complete, defaults_of, takes_options
from casemate.model.secrets import NO_SECRETS

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.isolation import Diagnosis
    from casemate.model.limits import Limits
    from casemate.model.request import Request
    from casemate.sessions.packages import Packages
    from casemate.sessions.registry import Sessions
    from casemate.sessions.run import Run
    from casemate.sessions.session import Session
    from casemate.tools.tools import Tools
    from casemate.vault.vault import Vault

_NONE: tuple[object, ...] = (None, (), [])


class Sandbox(Planning, Oversight, Connecting):
    """Runs code that nobody has read, each program in a cell of its own.

    It starts on first use; ``async with`` only makes sure of :meth:`close`. Use one sandbox in one
    event loop; ``casemate.sync.Sandbox`` is the same for scripts and notebooks.

    Args:
        **options: See :class:`casemate.api.options.SandboxOptions`.

    Raises:
        InvalidArgument: It names the argument.
        Unavailable: This version or machine cannot do what was asked.
    """

    @takes_options(SandboxOptions)
    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        self._rooms = Rooms(complete(SandboxOptions, options, "Sandbox"))

    if not TYPE_CHECKING:  # a type checker has its own message

        def __getattr__(self, name: str) -> Any:
            from casemate.model.foreign import no_attribute

            raise no_attribute("Sandbox", name, dir(type(self)))

    @classmethod
    @takes_options(SandboxOptions)
    def from_file(cls, path: str | os.PathLike[str], **options: Unpack[SandboxOptions]) -> Self:
        """With the arguments and the policy in a file; ``options`` narrow it. Raises as the class."""
        return cls(**arguments_of_file(path, os.environ, options))

    @classmethod
    @takes_options(SandboxOptions)
    def from_env(cls, **options: Unpack[SandboxOptions]) -> Self:
        """With what ``CASEMATE_*`` variables hold, and ``options`` instead of it. Raises as the class."""
        values: dict[str, Any] = {**arguments_of_environment(os.environ), **options}
        return cls(**values)

    @takes_options(RunOptions)
    async def run(self, code: str | bytes, **options: Unpack[RunOptions]) -> Execution:
        """Run ``code`` once, in a fresh cell, and give its outcome. Cancelling ends the cell.

        A failing program, a limit and a timeout are values of :class:`casemate.Execution`.

        Args:
            code: The program.
            **options: See :class:`casemate.api.options.RunOptions`.

        Raises:
            InvalidArgument, RuntimeMissing, WallUnavailable, RecordUnavailable, SandboxClosed, Fault
        """
        request = await self._resolved_request("run", code, options)
        from casemate.execution import pipeline

        async with self._rooms.slot():
            self._rooms.check_open()
            return await pipeline.execute(request, self._rooms.house)

    @takes_options(RunOptions)
    async def stream(self, code: str | bytes, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """Run ``code`` as :meth:`run` does, and give events as they happen; ``Done(execution)`` is always the last.

        Leaving the stream early ends the cell. A consumer that is slow makes the program wait when the
        pipes are full; nothing is lost and memory does not grow. The options are those of :meth:`run`.
        """
        request = await self._resolved_request("stream", code, options)
        from casemate.execution import pipeline, stream

        async with self._rooms.slot():
            self._rooms.check_open()
            async with contextlib.aclosing(
                stream.events(partial(pipeline.execute, request, self._rooms.house))
            ) as happened:
                async for event in happened:
                    yield event

    @takes_options(RunOptions)
    def start(self, code: str | bytes, **options: Unpack[RunOptions]) -> Run:
        """Run ``code`` as :meth:`run` does, but go on when the caller goes away: the run is there to attach to, until
        the sandbox is closed. The options are those of :meth:`run`, and so is what it raises."""
        from casemate.api.background import start_run

        values = complete(RunOptions, options, "start")
        secrets = self._rooms.held(values["secrets"])
        return start_run(self._request(code, **{**values, "secrets": secrets}), self._rooms)

    @takes_options(SessionOptions)
    def session(self, language: str = "python", **options: Unpack[SessionOptions]) -> Session:
        """A stateful interpreter in a cell of its own; it starts on first use.

        Args:
            language: The language of its programs.
            **options: See :class:`casemate.api.options.SessionOptions`.

        Raises:
            InvalidArgument, RuntimeMissing, SandboxClosed
        """
        from casemate.sessions.interpreters import INTERPRETERS
        from casemate.sessions.session import Session
        from casemate.sessions.terms import SessionTerms

        values = complete(SessionOptions, options, "session")
        of_cell = {name: values[name] for name in defaults_of(CellOptions)}
        of_cell["secrets"] = self._rooms.held(values["secrets"])
        request = self._request(INTERPRETERS[runtime_for(language).language].program, language=language, **of_cell)
        terms = SessionTerms(
            name=values["name"],
            admitted=self._rooms.house.admit(request, stream=False),
            cwd=checked_cwd(values["cwd"]),
            restore_cwd=values["restore_cwd"],
            idle_timeout=check_timeout(values["idle_timeout"], "idle_timeout"),
            lifetime=check_timeout(values["lifetime"], "lifetime"),
        )
        return self.sessions.add(Session(terms, self._rooms.house, self._rooms.slot))

    @property
    def namespace(self) -> str:
        """Whose secrets there are, and what each row of the record carries."""
        return self._rooms.namespace

    @property
    def limits(self) -> Limits:
        """The most that any run may use."""
        return self._rooms.house.limits

    @property
    def sessions(self) -> Sessions:
        """The open sessions: ``await sandbox.sessions.get(id_or_name)``, ``.list()`` and ``.bridge(name, a, b)``."""
        return self._rooms.sessions

    @property
    def approvals(self) -> Approvals:
        """What waits to be approved: ``.pending()``, ``.decide(id, allow)``, ``.open()``, ``.rules``."""
        return self._rooms.approvals

    @property
    def tools(self) -> Tools:
        """MCP servers, whose tools programs call as functions: ``await`` ``add(name, definition)``, ``list()``,
        ``search(query)``, ``call(server, tool, arguments)``."""
        return self._rooms.tools

    @property
    def vault(self) -> Vault:
        """The secrets of its namespace: ``await`` ``set(name, value)``, ``delete(name)`` and ``names()``."""
        return self._rooms.vault

    @property
    def packages(self) -> Packages:
        """Packages of the operator's index: ``await`` ``install(names)``, ``list()`` and ``remove(names)``."""
        return self._rooms.packages

    async def doctor(self) -> Diagnosis:
        """What this machine offers, as proved by the self-tests. Raises nothing for what is missing."""
        from casemate.execution import examine

        return await examine.examine(self._rooms.wall, self.warm_up)

    @staticmethod
    def language_of(file_name: str) -> str | None:
        """The language of a program by its file's ending, or None."""
        return language_of(file_name)

    def warm_up(self, *languages: str) -> None:
        """Start what the first run needs, without waiting for it; and keep cells ready for programs in ``languages``.

        A sandbox does the latter by itself from a moment after its first run on. Cells that nothing runs in for half
        a minute are ended. Raises as :meth:`run` does.
        """
        self._rooms.wall.warm_up()
        from casemate.execution import pipeline

        for language in languages:
            for code in examples(runtime_for(language).language, self._rooms.house.preload):
                request = self._request(code, language=language)
                self._rooms.wall.keep_ready(pipeline.explain(request, self._rooms.house))

    async def close(self) -> None:
        """End every cell and everything this sandbox started. Bounded; harmless when repeated."""
        await self._rooms.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _resolved_request(self, call: str, code: str | bytes, options: Mapping[str, Any]) -> Request:
        """The request for ``call`` with these options. Raises as :meth:`run`."""
        values = complete(RunOptions, options, call)
        names = values["secrets"]
        secrets = await self.vault.resolved(names) if names not in _NONE else NO_SECRETS
        return self._request(code, **{**values, "secrets": secrets})

    def _request(self, code: str | bytes, *, language: str, **options: Any) -> Request:
        """``options``: those of `make_request`, with secrets resolved."""
        self._rooms.check_open()
        house = self._rooms.house
        request = make_request(code, runtime=runtime_for(language), namespace=self._rooms.namespace, **options)
        if house.workspace is not None:
            checked_folder("workspace", house.workspace)  # it may have gone since
            check_files(request, house.workspace, house.workspace_mode)
        return request
