"""``casemate wrap``: any command behind a wall, its standard streams and its exit code casemate's own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from casemate.api.wrapping import Asked, Wrapping
from casemate.errors import CasemateError
from casemate.execution.redact import redaction_of
from casemate.model.execution import Execution
from casemate.model.limits import Limits
from casemate.surfaces.cli import failures, interrupts
from casemate.surfaces.cli.given import env_beginning, env_of, users_vault
from casemate.surfaces.cli.terminal.inert import visible
from casemate.surfaces.cli.terminal.words import say
from casemate.surfaces.cli.wrapped.pass_through import Cleaning, PassThrough

if TYPE_CHECKING:
    from casemate.model.plan import Secrets
    from casemate.redaction.redaction import RedactedStream
    from casemate.walls.wall import Cell

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_OF_PROGRAMS = ("wall", "output", "full_output")  # limits that a command does not have
_LOOKS_EVERY = 0.5  # seconds; for as long a file that was replaced may be read
_MOST_NAMES = 8  # in one line


@dataclass(frozen=True)
class WrapOptions:
    """The options of ``casemate wrap``, as given."""

    command: str
    arguments: tuple[str, ...] = ()
    policy: str | None = None
    workspace: str | None = None
    mode: Literal["overlay", "direct"] | None = None
    read: tuple[str, ...] = ()
    copy: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    env_prefix: str | None = None
    secrets: tuple[str, ...] = ()
    namespace: str = "default"
    timeout: float | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    isolation: str = "auto"
    explain: bool = False
    raw: bool = False


def wrap(options: WrapOptions) -> int:
    """Do what ``casemate wrap`` was asked to do; the exit code. Raises ``CasemateError``."""
    wrapping = Wrapping(_asked(options))
    for path in wrapping.missing():
        say(f"{path} is not there: should it come to be while the command runs, it is not guarded")
    if wrapping.read_only:
        say(f"{wrapping.read_only}: allowWrite names no folder, so that the command can write in none of yours")
    if options.explain:
        return interrupts.run(_explain(wrapping))
    wrapping.warm_up()
    gc.enable()
    return asyncio.run(_Run(wrapping, options).run())


def _asked(options: WrapOptions) -> Asked:
    from casemate.api.policy_options import policy_from

    policy = policy_from(options.policy)
    for warning in policy.warnings:
        say(warning)
    return Asked(
        command=options.command,
        arguments=options.arguments,
        policy=None if options.policy is None else policy,
        workspace=options.workspace,
        mode=options.mode,
        shown=tuple(os.path.expanduser(path) for path in options.read),
        copied=tuple(os.path.expanduser(path) for path in options.copy),
        allowed_domains=options.allow,
        env={**env_beginning(options.env_prefix), **env_of(options.env)},
        secrets=options.secrets,
        namespace=options.namespace,
        limits=Limits(**{**policy.limits, **options.limits}),
        timeout=options.timeout,
        isolation=options.isolation,
        environ=os.environ,
        vault=users_vault() if options.secrets else None,
        cwd=os.getcwd(),
    )


async def _explain(wrapping: Wrapping) -> int:
    from casemate.surfaces.cli import documents, explain

    try:
        plan = await wrapping.explain()
    finally:
        await wrapping.close()
    document = documents.plan_document(plan)
    for name in _OF_PROGRAMS:
        del document["limits"][name]
    sys.stdout.write(explain.text_of(document) + "\n")
    return 0


@dataclass(frozen=True)
class _WithoutSecrets:
    """A stream that may end anywhere, also in the middle of a secret."""

    stream: RedactedStream

    def feed(self, data: bytes) -> bytes:
        return self.stream.feed(data)

    def end(self) -> bytes:
        return self.stream.finish(cut=True)


class _Run:
    """One command, from its start to the last byte that it wrote."""

    def __init__(self, wrapping: Wrapping, options: WrapOptions) -> None:
        self._wrapping = wrapping
        self._options = options
        self._cell: Cell | None = None
        self._signal = 0  # the last one that came
        self._is_over = False
        self._gives_up = False

    async def run(self) -> int:
        """The exit code. Raises ``CasemateError``."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup has them ignored
                loop.add_signal_handler(number, self._take, number, task)
        try:
            execution = await self._execute()
        except asyncio.CancelledError:
            return 128 + self._signal
        finally:
            await self._wrapping.close()
        self._tell(execution)
        if execution.status == "cancelled" and self._signal:
            return 128 + self._signal
        return failures.exit_code_of(execution)

    async def _execute(self) -> Execution:
        streams = PassThrough(self._cleaning(await self._wrapping.secrets()))

        def started(cell: Cell) -> None:
            self._cell = cell
            streams.begin()

        outcome: Execution | CasemateError
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch())
            try:
                outcome = await self._wrapping.execute(streams.theirs(), started)
            except CasemateError as error:
                outcome = error  # raised below: from within, the group would wrap it in one of its own
            finally:
                watching.cancel()
        if isinstance(outcome, CasemateError):
            raise outcome
        self._is_over = True
        streams.end_input()
        await asyncio.to_thread(streams.finish, lambda: self._gives_up)
        return outcome

    async def _watch(self) -> None:
        """End a command for which something is not hidden any more."""
        while True:
            await asyncio.sleep(_LOOKS_EVERY)
            if self._cell is not None and (path := self._wrapping.uncovered()):
                self._cell.kill("killed")
                say(f"{visible(path)} was replaced, and the new one is not hidden: the command was ended")
                return

    def _take(self, number: int, task: asyncio.Task[Any]) -> None:
        """Pass a signal on. Before there is a command to pass it to, and when it has ended and only its last words are
        not read, it is for casemate itself."""
        self._signal = number
        if self._is_over:
            self._gives_up = True
        elif self._cell is None:
            task.cancel()
        else:
            self._cell.signal(number)

    def _cleaning(self, secrets: Secrets) -> dict[int, list[Cleaning]]:
        """What is done to each stream: secrets go, and where a terminal shows it, what that would obey."""
        cleaning: dict[int, list[Cleaning]] = {1: [], 2: []}
        redaction = redaction_of(secrets)
        for fd, steps in cleaning.items():
            if redaction is not None:
                steps.append(_WithoutSecrets(redaction.stream()))
            if not self._options.raw and os.isatty(fd):
                from casemate.surfaces.cli.terminal.inert import Inert

                steps.append(Inert())
        return cleaning

    def _tell(self, execution: Execution) -> None:
        """What casemate itself has to say: nothing, when there was nothing out of the ordinary."""
        from casemate.surfaces.cli.ended import outcome

        for line in outcome(execution):
            say(line)
        appeared = self._wrapping.appeared()
        if appeared:
            names = ", ".join(visible(name) for name in appeared[:_MOST_NAMES])
            more = f" and {len(appeared) - _MOST_NAMES} more" if len(appeared) > _MOST_NAMES else ""
            say(f"new, and of a name that tools act on by themselves: {names}{more}; look before you use the folder")
