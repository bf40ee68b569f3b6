"""The facade, and where the rooms are put together."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from casemate import __version__
from casemate.audit.log import AuditLog, default_path
from casemate.errors import InvalidArgument, SandboxClosed, Unavailable, WallUnavailable
from casemate.execution.house import House
from casemate.execution.request import Content, check_name, check_timeout, make_request
from casemate.isolation.native.wall import NativeWall
from casemate.model.limits import Limits
from casemate.runtimes.catalogue import RUNTIMES, language_of, runtime_for

if TYPE_CHECKING:
    import asyncio

    from casemate.model.diagnosis import Diagnosis
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.plan import Launch, Plan
    from casemate.model.request import Request
    from casemate.runtimes.runtime import Environment

_DEFAULT_CONCURRENCY = 16  # cells at once where the caller sets no number
_WALLS = ("native",)
_DOORS_LATER = "this version has no door through the wall yet: cells have no network, secrets or approvals"
_MAX_NAMESPACE = 200  # characters


class Sandbox:
    """Runs code that nobody has read, each program in a cell of its own.

    It starts on first use; ``async with`` only makes sure of :meth:`close`. Use one sandbox in one
    event loop; ``casemate.sync.Sandbox`` is the same for scripts and notebooks.

    ``workspace``: None gives each run a private one; a folder is seen through an overlay and what a
    run changed is written back when it ends. ``workspace_mode``: ``"overlay"`` or ``"direct"``.
    ``output_dir``: a folder that artifacts are copied to. ``environment``: None for the interpreter and packages
    that casemate runs on, or the path of a virtual environment or interpreter. ``isolation``: ``"auto"`` for the
    strongest wall that its self-test proves, or a wall's name. ``limits``: the most any run may use.
    ``audit``: path of the record, by default in the user's state folder. ``concurrency``: cells at once.

    Raises :class:`casemate.InvalidArgument` naming the argument, and :class:`casemate.Unavailable` for what
    this version or machine cannot do.
    """

    def __init__(
        self,
        *,
        workspace: str | os.PathLike[str] | None = None,
        workspace_mode: Literal["overlay", "direct"] = "overlay",
        output_dir: str | os.PathLike[str] | None = None,
        environment: Environment = None,
        preload: Sequence[str] | None = None,
        isolation: str = "auto",
        policy: object = None,
        network: Literal["none", "listed", "public"] = "listed",
        allowed_domains: Sequence[str] = (),
        limits: Limits | None = None,
        approve: Callable[..., Any] | None = None,
        approval_timeout: float = 300.0,
        vault: object = None,
        audit: str | os.PathLike[str] | None = None,
        namespace: str = "default",
        concurrency: int | None = None,
    ) -> None:
        _check_later(policy=policy, vault=vault, network=network, allowed_domains=allowed_domains)
        _check_choice("isolation", isolation, ("auto", *_WALLS))
        _check_choice("workspace_mode", workspace_mode, ("overlay", "direct"))
        if approve is not None and not callable(approve):
            raise InvalidArgument("approve", f"{approve!r} cannot be called")
        self._workspace = _checked_folder("workspace", workspace)
        output_dir = _checked_output_dir(output_dir)
        if workspace_mode == "direct" and _lies_within(output_dir, workspace):
            raise InvalidArgument(
                "output_dir", "may not lie in a workspace that is written through; give another folder"
            )
        check_timeout(approval_timeout, "approval_timeout")
        _check_preload(preload)
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidArgument("limits", f"{limits!r} is not a casemate.Limits")
        if (
            not isinstance(namespace, str)
            or not namespace
            or len(namespace) > _MAX_NAMESPACE
            or not _is_sound(namespace)
        ):
            raise InvalidArgument("namespace", f"{namespace!r} is not a name of 1 to {_MAX_NAMESPACE} characters")
        self._namespace = namespace
        self._concurrency = _checked_concurrency(concurrency)
        self._wall = NativeWall(_launch_probe)
        self._log = AuditLog(_checked_path("audit", audit) if audit is not None else default_path(os.environ))
        self._house = House(
            wall=self._wall,
            log=self._log,
            limits=limits or Limits(),
            runtime_for=runtime_for,
            environment=environment,
            workspace=self._workspace,
            workspace_mode=workspace_mode,
            output_dir=output_dir,
        )
        self._slots: asyncio.Semaphore | None = None
        self._closed = False

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
        ``files``: name to content (``bytes`` or ``str``) or to a ``Path``, put into the workspace. ``stdin``: the
        program's standard input. ``metadata``: carried along. ``program_name``: the file name that tracebacks
        show; ``arguments``: the program's command line.

        A failing program, a limit and a timeout are values of :class:`casemate.Execution`. Raises
        ``InvalidArgument``, ``RuntimeMissing``, ``WallUnavailable``, ``RecordUnavailable``, ``SandboxClosed`` or
        ``Fault``. Cancelling ends the cell.
        """
        request = self._request(
            code,
            language,
            timeout,
            limits,
            allowed_domains,
            secrets,
            env,
            files,
            stdin,
            metadata,
            program_name,
            arguments,
        )
        from casemate.execution import pipeline

        async with self._slot():
            self._check_open()
            return await pipeline.execute(request, self._house)

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
            code,
            language,
            timeout,
            limits,
            allowed_domains,
            secrets,
            env,
            files,
            stdin,
            metadata,
            program_name,
            arguments,
        )
        async with self._slot():
            self._check_open()
            async with contextlib.aclosing(_events(request, self._house)) as events:
                async for event in events:
                    yield event

    async def explain(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        timeout: float | None = 60.0,  # noqa: ASYNC109
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Content] | None = None,
        stdin: str | bytes | None = None,
        program_name: str | None = None,
        arguments: Sequence[str] = (),
    ) -> Plan:
        """The plan of a run with these arguments of :meth:`run`, as data. Nothing is started."""
        request = self._request(
            code, language, timeout, limits, None, (), env, files, stdin, None, program_name, arguments
        )
        from casemate.execution import pipeline

        return pipeline.explain(request, self._house)

    async def doctor(self) -> Diagnosis:
        """What this machine offers, as proved by the self-tests. Raises nothing for what is missing."""
        import platform

        from casemate.model.diagnosis import Diagnosis, LanguageState, WallState

        walls = []
        try:
            walls.append(WallState(self._wall.name, await self._wall.prove()))
        except WallUnavailable as error:
            walls.append(WallState(self._wall.name, None, error.reason, error.message, error.remediation))
        found = [runtime.installed() for runtime in RUNTIMES]
        languages = tuple(LanguageState(one.language, one.version, one.path, one.missing, one.remedy) for one in found)
        system = f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
        advice = [one.remedy for one in languages if one.missing]
        for wall in walls:
            advice += wall.report.missing if wall.report else [wall.remedy]
        return Diagnosis(__version__, system, tuple(walls), languages, tuple(line for line in advice if line))

    @staticmethod
    def language_of(file_name: str) -> str | None:
        """The language of a program by its file's ending, or None."""
        return language_of(file_name)

    def warm_up(self) -> None:
        """Start what the first run needs, without waiting for it."""
        self._wall.warm_up()

    async def close(self) -> None:
        """End every cell and everything this sandbox started. Bounded; harmless when repeated."""
        self._closed = True
        await self._wall.close()
        self._log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _slot(self) -> asyncio.Semaphore:
        """One of the cells that may run at once. asyncio loads while the supervisor starts, so not before."""
        import asyncio

        if self._slots is None:
            self._slots = asyncio.Semaphore(self._concurrency)
        return self._slots

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosed("the sandbox was closed")

    def _request(
        self,
        code: str | bytes,
        language: str,
        timeout: float | None,
        limits: Limits | None,
        allowed_domains: Sequence[str] | None,
        secrets: Sequence[str],
        env: Mapping[str, str] | None,
        files: Mapping[str, Content] | None,
        stdin: str | bytes | None,
        metadata: Mapping[str, Any] | None,
        program_name: str | None,
        arguments: Sequence[str],
    ) -> Request:
        self._check_open()
        _check_later(allowed_domains=allowed_domains, secrets=secrets)
        request = make_request(
            code,
            runtime=runtime_for(language),
            program_name=program_name,
            arguments=arguments,
            timeout=timeout,
            limits=limits,
            env=env,
            files=files,
            stdin=stdin,
            namespace=self._namespace,
            metadata=metadata,
        )
        if self._workspace is not None:
            _checked_folder("workspace", self._workspace)  # it may have gone since
            self._check_files(request, self._workspace)
        return request

    def _check_files(self, request: Request, workspace: Path) -> None:
        """Given files must not lie over the caller's own."""
        if request.files and self._house.workspace_mode == "direct":
            raise InvalidArgument("files", "cannot be given with workspace_mode='direct'; write them into the folder")
        for name in request.files:
            check_name(name)
            if os.path.lexists(workspace / name):
                raise InvalidArgument("files", f"{name!r} exists in the workspace; give it another name")
            for parent in list(Path(name).parents)[:-1]:
                if os.path.lexists(workspace / parent) and not (workspace / parent).is_dir():
                    raise InvalidArgument("files", f"{name!r}: {str(parent)!r} in the workspace is no folder")


async def _events(request: Request, house: House) -> AsyncGenerator[Event]:
    """Events of one execution, whose task ends when the consumer leaves."""
    import asyncio

    from casemate.execution import pipeline
    from casemate.execution.emitter import Emitter

    emitter = Emitter()
    # The task is this generator's own: awaited or cancelled below, whatever happens.
    task = asyncio.ensure_future(pipeline.execute(request, house, emitter))  # noqa: TID251
    task.add_done_callback(lambda _: emitter.close())
    try:
        async for event in emitter.events():
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


def _launch_probe(name: str, arguments: tuple[str, ...]) -> Launch:
    """The self-test runs on the interpreter that casemate runs on."""
    return runtime_for("python").launch(None, name, arguments)


def _check_later(**given: object) -> None:
    """Arguments of doors that do not exist yet: their defaults are fine, anything else is an honest no."""
    for name, value in given.items():
        if name == "network":
            _check_choice(name, value, ("none", "listed", "public"))
        if value in (None, (), [], "none", "listed"):
            continue
        raise Unavailable(f"{name}: {_DOORS_LATER}", remediation=f"Leave {name} out.")


def _is_sound(text: str) -> bool:
    """Whether text can be encoded: it holds no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _check_preload(preload: Sequence[str] | None) -> None:
    """Modules that warm cells have loaded. Every cell starts cold in this version, so nothing is loaded ahead."""
    if preload is not None and (isinstance(preload, str) or not all(isinstance(name, str) for name in preload)):
        raise InvalidArgument("preload", f"{preload!r} is not a list of names of modules")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise InvalidArgument(name, f"{value!r} is not known; choose one of {known}")


def _lies_within(folder: str | os.PathLike[str] | None, other: str | os.PathLike[str] | None) -> bool:
    if folder is None or other is None:
        return False
    return Path(folder).expanduser().resolve().is_relative_to(Path(other).expanduser().resolve())


def _checked_path(name: str, path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(os.fspath(path)):
        raise InvalidArgument(name, f"{path!r} is not a path")
    return Path(path).expanduser().absolute()


def _checked_output_dir(folder: str | os.PathLike[str] | None) -> Path | None:
    if folder is None:
        return None
    path = _checked_path("output_dir", folder)
    if path.exists() and not path.is_dir():
        raise InvalidArgument("output_dir", f"{str(path)!r} is not a folder")
    return path


def _checked_folder(name: str, folder: str | os.PathLike[str] | None) -> Path | None:
    if folder is None:
        return None
    path = _checked_path(name, folder)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidArgument(name, f"{str(path)!r}: {error.strerror}; give a folder that exists") from None
    if not stat.S_ISDIR(mode):
        raise InvalidArgument(name, f"{str(path)!r} is not a folder")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidArgument(name, f"{str(path)!r} is not writable; give a folder that you may read and write")
    return path


def _checked_concurrency(concurrency: int | None) -> int:
    if concurrency is None:
        return _DEFAULT_CONCURRENCY
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= 10_000:
        raise InvalidArgument("concurrency", f"{concurrency!r} is not a whole number from 1 to 10000")
    return concurrency
