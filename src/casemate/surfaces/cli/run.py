"""``casemate run``: one program in one cell, its output as casemate's own, its exit code too."""

from __future__ import annotations

import gc
import os
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
from casemate.errors import CasemateError, InvalidArgument
from casemate.model.limits import Limits
from casemate.surfaces.cli import failures
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.inputs import env_of, given_limits, program_in, read, read_file, users_vault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from casemate.api.settings import Settings
    from casemate.model.approval import ApprovalRequest
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.policy.policy import Policy
    from casemate.surfaces.cli.terminal import Streams


def run(options: RunRequest) -> int:
    """Do what ``casemate run`` was asked to do; the exit code. Raises ``CasemateError``, and as JSON tells it too."""
    try:
        return _do(options)
    except CasemateError as error:
        if options.format == "json":
            from casemate.surfaces.cli.answers import print_error

            print_error(error)
        raise


def _do(options: RunRequest) -> int:
    options = with_configuration(options)
    language = options.given.get("language") or ("python" if options.script == "-" else _language_of(options.script))
    if (environment := options.given.get("environment")) is not None:
        _check_environment(environment, language)
    asking = _Asking(options)
    sandbox = Sandbox(**sandbox_arguments(options), approve=asking.approve)
    if options.explain:
        return _explain(sandbox, options, language)
    sandbox.warm_up()
    arguments = run_arguments(options, language)
    import asyncio

    from casemate.surfaces.cli.terminal import ReaderGone

    gc.freeze()  # what was loaded so far lives to the end
    gc.enable()
    try:
        return asyncio.run(_run(sandbox, options, arguments, asking))
    except _Terminated:
        return failures.TERMINATED
    except ReaderGone:
        return failures.READER_GONE


class _Asking:
    """Whoever is asked what a program may do. ``approve``: None where nobody is; ``screen``: held while somebody is,
    and by whatever else is written."""

    def __init__(self, options: RunRequest) -> None:
        self.screen: AbstractAsyncContextManager[object] = nullcontext()
        self.approve: Callable[[ApprovalRequest], Awaitable[bool]] | None = None
        # A program whose bytes the terminal obeys could change what is shown; and its input is no answer.
        if not options.given.get("tools") or options.raw or "-" in (options.script, options.given.get("stdin")):
            return
        from casemate.surfaces.cli.terminal import Terminal, somebody_is_there

        if somebody_is_there():
            import asyncio

            lock = self.screen = asyncio.Lock()
            self.approve = Terminal(lock).ask


class _Terminated(Exception):
    """Somebody sent SIGTERM or SIGHUP."""


def _language_of(script: str) -> str:
    language = Sandbox.language_of(script)
    if language is None:
        raise InvalidArgument("language", f"cannot be told from the name of {script!r}; give --language NAME")
    return language


def _check_environment(environment: str, language: str) -> None:
    """Raises ``InvalidArgument`` where the program is none that would run in it."""
    from casemate.languages.catalogue import runtime_for

    if (known := runtime_for(language).language) != "python":
        raise InvalidArgument(
            "environment",
            f"{environment!r} would not be used: it is for programs in Python, and this one is in {known}",
            remediation="Leave --environment out.",
        )


async def _run(sandbox: Sandbox, options: RunRequest, arguments: dict[str, Any], asking: _Asking) -> int:
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
            execution = await _execute(sandbox, options, arguments, asking)
    except asyncio.CancelledError:
        if terminated:
            raise _Terminated from None
        raise
    _tell(execution, options)
    return failures.exit_code_of(execution)


async def _execute(sandbox: Sandbox, options: RunRequest, arguments: dict[str, Any], asking: _Asking) -> Execution:
    if options.format == "text":
        return await _stream(sandbox, options, arguments, asking)
    execution = await sandbox.run(**arguments)
    from casemate.operations.documents import document
    from casemate.surfaces.cli.answers import print_json

    print_json(document(execution))
    return execution


async def _stream(sandbox: Sandbox, options: RunRequest, arguments: dict[str, Any], asking: _Asking) -> Execution:
    from contextlib import aclosing

    from casemate.surfaces.cli.terminal import Streams

    streams = Streams(raw=options.raw)
    async with aclosing(sandbox.stream(**arguments)) as events:
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
            await event.deny("casemate run asks nobody")
        case Done():
            await streams.end()
            return event.execution
    return None


def _tell(execution: Execution, options: RunRequest) -> None:
    """What casemate itself has to say of a run: nothing, when there was nothing out of the ordinary."""
    unusual = (execution.cause, execution.skipped, execution.artifacts, execution.results, execution.full_output)
    if not any((*unusual, execution.crossings, execution.error)):
        return
    from casemate.surfaces.cli.outcome import account

    is_json, has_workspace = options.format == "json", options.given.get("workspace") is not None
    for line in account(
        execution, output=options.given.get("output_dir"), has_workspace=has_workspace, is_json=is_json
    ):
        say(line)


def _explain(sandbox: Sandbox, options: RunRequest, language: str) -> int:
    from casemate.surfaces.cli import interrupts
    from casemate.surfaces.cli.answers import print_json
    from casemate.surfaces.cli.plans import plan_document, plan_text

    arguments = run_arguments(options, language)
    document = plan_document(interrupts.run_in(sandbox, lambda sandbox: sandbox.explain(**arguments)))
    if options.format == "json":
        print_json(document)
    else:
        sys.stdout.write(plan_text(document) + "\n")
    return 0


_MAX_STDIN = (256 << 20) + 1
_MAX_WAIT = 1.0  # seconds until casemate says what it is waiting for
_DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class RunRequest:
    """``casemate run`` as it was asked for. ``given``: options of the API by their names, None or empty where they are
    not given; ``settings``: what is configured besides."""

    script: str
    arguments: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
    raw: bool = False
    format: Literal["text", "json"] = "text"
    settings: Settings | None = None

    @property
    def seconds(self) -> float:
        """How long the program may run."""
        if (timeout := self.given.get("timeout")) is not None:
            return float(timeout)
        return _DEFAULT_TIMEOUT if self.settings is None else self.settings.timeout


def with_configuration(options: RunRequest) -> RunRequest:
    """The options, with what a file and variables say about the same. Raises ``InvalidArgument``."""
    if not is_configured(os.environ):  # which is the rule, and quick
        return options
    from casemate.api.settings import settings_of

    settings = settings_of(os.environ, arguments={"policy": options.given.get("policy")})
    output = options.given.get("output_dir") or settings.value("output_dir")
    return replace(options, settings=settings, given={**options.given, "output_dir": output})


def sandbox_arguments(options: RunRequest) -> dict[str, Any]:
    """What the sandbox is made with: what is configured, and the options over it. Raises ``InvalidArgument``."""
    said: dict[str, Any] = {"policy": options.given.get("policy")}
    wall = max(_DEFAULT_TIMEOUT, options.seconds)
    limits: dict[str, Any] = {}
    if options.settings is not None:
        said, limits = options.settings.sandbox_arguments(os.environ), options.settings.limits
        if options.given.get("timeout") is not None and "wall" in limits:
            limits["wall"] = max(limits["wall"], options.seconds)
    from casemate.api.policy_options import policy_from

    policy = policy_from(said.get("policy"))
    for warning in policy.warnings:
        say(warning)
    given = {name: options.given.get(name) for name in SandboxOptions.__annotations__}
    given["tools"] = _servers(given["tools"])
    return {
        "network": None if _may_reach_some(options, policy, said) else "none",
        "vault": users_vault() if options.given.get("secrets") or given["tools"] else None,
        **said,
        **{name: value for name, value in given.items() if value not in (None, ())},
        "limits": Limits(**{"wall": wall, **policy.limits, **limits, **given_limits(options.given)}),
        "policy": policy,
    }


def _may_reach_some(options: RunRequest, policy: Policy, said: Mapping[str, Any]) -> bool:
    """Whether anybody said which hosts may be reached: else there is no network."""
    if (
        options.given.get("policy")
        or options.given.get("allowed_domains")
        or said.get("allowed_domains")
        or said.get("allow_local")
    ):
        return True
    asked = policy.written.written if policy.written else ()
    return bool(policy.network or policy.allowed or policy.local_ports) or any(one.kind == "egress" for one in asked)


def run_arguments(options: RunRequest, language: str) -> dict[str, Any]:
    """The program and everything it is run with; reads the files it comes from. Raises ``InvalidArgument``."""
    given = options.given.get
    return {
        "code": program_in(options.script),
        "language": language,
        "timeout": options.seconds,
        "env": env_of(given("env", ())),
        "secrets": given("secrets", ()),
        "files": _files(given("files", ())),
        "stdin": _stdin(options),
        "program_name": None if options.script == "-" else os.path.basename(options.script),
        "arguments": options.arguments,
    }


def _servers(names: tuple[str, ...] | None) -> dict[str, Any] | None:
    """The definitions of servers that are named. Raises ``InvalidArgument``."""
    if not names:
        return None
    from casemate.tools.files import users_servers

    return users_servers(os.environ, names)


def _files(given: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals:
            name, path = os.path.basename(one), one
        if not name or not path:
            raise InvalidArgument("files", f"{one!r} is neither a path nor NAME=PATH")
        if name in files:
            raise InvalidArgument("files", f"{name!r} is given twice; name one of them: --file OTHER={path}")
        files[name] = Path(path)
    return files


def _stdin(options: RunRequest) -> bytes:
    """The program's standard input: the file that was named, else what is piped or redirected into casemate."""
    stdin = options.given.get("stdin")
    if stdin is None:
        return b"" if options.script == "-" or options.explain else _read_piped()
    if stdin != "-":
        return read_file("stdin", stdin, _MAX_STDIN)
    if options.script == "-":
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
