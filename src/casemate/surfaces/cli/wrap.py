"""``casemate wrap``: any command behind a wall, with casemate's standard streams, signals and exit code.

Three threads carry bytes, one for each stream, and buffer one piece at most: a slow reader makes its writer wait, and
delays no other stream. The end of a stream is passed on in both directions, even when its reader closes it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from casemate.api.options import SandboxOptions
from casemate.api.wrapping import Wrapping, WrapRequest
from casemate.errors import CasemateError, InvalidArgument
from casemate.event_loop import run_in_loop
from casemate.execution.request import redaction_of
from casemate.model.execution import Execution
from casemate.model.foreign import option_hint
from casemate.model.kinds import Strength
from casemate.model.limits import COMMAND_LIMITS, Limits
from casemate.surfaces.cli import failures, interrupts
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.inert import Inert, visible
from casemate.surfaces.cli.inputs import env_beginning, env_of, given_limits
from casemate.surfaces.cli.parameters import Name, takes
from casemate.walls.wall import Standard

if TYPE_CHECKING:
    from casemate.api.settings import Settings
    from casemate.model.plan import Secrets
    from casemate.walls.wall import Cell


_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOKS_EVERY = 0.5  # seconds, which is how long a replaced file may be readable


@takes(
    "allowed_domains", "env", "secrets", "namespace", *COMMAND_LIMITS, "isolation",
    disk="Bytes it may write in /tmp and /dev/shm, and in an overlay, together.",
)  # fmt: skip
def wrap(
    command: Name,
    /,
    *args: str,
    policy: Annotated[str | None, Parameter(name=("--policy", "--settings"))] = None,
    workspace: str | None = None,
    mode: Literal["overlay", "direct"] | None = None,
    read: tuple[str, ...] = (),
    copy: tuple[str, ...] = (),
    hide: tuple[str, ...] = (),
    at_least: Strength | None = None,
    env_prefix: str | None = None,
    timeout: float | None = None,
    explain: bool = False,
    raw: bool = False,
    **options: Any,
) -> int:
    """Run any command behind a wall: casemate wrap [OPTIONS] -- COMMAND [ARGS...]

    stdin, stdout, stderr, signals and the exit code are the command's. It has no network and writes only in the folder
    that it is started in. It sees that folder at its own path, without .env files, and little else of this machine.

    casemate wrap -- node_modules/.bin/mcp-server-filesystem .

    casemate wrap --settings srt.json --copy ~/.npm -- npx -y @modelcontextprotocol/server-filesystem .

    casemate wrap --allow api.example.org --secret API_TOKEN -- my-server --stdio

    Args:
        command: The command: a name on PATH, or a path.
        args: Its arguments. Put -- before the command when one of them begins with a hyphen.
        policy: A file with the most that is permitted, in casemate's keys or srt's. No option allows what it denies.
        workspace: The folder that it works in; by default the one that casemate is started in.
        mode: direct (default): its writes are in the folder at once. overlay: they are written back at its end.
        read: Another file or folder that it may read. One in your home folder is also in its own. May be repeated.
        copy: A folder like that which it may write to, as a cache; its writes are discarded. May be repeated.
        hide: A file, a folder or a pattern that it must not see. May be repeated.
        at_least: The weakest acceptable wall, as isolation.at_least of a policy; a weaker one is refused.
        env_prefix: Variables here with this prefix become its variables, without the prefix.
        timeout: Seconds that it may run; no end by default.
        explain: Print what would be done and with which limits, and run nothing.
        raw: Send its bytes to a terminal unchanged. They can do to it anything that it obeys.
    """
    if command.startswith("-"):
        hint = option_hint(command) or "casemate wrap --help lists them"
        raise InvalidArgument("command", f"there is no option {command}; {hint}")
    from casemate.api.settings import settings_of

    settings = settings_of(os.environ, arguments={"policy": policy})
    for warning in settings.policy.unenforced:
        say(warning)
    if timeout is None and "timeout" in settings.given:
        timeout = settings.timeout
    seconds = [one for one in (timeout, settings.limits.get("wall")) if one is not None]
    chosen = _sandbox_options(settings, {"workspace": workspace, "workspace_mode": mode, **options})
    wrapping = Wrapping(
        WrapRequest(
            command=command,
            arguments=args,
            options=chosen,
            shown=tuple(os.path.expanduser(path) for path in (*read, *chosen.get("allow_read", ()))),
            copied=tuple(os.path.expanduser(path) for path in copy),
            hidden=tuple(os.path.abspath(os.path.expanduser(path)) for path in hide),
            at_least=at_least,
            env={**env_beginning(env_prefix), **env_of(options.get("env", ()))},
            secrets=options.get("secrets", ()),
            timeout=min(seconds, default=None),
            environ=os.environ,
            cwd=os.getcwd(),
        )
    )
    _say_bounds(wrapping)
    if explain:
        return interrupts.run(_explain(wrapping))
    wrapping.warm_up()
    gc.enable()
    return run_in_loop(_WrappedCommand(wrapping, raw=raw).run())


def _sandbox_options(settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, overridden by ``given``. Raises ``CasemateError``."""
    known = SandboxOptions.__annotations__
    chosen = {name: value for name, value in given.items() if name in known and value not in (None, ())}
    if given.get("secrets"):
        from casemate.vault.vault import users_store

        chosen = {"vault": users_store(os.environ), **settings.sandbox_arguments(os.environ), **chosen}
    else:
        chosen = {**settings.sandbox_arguments(), **chosen}
    limits = Limits(**{**settings.policy.limits, **settings.limits, **given_limits(given)})
    reaches = {"policy", "allowed_domains", "allow_local"}.intersection(chosen)
    return {"network": None if reaches else "none", **chosen, "limits": limits}


def _say_bounds(wrapping: Wrapping) -> None:
    for path in wrapping.find_missing():
        say(f"{path} does not exist; if the command creates it, it is neither hidden nor protected")
    if wrapping.writable is not None and not wrapping.writable.folders:
        say(f"{wrapping.writable.where}: allowWrite names no folder, so the command cannot write in any of yours")


async def _explain(wrapping: Wrapping) -> int:
    from casemate.surfaces.cli.plans import plan_document, plan_text

    try:
        plan = await wrapping.explain()
    finally:
        await wrapping.close()
    document = plan_document(plan)
    document["limits"] = {name: document["limits"][name] for name in COMMAND_LIMITS}
    sys.stdout.write(plan_text(document) + "\n")
    return 0


class _WrappedCommand:
    def __init__(self, wrapping: Wrapping, *, raw: bool) -> None:
        self._wrapping = wrapping
        self._raw = raw
        self._cell: Cell | None = None
        self._signal = 0  # the last signal that came
        self._is_over = False
        self._gives_up = False

    async def run(self) -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores them
                loop.add_signal_handler(number, self._take, number, task)
        try:
            execution = await self._execute()
        except asyncio.CancelledError:
            return 128 + self._signal
        finally:
            await self._wrapping.close()
        self._say_outcome(execution)
        if execution.status == "cancelled" and self._signal:
            return 128 + self._signal
        return failures.exit_code_of(execution)

    async def _execute(self) -> Execution:
        secrets = await self._wrapping.secrets()
        loop, most = asyncio.get_running_loop(), self._wrapping.full_output
        cleaners = {fd: _Cleaner(secrets, raw=self._raw or not os.isatty(fd)) for fd in (1, 2)}
        streams = PassThrough(cleaners, most, lambda: loop.call_soon_threadsafe(self._end_for_output))

        def begin_streams(cell: Cell) -> None:
            self._cell = cell
            streams.begin()

        outcome: Execution | CasemateError
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch())
            try:
                outcome = await self._wrapping.execute(streams.theirs(), begin_streams)
            except CasemateError as error:
                outcome = error  # raised below: inside, the task group would wrap it
            finally:
                watching.cancel()
        if isinstance(outcome, CasemateError):
            raise outcome
        self._is_over = True
        streams.end_input()
        await asyncio.to_thread(streams.finish, lambda: self._gives_up)
        return outcome

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOKS_EVERY)
            if self._cell is not None and (path := self._wrapping.find_uncovered()):
                self._cell.kill("killed")
                say(f"{visible(path)} was replaced and is no longer hidden: the command was ended")
                return

    def _end_for_output(self) -> None:
        if self._cell is not None:
            self._cell.kill("killed")
            say("it wrote more than limits.full_output of its policy: the command was ended")

    def _take(self, number: int, task: asyncio.Task[Any]) -> None:
        """Pass a signal to the command. Before its start and after its end it is for casemate itself."""
        self._signal = number
        if self._is_over:
            self._gives_up = True
        elif self._cell is None:
            task.cancel()
        else:
            self._cell.signal(number)

    def _say_outcome(self, execution: Execution) -> None:
        from casemate.surfaces.cli.outcome import list_names, outcome

        for line in outcome(execution, self._wrapping.where_bound):
            say(line)
        appeared = self._wrapping.find_new_names()
        if appeared:
            names = list_names(appeared)
            say(f"new, with names that tools act on by themselves: {names}; check them before you use the folder")


_PIECE = 1 << 16  # bytes; a pipe's default capacity
_ENDED = select.POLLERR | select.POLLHUP | select.POLLNVAL


class _Cleaner:
    """Redacts secrets in a command's output and, unless ``raw``, what a terminal would obey."""

    def __init__(self, secrets: Secrets, *, raw: bool) -> None:
        redaction = redaction_of(secrets)
        self._redacted = None if redaction is None else redaction.stream()
        self._inert = None if raw else Inert()

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to show now, from ``data`` and from earlier output that was held back."""
        data = self._redacted.feed(data) if self._redacted else data
        return self._inert.feed(data) if self._inert else data

    def end(self) -> bytes:
        """Return the output that was held back: a stream may end in the middle of a secret."""
        rest = self._redacted.finish(cut=True) if self._redacted else b""
        return self._inert.feed(rest) + self._inert.end() if self._inert else rest


class PassThrough:
    """Carries bytes between `begin` and `finish`; stdout (1) and stderr (2) go through their cleaners. ``most``: bytes
    of both together, None for any number. ``on_more`` is called in a thread when there are more."""

    def __init__(
        self, cleaners: dict[int, _Cleaner], most: int | None = None, on_more: Callable[[], object] = int
    ) -> None:
        self._cleaners, self._on_more = cleaners, on_more
        self._room, self._counting = sys.maxsize if most is None else most, threading.Lock()
        self._over = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stdin, self._to_stdin = os.pipe2(os.O_CLOEXEC)
        self._from_stdout, self._stdout = os.pipe2(os.O_CLOEXEC)
        self._from_stderr, self._stderr = os.pipe2(os.O_CLOEXEC)
        for fd in (self._to_stdin, self._from_stdout, self._from_stderr):
            os.set_blocking(fd, False)
        self._inward = threading.Thread(target=self._carry_in, name="casemate-stdin", daemon=True)
        self._outward = [
            threading.Thread(target=self._carry_out, args=ends, name=f"casemate-out-{ends[1]}", daemon=True)
            for ends in ((self._from_stdout, 1), (self._from_stderr, 2))
        ]

    def theirs(self) -> Standard:
        """The ends for the command, until `begin`."""
        return Standard(self._stdin, self._stdout, self._stderr)

    def begin(self) -> None:
        """Close our copies of the command's ends, and start to carry."""
        for fd in (self._stdin, self._stdout, self._stderr):
            os.close(fd)
        for thread in (self._inward, *self._outward):
            thread.start()

    def end_input(self) -> None:
        """Stop reading input: everything in the cell is dead. Its output is still passed on."""
        self._over.set()
        os.eventfd_write(self._wake, 1)

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Wait until all output is passed on, as long as its readers take, unless ``given_up`` returns True."""
        for thread in (self._inward, *self._outward):
            while thread.is_alive() and not given_up():
                thread.join(0.1)

    # -- in threads of their own

    def _carry_in(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(0, select.POLLIN)
        poll.register(self._to_stdin, 0)  # reports when its reader is gone
        try:
            while not self._over.is_set():
                events = dict(poll.poll())
                if self._wake in events or events.get(self._to_stdin, 0) & _ENDED:
                    break
                data = _read(0)
                if data is None:
                    continue
                if not data or not self._put_in(data):
                    break
        finally:
            os.close(self._to_stdin)
            _replace(0)  # our writer gets the same error as from the command

    def _put_in(self, data: bytes) -> bool:
        """Write all of ``data``. False if its reader is gone."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._to_stdin, select.POLLOUT)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._to_stdin, view) :]
            except BlockingIOError:
                if self._wake in dict(poll.poll()):
                    return False
            except OSError:
                return False
        return True

    def _count(self, data: bytes) -> bytes:
        with self._counting:
            room, self._room = max(0, self._room), self._room - len(data)
            is_first = self._room < 0 <= self._room + len(data)
        if is_first:
            self._on_more()
        return data[:room]

    def _carry_out(self, source: int, target: int) -> None:
        cleaner = self._cleaners[target]
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(source, select.POLLIN)
        try:
            while True:
                data = _read(source)
                if data is None:
                    if self._over.is_set():
                        break  # it is empty, and its writers are dead
                    poll.poll()
                elif not data or not _put_out(target, cleaner.feed(self._count(data))):
                    break
            _put_out(target, cleaner.end())
        finally:
            os.close(source)
            if target == 1:
                _replace(1)  # our reader sees its end; casemate itself may still write to stderr


def _read(fd: int) -> bytes | None:
    """Read what is available: empty at the end, None if there is nothing now."""
    try:
        return os.read(fd, _PIECE)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _put_out(fd: int, data: bytes) -> bool:
    """Write all of ``data``, however long it takes. False if its reader is gone."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # the other end set O_NONBLOCK
            select.select([], [fd], [])
        except OSError:
            return False
    return True


def _replace(fd: int) -> None:
    """Replace a standard stream by /dev/null, which ends it for the other side."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, fd)
    os.close(null)
