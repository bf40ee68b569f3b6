"""The facade: what can be asked of a sandbox."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from casemate.api.connect import Connecting
from casemate.api.oversight import Oversight
from casemate.api.planning import Planning
from casemate.api.settings.arguments import arguments_of_environment, arguments_of_file
from casemate.api.wiring import Rooms
from casemate.execution.given import check_files, checked_cwd, checked_folder
from casemate.execution.request import Content, check_timeout, make_request
from casemate.languages.catalogue import examples, language_of, runtime_for
from casemate.model.secrets import NO_SECRETS, Secrets

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals
    from casemate.languages.runtime import Environment
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.isolation import Diagnosis
    from casemate.model.limits import Limits
    from casemate.model.request import Request
    from casemate.policy.policy import Policy
    from casemate.sessions.packages import Packages
    from casemate.sessions.registry import Sessions
    from casemate.sessions.run import Run
    from casemate.sessions.session import Session
    from casemate.tools.tools import Tools
    from casemate.vault.vault import Vault

_NONE: tuple[object, ...] = (None, (), [])
_NOTHING_MORE: dict[str, Any] = {
    "timeout": None, "limits": None, "allowed_domains": None, "secrets": NO_SECRETS, "env": None, "files": None,
    "stdin": None, "metadata": None, "program_name": None, "arguments": (),
}  # fmt: skip


class Sandbox(Planning, Oversight, Connecting):
    """Runs code that nobody has read, each program in a cell of its own.

    It starts on first use; ``async with`` only makes sure of :meth:`close`. Use one sandbox in one
    event loop; ``casemate.sync.Sandbox`` is the same for scripts and notebooks.

    ``workspace``: None gives each run a private one; a folder is seen through an overlay and what a run changed is
    written back when it ends. ``workspace_mode``: ``"overlay"`` (unless given) or ``"direct"``. ``allow_read``: files
    called ``.env`` in it that programs see all the same. ``output_dir``: a folder for copies of artifacts.
    ``environment``: None for the interpreter and packages that casemate runs on, or another's path. ``preload``:
    modules that Python programs find loaded, None for the usual. ``isolation``: ``"auto"`` or a wall's name.
    ``policy``: a file or mapping, the most that is permitted; other arguments narrow it. ``network``: ``"none"``,
    ``"listed"`` (unless given) or ``"public"``; ``allowed_domains`` and ``allow_local``: hosts, and ports of this
    machine's loopback, that programs may reach. ``intercept``: hosts whose TLS ends at the door, so that their
    requests are seen; ``trust``: a PEM file of authorities that these may have besides the system's.
    ``limits``: the most any run may use. ``approve``: is called with each :class:`casemate.ApprovalRequest`; only True
    or a :class:`casemate.Decision` that allows lets it cross. ``approval_timeout``: seconds that somebody has to
    answer, None for no bound. ``vault``: where secrets are kept. ``audit``: path of the record, by default in the
    user's state folder. ``namespace``: whose secrets, and on each row of the record. ``concurrency``: runs and steps of
    sessions at once. ``package_indexes``: where packages come from; none given is the operator's pip's.
    ``tools``: MCP servers from the start: names and definitions, or a file of them (docs/how-to/servers.md).

    Raises ``InvalidArgument`` naming the argument, and ``Unavailable`` for what this version or machine cannot do.
    """

    def __init__(
        self,
        *,
        workspace: str | os.PathLike[str] | None = None,
        workspace_mode: Literal["overlay", "direct"] | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        environment: Environment = None,
        preload: Sequence[str] | None = None,
        isolation: str = "auto",
        policy: str | os.PathLike[str] | Mapping[str, Any] | Policy | None = None,
        network: Literal["none", "listed", "public"] | None = None,
        allowed_domains: Sequence[str] = (),
        allow_local: Sequence[int] = (),
        intercept: Sequence[str] = (),
        trust: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        approve: Callable[..., Any] | None = None,
        approval_timeout: float | None = 300.0,
        vault: object = None,
        audit: str | os.PathLike[str] | None = None,
        namespace: str = "default",
        concurrency: int | None = None,
        package_indexes: Sequence[str] = (),
        tools: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        allow_read: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self._rooms = Rooms(
            workspace=workspace, workspace_mode=workspace_mode, output_dir=output_dir, environment=environment,
            preload=preload, isolation=isolation, policy=policy, network=network, allowed_domains=allowed_domains,
            allow_local=allow_local, intercept=intercept, trust=trust, limits=limits, approve=approve,
            approval_timeout=approval_timeout, vault=vault, audit=audit, namespace=namespace, concurrency=concurrency,
            package_indexes=package_indexes, tools=tools, allow_read=allow_read,
        )  # fmt: skip

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **arguments: Any) -> Self:
        """With the arguments and the policy in a file; ``arguments`` narrow it. Raises as the class."""
        return cls(**arguments_of_file(path, os.environ, arguments))

    @classmethod
    def from_env(cls, **arguments: Any) -> Self:
        """With what ``CASEMATE_*`` variables hold, and ``arguments`` instead of it. Raises as the class."""
        return cls(**{**arguments_of_environment(os.environ), **arguments})

    async def run(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the cell's, not the call's
        limits: Limits | None = None,
        allowed_domains: Sequence[str] | None = None,
        secrets: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Content] | None = None,
        stdin: str | bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
        program_name: str | None = None,
        arguments: Sequence[str] = (),
    ) -> Execution:
        """Run ``code`` once, in a fresh cell, and give its outcome.

        ``language``: ``"python"``, ``"node"`` or ``"shell"``. ``timeout``: seconds from the cell's start,
        None for ``limits.wall``. ``limits`` only narrow the sandbox's. ``env``: variables of the program.
        ``secrets``: names of the vault's that it gets as variables, too; their values are in nothing that comes out.
        ``files``: name to content (``bytes`` or ``str``) or to a ``Path``, put into the workspace. ``stdin``: the
        program's standard input. ``metadata``: carried along. ``program_name``: the file name that tracebacks
        show; ``arguments``: the program's command line.

        A failing program, a limit and a timeout are values of :class:`casemate.Execution`. Raises
        ``InvalidArgument``, ``RuntimeMissing``, ``WallUnavailable``, ``RecordUnavailable``, ``SandboxClosed`` or
        ``Fault``. Cancelling ends the cell.
        """
        request = self._request(
            code, language=language, timeout=timeout, limits=limits, allowed_domains=allowed_domains,
            secrets=await self._held(secrets), env=env, files=files, stdin=stdin, metadata=metadata,
            program_name=program_name, arguments=arguments,
        )  # fmt: skip
        from casemate.execution import pipeline

        async with self._rooms.slot():
            self._rooms.check_open()
            return await pipeline.execute(request, self._rooms.house)

    async def stream(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the cell's, not the call's
        limits: Limits | None = None,
        allowed_domains: Sequence[str] | None = None,
        secrets: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Content] | None = None,
        stdin: str | bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
        program_name: str | None = None,
        arguments: Sequence[str] = (),
    ) -> AsyncGenerator[Event]:
        """Run ``code`` as :meth:`run` does, and give events as they happen; ``Done(execution)`` is always the last.

        Leaving the stream early ends the cell. A consumer that is slow makes the program wait when the
        pipes are full; nothing is lost and memory does not grow.
        """
        request = self._request(
            code, language=language, timeout=timeout, limits=limits, allowed_domains=allowed_domains,
            secrets=await self._held(secrets), env=env, files=files, stdin=stdin, metadata=metadata,
            program_name=program_name, arguments=arguments,
        )  # fmt: skip
        from casemate.execution import pipeline, stream

        async with self._rooms.slot():
            self._rooms.check_open()
            async with contextlib.aclosing(
                stream.events(partial(pipeline.execute, request, self._rooms.house))
            ) as happened:
                async for event in happened:
                    yield event

    def start(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        timeout: float | None = 60.0,
        limits: Limits | None = None,
        allowed_domains: Sequence[str] | None = None,
        secrets: Sequence[str] | Secrets = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Content] | None = None,
        stdin: str | bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
        program_name: str | None = None,
        arguments: Sequence[str] = (),
    ) -> Run:
        """Run ``code`` as :meth:`run` does, but go on when the caller goes away: the run is there to attach to, until
        the sandbox is closed. The arguments are those of :meth:`run`, and so is what it raises."""
        from casemate.api.background import start_run

        request = self._request(
            code, language=language, timeout=timeout, limits=limits, allowed_domains=allowed_domains,
            secrets=self._rooms.held(secrets), env=env, files=files, stdin=stdin, metadata=metadata,
            program_name=program_name, arguments=arguments,
        )  # fmt: skip
        return start_run(request, self._rooms)

    def session(
        self,
        language: str = "python",
        *,
        name: str | None = None,
        secrets: Sequence[str] | Secrets = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        allowed_domains: Sequence[str] | None = None,
        files: Mapping[str, Content] | None = None,
        cwd: str | None = None,
        restore_cwd: bool = False,
        idle_timeout: float | None = None,
        lifetime: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """A stateful interpreter in a cell of its own; it starts on first use.

        ``name``: unique among the open ones. ``env``, ``files``, ``limits``: as in :meth:`run`; ``limits.wall`` is the
        most that a step may take. ``cwd``: a folder of the workspace where its first step begins, with ``restore_cwd``
        every step. ``idle_timeout``, ``lifetime``: seconds without a step, or at all, after which it ends.

        Raises ``InvalidArgument``, ``RuntimeMissing`` and ``SandboxClosed``.
        """
        from casemate.sessions.interpreters import INTERPRETERS
        from casemate.sessions.session import Session
        from casemate.sessions.terms import SessionTerms

        given = {"language": language, "env": env, "files": files, "limits": limits, "metadata": metadata}
        doors = {"allowed_domains": allowed_domains, "secrets": self._rooms.held(secrets)}
        code = INTERPRETERS[runtime_for(language).language].program
        request = self._request(code, **{**_NOTHING_MORE, **given, **doors})
        terms = SessionTerms(
            name=name,
            admitted=self._rooms.house.admit(request, stream=False),
            cwd=checked_cwd(cwd),
            restore_cwd=restore_cwd,
            idle_timeout=check_timeout(idle_timeout, "idle_timeout"),
            lifetime=check_timeout(lifetime, "lifetime"),
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

    async def _held(self, names: object) -> Secrets:
        return await self.vault.resolved(names) if names not in _NONE else NO_SECRETS

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
                request = self._request(code, language=language, **_NOTHING_MORE)
                self._rooms.wall.keep_ready(pipeline.explain(request, self._rooms.house))

    async def close(self) -> None:
        """End every cell and everything this sandbox started. Bounded; harmless when repeated."""
        await self._rooms.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def _request(self, code: str | bytes, *, language: str, **given: Any) -> Request:
        """``given``: the other arguments of `make_request`."""
        self._rooms.check_open()
        house = self._rooms.house
        request = make_request(code, runtime=runtime_for(language), namespace=self._rooms.namespace, **given)
        if house.workspace is not None:
            checked_folder("workspace", house.workspace)  # it may have gone since
            check_files(request, house.workspace, house.workspace_mode)
        return request
