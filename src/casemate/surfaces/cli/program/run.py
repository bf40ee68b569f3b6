"""``casemate run``: one program in one cell, its output as casemate's own, its exit code too."""

from __future__ import annotations

import gc
import signal
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from casemate.api.sandbox import Sandbox
from casemate.errors import CasemateError, InvalidArgument
from casemate.surfaces.cli import failures
from casemate.surfaces.cli.program.options import Options, run_arguments, sandbox_arguments, with_configuration
from casemate.surfaces.cli.terminal.words import say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from casemate.model.approval import ApprovalRequest
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.plan import Plan
    from casemate.surfaces.cli.terminal.streams import Streams


def run(options: Options) -> int:
    """Do what ``casemate run`` was asked to do; the exit code. Raises ``CasemateError``, and as JSON tells it too."""
    try:
        return _do(options)
    except CasemateError as error:
        if options.format == "json":
            from casemate.surfaces.cli import answers, documents

            _print(answers.json_of(documents.error_document(error)))
        raise


def _do(options: Options) -> int:
    options = with_configuration(options)
    language = options.language or ("python" if options.script == "-" else _language_of(options.script))
    if options.environment is not None:
        _check_environment(options.environment, language)
    asking = _Asking(options)
    sandbox = Sandbox(**sandbox_arguments(options), approve=asking.approve)
    if options.explain:
        return _explain(sandbox, options, language)
    sandbox.warm_up()
    arguments = run_arguments(options, language)
    import asyncio

    from casemate.surfaces.cli.terminal.streams import ReaderGone

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

    def __init__(self, options: Options) -> None:
        self.screen: AbstractAsyncContextManager[object] = nullcontext()
        self.approve: Callable[[ApprovalRequest], Awaitable[bool]] | None = None
        # A program whose bytes the terminal obeys could change what is shown; and its input is no answer.
        if not options.tool_servers or options.raw or "-" in (options.script, options.stdin):
            return
        from casemate.surfaces.cli.terminal.asking import Terminal, somebody_is_there

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


async def _run(sandbox: Sandbox, options: Options, arguments: dict[str, Any], asking: _Asking) -> int:
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


async def _execute(sandbox: Sandbox, options: Options, arguments: dict[str, Any], asking: _Asking) -> Execution:
    if options.format == "text":
        return await _stream(sandbox, options, arguments, asking)
    execution = await sandbox.run(**arguments)
    from casemate.surfaces.cli import answers, documents

    _print(answers.json_of(documents.execution_document(execution)))
    return execution


async def _stream(sandbox: Sandbox, options: Options, arguments: dict[str, Any], asking: _Asking) -> Execution:
    from contextlib import aclosing

    from casemate.surfaces.cli.terminal.streams import Streams

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


def _tell(execution: Execution, options: Options) -> None:
    """What casemate itself has to say of a run: nothing, when there was nothing out of the ordinary."""
    unusual = (execution.cause, execution.skipped, execution.artifacts, execution.results, execution.full_output)
    if not any((*unusual, execution.crossings, execution.error)):
        return
    from casemate.surfaces.cli.program.account import account

    for line in account(execution, options):
        say(line)


def _explain(sandbox: Sandbox, options: Options, language: str) -> int:
    from casemate.surfaces.cli import answers, documents, explain, interrupts

    async def plan() -> Plan:
        async with sandbox:
            return await sandbox.explain(**run_arguments(options, language))

    document = documents.plan_document(interrupts.run(plan()))
    _print(answers.json_of(document) if options.format == "json" else explain.text_of(document))
    return 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
