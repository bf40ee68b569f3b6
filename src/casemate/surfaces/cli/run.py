"""``casemate run``: one program in one cell, whose output and exit code casemate passes on."""

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
    from casemate.model.approval import ApprovalRequest, Decision
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.policy.policy import Policy
    from casemate.surfaces.cli.progress import Progress
    from casemate.surfaces.cli.terminal import Streams


def run(request: RunRequest) -> int:
    """Run ``casemate run``. Returns the exit code. Raises ``CasemateError``, which the JSON format also prints."""
    try:
        return _do(request)
    except CasemateError as error:
        if request.format == "json":
            from casemate.surfaces.cli.answers import print_json

            said = {"kind": error.kind, "message": error.message, "remediation": error.remediation}
            print_json({"status": "error", **said})  # no execution has this status
        raise


def _do(request: RunRequest) -> int:
    request = with_configuration(request)
    language = request.options.get("language") or language_of(request.script)
    if (environment := request.options.get("environment")) is not None:
        _check_environment(environment, language)
    arguments = run_arguments(request, language)
    declared = tuple(one for one in _packages_declared_in(arguments["code"], language) if one not in request.packages)
    asking = _Asking(request, declared)
    request = replace(request, packages=(*request.packages, *declared))
    given = sandbox_arguments(request)
    if request.packages and runtime_for(language).packages_of:  # for the Python that the cell's programs find
        import shutil

        given["environment"] = shutil.which("python3", path=SYSTEM_PATH)
    sandbox = Sandbox(**given, approve=asking.answer())
    if request.explain:
        return _explain(sandbox, request, arguments)
    sandbox.warm_up()
    from casemate.event_loop import run_in_loop
    from casemate.surfaces.cli.terminal import ReaderGone

    gc.freeze()  # all loaded objects live to the end
    gc.enable()
    try:
        return run_in_loop(_run(sandbox, request, arguments, asking))
    except _Terminated:
        return failures.TERMINATED
    except ReaderGone:
        return failures.READER_GONE


class _Asking:
    """Asks a person at the terminal for approvals. ``approve`` is None if no person can be asked. ``screen`` is held
    during a question, and for all other output."""

    def __init__(self, request: RunRequest, declared: tuple[str, ...]) -> None:
        """``declared``: packages that the program itself asks for, beyond those on the command line."""
        self.declared = declared
        self._is_answered = bool(request.packages) and not declared
        self.screen: AbstractAsyncContextManager[object] = nullcontext()
        self.approve: Callable[[ApprovalRequest], Awaitable[bool]] | None = None
        self.progress: Progress | None = None  # the bar that a question hides
        # Raw output could fake a question, and a program's standard input is not the person's.
        asks = declared or request.options.get("tools") or request.options.get("workspace_mode") == "review"
        self.refusal = "nobody is at a terminal to be asked" if asks else "casemate run does not ask about hosts"
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
        """Mark that all output before this request is shown."""
        self._reached[request.id].set()

    async def _ask(self, request: ApprovalRequest) -> bool:
        if self._is_streamed and request.kind != "package":  # packages are asked about before the program starts
            await self._reached[request.id].wait()
        with self.progress.hide() if self.progress else nullcontext():
            return await self._terminal.ask(request)

    def answer(self) -> Callable[[ApprovalRequest], Awaitable[bool | Decision]] | None:
        """The approver. If only the command line names packages, it allows these without asking: programs of ``casemate
        run`` cannot request packages while they run."""
        if not self._is_answered:
            return self.approve

        from casemate.model.approval import BY_RULE, Decision

        async def answer(request: ApprovalRequest) -> bool | Decision:
            if request.kind == "package":
                return True
            return (
                Decision(reason=f"{self.refusal}; {BY_RULE}") if self.approve is None else await self.approve(request)
            )

        return answer


def _packages_declared_in(code: bytes, language: str) -> tuple[str, ...]:
    if b"# /// script" not in code or runtime_for(language).default_name[-3:] != ".py":
        return ()
    from casemate.packages.requirement_files import in_script

    return in_script(code)


class _Terminated(Exception):
    """SIGTERM or SIGHUP came."""


def _check_environment(environment: str, language: str) -> None:
    """Raise ``InvalidArgument`` if the program would not use it."""
    if (known := runtime_for(language).language) != "python":
        raise InvalidArgument(
            "environment",
            f"{environment!r} would not be used: it is for Python programs, and this one is in {known}",
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
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores them
            loop.add_signal_handler(number, terminate)
    try:
        async with sandbox:
            with _progress(request) as progress:
                progress.wait("starting")
                await sandbox._wall.prove()
            await _install(sandbox, request, arguments["language"], asking)
            execution = await _execute(sandbox, request, arguments, asking)
    except asyncio.CancelledError:
        if terminated:
            raise _Terminated from None
        raise
    _say_outcome(execution, request, sandbox._where_bound)
    return failures.exit_code_of(execution)


def _progress(request: RunRequest) -> Progress:
    from casemate.surfaces.cli.progress import Progress

    return Progress(shows=request.format == "text")


async def _install(sandbox: Sandbox, request: RunRequest, language: str, asking: _Asking) -> None:
    if not request.packages:
        return
    from casemate.packages.names import requirements

    with _progress(request) as progress:
        progress.wait("installing")
        asking.progress = progress
        sandbox.packages.report = progress.bytes
        runtime, packages = runtime_for(language), sandbox.packages
        language = runtime.packages_of or runtime.language
        if language == "python" and not await packages.prepare():
            done = await packages.install_kept(requirements(request.packages))
        else:
            done = await packages.install(request.packages, language=language)
    if not done.ok:
        limits = dict.fromkeys(re.findall(r"limits\.[a-z_]+", done.reason))
        remedy = " or ".join(f"{failures.option_of(name)} raises {name}" for name in limits)
        raise (Denied if done.status == "denied" else Unavailable)(
            f"{', '.join(request.packages)} cannot be installed: {done.reason}",
            remediation=remedy or _how_to_allow(asking.declared, done.reason),
        )
    say(f"installed {', '.join(one.name for one in done.packages)}" if done.packages else EVERYTHING_THERE)


def _how_to_allow(declared: tuple[str, ...], reason: str) -> str:
    from shlex import quote

    from casemate.model.approval import BY_RULE

    if not declared or BY_RULE not in reason:
        return ""
    options = " ".join(f"--with {quote(one)}" for one in declared)
    rule = 'a rule for each package in the policy: {"allow": "package", "package": NAME}'
    return (
        f"The program asks for {', '.join(declared)} itself (# /// script). Allow that with {options}, or with {rule}"
    )


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
    # Imported late: they load while the cell starts.
    from casemate.model.approval import BY_RULE, ApprovalRequest
    from casemate.model.events import Display, Done, Output

    match event:
        case Output():
            async with asking.screen:
                await streams.output(event)
        case Display():
            async with asking.screen:
                await streams.result(event.result)
        case ApprovalRequest() if asking.approve is None:
            await event.deny(f"{asking.refusal}; {BY_RULE}")
        case ApprovalRequest():
            asking.reach(event)
        case Done():
            await streams.end()
            return event.execution
    return None


def _say_outcome(execution: Execution, request: RunRequest, where_bound: Callable[[str], str]) -> None:
    """Print casemate's notes on a run; none if it was ordinary."""
    unusual = (execution.cause, execution.skipped, execution.artifacts, execution.results, execution.full_output)
    if execution.ok and not any((*unusual, execution.crossings)):
        return
    from casemate.surfaces.cli.outcome import account, find_beside

    is_json, has_workspace = request.format == "json", request.options.get("workspace") is not None
    output = request.options.get("output_dir")
    told = account(execution, where_bound, output=output, has_workspace=has_workspace, is_json=is_json)
    for line in (*told, *find_beside(execution, os.path.dirname(request.script))):
        say(line)


def _explain(sandbox: Sandbox, request: RunRequest, arguments: dict[str, Any]) -> int:
    from casemate.surfaces.cli import interrupts
    from casemate.surfaces.cli.answers import print_json
    from casemate.surfaces.cli.plans import plan_document, plan_text

    document = plan_document(interrupts.run_in(sandbox, lambda sandbox: sandbox.explain(**arguments)))
    if request.format == "json":
        print_json(document)
    else:
        sys.stdout.write(plan_text(document) + "\n")
    return 0


_MAX_STDIN = (256 << 20) + 1
_MOST_NAME = 200  # characters, as in `casemate.api.options.Name`
_MAX_WAIT = 1.0  # seconds until casemate says what it is waiting for


@dataclass(frozen=True)
class RunRequest:
    script: str
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of the API, by name; None or empty if not given
    packages: tuple[str, ...] = ()
    explain: bool = False
    raw: bool = False
    format: Literal["text", "json"] = "text"
    settings: Settings | None = None  # the configuration

    @property
    def seconds(self) -> float:
        if (timeout := self.options.get("timeout")) is not None:
            return float(timeout)
        if self.settings is None:
            return USUAL_SECONDS
        limits = {**self.settings.policy.limits, **self.settings.limits}
        return float(min(self.settings.timeout, limits.get("wall", self.settings.timeout)))


def with_configuration(request: RunRequest) -> RunRequest:
    """The request with the configuration of files and variables. Raises ``InvalidArgument``."""
    if not is_configured(os.environ):  # the common case, and fast
        return request
    from casemate.api.settings import settings_of

    given = {name: request.options.get(name) for name in ("policy", "workspace")}
    settings = settings_of(os.environ, arguments=given)
    output = request.options.get("output_dir") or settings.value("output_dir")
    return replace(request, settings=settings, options={**request.options, "output_dir": output})


def sandbox_arguments(request: RunRequest) -> dict[str, Any]:
    """The arguments of the sandbox: the configuration, overridden by options. Raises ``InvalidArgument``."""
    said: dict[str, Any] = {"policy": request.options.get("policy")}
    wall = max(USUAL_SECONDS, request.seconds)
    limits: dict[str, Any] = {}
    if request.settings is not None:
        said, limits = request.settings.sandbox_arguments(os.environ), request.settings.limits
        if request.options.get("timeout") is not None and "wall" in limits:
            limits["wall"] = max(limits["wall"], request.seconds)
    from casemate.api.policy_options import policy_from

    policy = policy_from(said.get("policy"), request.options.get("workspace"))
    for warning in policy.unenforced:
        say(warning)
    chosen = {name: request.options.get(name) for name in SandboxOptions.__annotations__}
    chosen["allow_local"] = [_port(text) for text in chosen["allow_local"] or ()]
    if names := chosen["tools"]:
        from casemate.tools.files import choose_servers, users_file

        chosen["tools"] = choose_servers(users_file(os.environ), names)
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
        raise InvalidArgument("allow_local", f"{text!r} is not a port")
    return int(text)


def _may_reach_some(request: RunRequest, policy: Policy, said: Mapping[str, Any]) -> bool:
    """Whether any option or rule names hosts; otherwise there is no network."""
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
    """The arguments of the run. Reads the program and its standard input. Raises ``InvalidArgument``."""
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
    name = os.path.basename(script)
    why = problem(os.fsencode(name)) or (len(name) > _MOST_NAME and f"its name has more than {_MOST_NAME} characters")
    if script != "-" and why:
        say(f"tracebacks show the default name instead of {visible(name)}: {why}")
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
    """The program's standard input: the named file, or what is piped or redirected into casemate."""
    stdin = request.options.get("stdin")
    if stdin is None:
        return b"" if request.script == "-" or request.explain else _read_piped()
    if stdin != "-":
        return read_file("stdin", stdin, _MAX_STDIN)
    if request.script == "-":
        raise InvalidArgument("stdin", "standard input is the program itself; give a file")
    return read(0, _MAX_STDIN)


def _read_piped() -> bytes:
    """The content of a pipe, a socket or a file; terminals and /dev/null are not read."""
    mode = os.fstat(0).st_mode
    if stat.S_ISREG(mode):
        return read(0, _MAX_STDIN)
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return b""
    if not select.select([0], [], [], _MAX_WAIT)[0]:
        say("waiting for the end of standard input; '--stdin /dev/null' gives the program an empty one")
    return read(0, _MAX_STDIN)
