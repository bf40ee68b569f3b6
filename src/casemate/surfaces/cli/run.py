"""``casemate run``: one program in one cell, its output as casemate's own, its exit code too."""

from __future__ import annotations

import gc
import os
import re
import select
import signal
import stat
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from casemate.api.config_files import is_configured
from casemate.api.options import SandboxOptions
from casemate.api.sandbox import Sandbox
from casemate.errors import CasemateError, Denied, InvalidArgument, Unavailable
from casemate.files.names import problem
from casemate.languages.catalogue import runtime_for
from casemate.languages.runtime import SYSTEM_PATH
from casemate.model.call_options import USUAL_SECONDS
from casemate.model.limits import Limits
from casemate.surfaces.cli import failures
from casemate.surfaces.cli.failures import EVERYTHING_THERE, say
from casemate.surfaces.cli.inputs import env_of, given_limits, language_of, program_in, read, read_file
from casemate.visible import visible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from casemate.api.settings import Settings
    from casemate.model.approval import ApprovalRequest
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.policy.policy import Policy
    from casemate.surfaces.cli.progress import Progress
    from casemate.surfaces.cli.terminal import Streams


def run(request: RunRequest) -> int:
    """Do what ``casemate run`` was asked to do; the exit code. Raises ``CasemateError``, and as JSON tells it too."""
    try:
        return _do(request)
    except CasemateError as error:
        if request.format == "json":
            from casemate.surfaces.cli.answers import print_error

            print_error(error)
        raise


def _do(request: RunRequest) -> int:
    request = with_configuration(request)
    language = request.options.get("language") or language_of(request.script)
    if (environment := request.options.get("environment")) is not None:
        _check_environment(environment, language)
    arguments = run_arguments(request, language)
    declared = _packages_declared_in(arguments["code"], language)
    asking = _Asking(request, declared)
    request = replace(request, packages=(*request.packages, *declared))
    given = sandbox_arguments(request)
    if request.packages and runtime_for(language).packages_of:  # for the Python that its programs find
        import shutil

        given["environment"] = shutil.which("python3", path=SYSTEM_PATH)
    sandbox = Sandbox(**given, approve=asking.answer())
    if request.explain:
        return _explain(sandbox, request, language)
    sandbox.warm_up()
    from casemate.event_loop import run_in_loop
    from casemate.surfaces.cli.terminal import ReaderGone

    gc.freeze()  # what was loaded so far lives to the end
    gc.enable()
    try:
        return run_in_loop(_run(sandbox, request, arguments, asking))
    except _Terminated:
        return failures.TERMINATED
    except ReaderGone:
        return failures.READER_GONE


class _Asking:
    """Whoever is asked what a program may do. ``approve``: None where nobody is; ``screen``: held while somebody is,
    and by whatever else is written."""

    def __init__(self, request: RunRequest, declared: tuple[str, ...]) -> None:
        """``declared``: the packages that the program itself asks for."""
        self._is_answered = bool(request.packages) and not declared
        self.screen: AbstractAsyncContextManager[object] = nullcontext()
        self.approve: Callable[[ApprovalRequest], Awaitable[bool]] | None = None
        # A program whose bytes the terminal obeys could change what is shown; and its input is no answer.
        asks = declared or request.options.get("tools") or request.options.get("workspace_mode") == "review"
        if not asks or request.raw or "-" in (request.script, request.options.get("stdin")):
            return
        from casemate.surfaces.cli.terminal import Terminal, somebody_is_there

        if somebody_is_there():
            import asyncio
            from collections import defaultdict

            lock = self.screen = asyncio.Lock()
            self._terminal = Terminal(lock)
            self._is_streamed = request.format == "text"
            self._reached: dict[str, asyncio.Event] = defaultdict(asyncio.Event)  # by the id of the request
            self.approve = self._ask

    def reach(self, request: ApprovalRequest) -> None:
        """All that the program wrote before this request is shown."""
        self._reached[request.id].set()

    async def _ask(self, request: ApprovalRequest) -> bool:
        if self._is_streamed and request.kind != "package":  # which is asked before it begins
            await self._reached[request.id].wait()
        return await self._terminal.ask(request)

    def answer(self) -> Callable[[ApprovalRequest], Awaitable[bool]] | None:
        """The same, where packages are asked for on the command line alone: which is the answer about these. A program
        of ``casemate run`` can ask for none while it runs: packages come into sessions, or ahead."""
        if not self._is_answered:
            return self.approve

        async def answer(request: ApprovalRequest) -> bool:
            return request.kind == "package" or (self.approve is not None and await self.approve(request))

        return answer


def _packages_declared_in(code: bytes, language: str) -> tuple[str, ...]:
    """The packages that a Python program asks for itself. Raises ``InvalidArgument``."""
    if b"# /// script" not in code or runtime_for(language).default_name[-3:] != ".py":
        return ()
    from casemate.packages.requirement_files import in_script

    return in_script(code)


class _Terminated(Exception):
    """Somebody sent SIGTERM or SIGHUP."""


def _check_environment(environment: str, language: str) -> None:
    """Raises ``InvalidArgument`` where the program is none that would run in it."""
    from casemate.languages.catalogue import runtime_for

    if (known := runtime_for(language).language) != "python":
        raise InvalidArgument(
            "environment",
            f"{environment!r} would not be used: it is for programs in Python, and this one is in {known}",
            remediation="Leave --environment out.",
        )


async def _run(sandbox: Sandbox, request: RunRequest, arguments: dict[str, Any], asking: _Asking) -> int:
    import asyncio

    task = asyncio.current_task()
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        if task:
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has them ignored
            loop.add_signal_handler(number, terminate)
    try:
        async with sandbox:
            with _progress(request) as progress:
                progress.wait("starting")
                await sandbox._parts.wall.prove()
            await _install(sandbox, request, arguments["language"])
            execution = await _execute(sandbox, request, arguments, asking)
    except asyncio.CancelledError:
        if terminated:
            raise _Terminated from None
        raise
    _say_outcome(execution, request)
    return failures.exit_code_of(execution)


def _progress(request: RunRequest) -> Progress:
    from casemate.surfaces.cli.progress import Progress

    return Progress(shows=request.format == "text")


async def _install(sandbox: Sandbox, request: RunRequest, language: str) -> None:
    """Install the packages that were asked for. Raises ``Denied`` or ``Unavailable``."""
    if not request.packages:
        return
    from casemate.packages.names import requirements

    with _progress(request) as progress:
        progress.wait("installing")
        sandbox.packages.report = progress.bytes
        runtime, packages = runtime_for(language), sandbox.packages
        language = runtime.packages_of or runtime.language
        if language == "python" and not await packages.prepare():
            done = await packages.install_kept(requirements(request.packages))
        else:
            done = await packages.install(request.packages, language=language)
    if not done.ok:
        limits = dict.fromkeys(re.findall(r"limits\.[a-z_]+", done.reason))
        raise (Denied if done.status == "denied" else Unavailable)(
            f"{', '.join(request.packages)} cannot be installed: {done.reason}",
            remediation=" or ".join(f"{failures.option_of(name)} raises {name}" for name in limits),
        )
    say(f"installed {', '.join(one.name for one in done.packages)}" if done.packages else EVERYTHING_THERE)


async def _execute(sandbox: Sandbox, request: RunRequest, arguments: dict[str, Any], asking: _Asking) -> Execution:
    if request.format == "text":
        return await _stream(sandbox, request, arguments, asking)
    execution = await sandbox.run(**arguments)
    from casemate.operations.documents import document
    from casemate.surfaces.cli.answers import print_json

    print_json(document(execution))
    return execution


async def _stream(sandbox: Sandbox, request: RunRequest, arguments: dict[str, Any], asking: _Asking) -> Execution:
    from contextlib import aclosing

    from casemate.surfaces.cli.terminal import Streams

    streams = Streams(raw=request.raw)
    async with aclosing(sandbox.stream(**arguments)) as events:
        with _progress(request) as progress:
            progress.wait("running")
            first = await anext(events)
        if execution := await _show(first, streams, asking):
            return execution
        async for event in events:
            if execution := await _show(event, streams, asking):
                return execution
    raise AssertionError("a stream ends with Done")


async def _show(event: Event, streams: Streams, asking: _Asking) -> Execution | None:
    """Print what is to be seen of it; the execution when it is over."""
    # Not before there is one: they load while the cell starts.
    from casemate.model.approval import ApprovalRequest
    from casemate.model.events import Display, Done, Output

    match event:
        case Output():
            async with asking.screen:
                await streams.output(event)
        case Display():
            async with asking.screen:
                await streams.result(event.result)
        case ApprovalRequest() if asking.approve is None:
            await event.deny("nobody is at a terminal to be asked; a rule of --policy can allow it")
        case ApprovalRequest():
            asking.reach(event)
        case Done():
            await streams.end()
            return event.execution
    return None


def _say_outcome(execution: Execution, request: RunRequest) -> None:
    """What casemate itself has to say of a run: nothing, when there was nothing out of the ordinary."""
    unusual = (execution.cause, execution.skipped, execution.artifacts, execution.results, execution.full_output)
    if execution.ok and not any((*unusual, execution.crossings)):
        return
    from casemate.surfaces.cli.outcome import account

    is_json, has_workspace = request.format == "json", request.options.get("workspace") is not None
    for line in account(
        execution, output=request.options.get("output_dir"), has_workspace=has_workspace, is_json=is_json
    ):
        say(line)


def _explain(sandbox: Sandbox, request: RunRequest, language: str) -> int:
    from casemate.surfaces.cli import interrupts
    from casemate.surfaces.cli.answers import print_json
    from casemate.surfaces.cli.plans import plan_document, plan_text

    arguments = run_arguments(request, language)
    document = plan_document(interrupts.run_in(sandbox, lambda sandbox: sandbox.explain(**arguments)))
    if request.format == "json":
        print_json(document)
    else:
        sys.stdout.write(plan_text(document) + "\n")
    return 0


_MAX_STDIN = (256 << 20) + 1
_MOST_NAME = 200  # characters, as `casemate.api.options.Name` has it
_MAX_WAIT = 1.0  # seconds until casemate says what it is waiting for


@dataclass(frozen=True)
class RunRequest:
    """``casemate run`` as it was asked for. ``options``: those of the API by their names, None or empty where they are
    not given; ``settings``: what is configured besides."""

    script: str
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    explain: bool = False
    raw: bool = False
    format: Literal["text", "json"] = "text"
    settings: Settings | None = None

    @property
    def seconds(self) -> float:
        """How long the program may run."""
        if (timeout := self.options.get("timeout")) is not None:
            return float(timeout)
        if self.settings is None:
            return USUAL_SECONDS
        limits = {**self.settings.policy.limits, **self.settings.limits}
        return float(min(self.settings.timeout, limits.get("wall", self.settings.timeout)))


def with_configuration(request: RunRequest) -> RunRequest:
    """The options, with what a file and variables say about the same. Raises ``InvalidArgument``."""
    if not is_configured(os.environ):  # which is the rule, and quick
        return request
    from casemate.api.settings import settings_of

    settings = settings_of(os.environ, arguments={"policy": request.options.get("policy")})
    output = request.options.get("output_dir") or settings.value("output_dir")
    return replace(request, settings=settings, options={**request.options, "output_dir": output})


def sandbox_arguments(request: RunRequest) -> dict[str, Any]:
    """What the sandbox is made with: what is configured, and the options over it. Raises ``InvalidArgument``."""
    said: dict[str, Any] = {"policy": request.options.get("policy")}
    wall = max(USUAL_SECONDS, request.seconds)
    limits: dict[str, Any] = {}
    if request.settings is not None:
        said, limits = request.settings.sandbox_arguments(os.environ), request.settings.limits
        if request.options.get("timeout") is not None and "wall" in limits:
            limits["wall"] = max(limits["wall"], request.seconds)
    from casemate.api.policy_options import policy_from

    policy = policy_from(said.get("policy"), request.options.get("workspace"))
    for warning in policy.warnings:
        say(warning)
    chosen = {name: request.options.get(name) for name in SandboxOptions.__annotations__}
    chosen["allow_local"] = [_port(text) for text in chosen["allow_local"] or ()]
    if names := chosen["tools"]:
        from casemate.tools.files import users_servers

        chosen["tools"] = users_servers(os.environ, names)
    vault = None
    if request.options.get("secrets") or names:
        from casemate.vault.vault import users_store

        vault = users_store(os.environ)
    return {
        "network": None if request.packages or _may_reach_some(request, policy, said) else "none",
        "vault": vault,
        **said,
        **{name: value for name, value in chosen.items() if value not in (None, (), [])},
        "limits": Limits(**{"wall": wall, **policy.limits, **limits, **given_limits(request.options)}),
        "policy": policy,
    }


def _port(text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument("allow_local", f"{text!r} is no port")
    return int(text)


def _may_reach_some(request: RunRequest, policy: Policy, said: Mapping[str, Any]) -> bool:
    """Whether anybody said which hosts may be reached: else there is no network."""
    if (
        request.options.get("policy")
        or request.options.get("allowed_domains")
        or request.options.get("allow_local")
        or said.get("allowed_domains")
        or said.get("allow_local")
    ):
        return True
    asked = policy.written.written if policy.written else ()
    return bool(policy.network or policy.allowed or policy.local_ports) or any(one.kind == "egress" for one in asked)


def run_arguments(request: RunRequest, language: str) -> dict[str, Any]:
    """The program and everything it is run with; reads the files it comes from. Raises ``InvalidArgument``."""
    option = request.options.get
    return {
        "code": program_in(request.script),
        "language": language,
        "timeout": request.seconds,
        "env": env_of(option("env", ())),
        "secrets": option("secrets", ()),
        "files": _files(option("files", ())),
        "stdin": _stdin(request),
        "program_name": _program_name(request.script),
        "arguments": request.arguments,
    }


def _program_name(script: str) -> str | None:
    """The name of the program's file, where it can have it in the cell, too."""
    name = os.path.basename(script)
    why = problem(os.fsencode(name)) or (len(name) > _MOST_NAME and f"its name has more than {_MOST_NAME} characters")
    if script != "-" and why:
        say(f"tracebacks show the usual name instead of {visible(name)}: {why}")
    return None if script == "-" or why else name


def _files(chosen: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for one in chosen:
        name, equals, path = one.partition("=")
        if not equals:
            name, path = os.path.basename(one), one
        if not name or not path:
            raise InvalidArgument("files", f"{one!r} is neither a path nor NAME=PATH")
        if name in files:
            raise InvalidArgument("files", f"{name!r} is given twice; name one of them: --file OTHER={path}")
        files[name] = Path(path)
    return files


def _stdin(request: RunRequest) -> bytes:
    """The program's standard input: the file that was named, else what is piped or redirected into casemate."""
    stdin = request.options.get("stdin")
    if stdin is None:
        return b"" if request.script == "-" or request.explain else _read_piped()
    if stdin != "-":
        return read_file("stdin", stdin, _MAX_STDIN)
    if request.script == "-":
        raise InvalidArgument("stdin", "standard input is the program itself; give a file")
    return read(0, _MAX_STDIN)


def _read_piped() -> bytes:
    """All of a pipe, a socket or a file; a terminal and /dev/null are not read."""
    mode = os.fstat(0).st_mode
    if stat.S_ISREG(mode):
        return read(0, _MAX_STDIN)
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return b""
    if not select.select([0], [], [], _MAX_WAIT)[0]:
        say("waiting for the end of standard input; '--stdin /dev/null' gives the program an empty one")
    return read(0, _MAX_STDIN)
