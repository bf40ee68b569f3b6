"""The sandbox without ``await``, for scripts, notebooks and code inside a running event loop.

    from casemate.sync import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("print(2 + 2)").stdout)

Each sandbox runs its own event loop in its own thread, so it also works where another loop is running.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from casemate.api import sandbox as api
from casemate.api.options import SandboxOptions
from casemate.errors import SandboxClosed
from casemate.event_loop import close_at_exit, forget_at_exit, polling_loop
from casemate.model.foreign import HintingClass, no_attribute
from casemate.model.options import takes_options
from casemate.sync.parts import ApprovalRequest, Approvals, Blocking, Wait, block_on

if TYPE_CHECKING:
    from casemate.model.overview import Inspection
    from casemate.sync.sessions import ProgramPlan, Run, Session, Sessions

__all__ = ["ApprovalRequest", "Approvals", "Blocking", "ProgramPlan", "Run", "Sandbox", "Session", "Sessions"]

_JOIN_TIMEOUT = 10.0  # seconds: the longest wait for the loop's thread to end


def __getattr__(name: str) -> Any:
    """Load rarely used classes on first access."""
    if name in __all__:
        from casemate.sync import sessions

        return getattr(sessions, name)
    raise no_attribute("module 'casemate.sync'", name, __all__)


def _make_later(name: str, one: Any, wait: Wait) -> Any:
    """Make an object of a class that is loaded on first use."""
    return __getattr__(name)(one, wait)


class Sandbox(Blocking, metaclass=HintingClass):
    """``casemate.Sandbox`` with blocking methods; arguments, results and errors are the same."""

    asynchronous: api.Sandbox
    vault: Blocking
    packages: Blocking
    tools: Blocking
    artifacts: Blocking
    audit: Blocking
    egress: Blocking
    evidence: Blocking
    host: Blocking
    web: Blocking

    @takes_options(SandboxOptions)
    def __init__(self, *, _make: Any = api.Sandbox, **options: Any) -> None:
        self._loop, self._owner = polling_loop(), os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="casemate-sync", daemon=True)
        self._thread.start()
        try:
            made = _make(**options)
            self.asynchronous = self._wait(lambda: made) if inspect.isawaitable(made) else made
        except BaseException:
            self._end_loop()
            raise
        close_at_exit(self)

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Unpack[SandboxOptions]) -> Self:
        """See :meth:`casemate.Sandbox.from_file`."""
        return cls(_make=partial(api.Sandbox.from_file, path), **options)

    @classmethod
    def from_env(cls, **options: Unpack[SandboxOptions]) -> Self:
        """See :meth:`casemate.Sandbox.from_env`."""
        return cls(_make=api.Sandbox.from_env, **options)

    @classmethod
    def connect(cls, url: str | None = None, token: str | None = None, **arguments: Any) -> Self:
        """See :meth:`casemate.Sandbox.connect`."""
        return cls(_make=partial(api.Sandbox.connect, url, token), **arguments)

    run = block_on(api.Sandbox.run)
    stream = block_on(api.Sandbox.stream)
    start = block_on(api.Sandbox.start, cast("type[Run]", partial(_make_later, "Run")))
    plan = block_on(api.Sandbox.plan, cast("type[ProgramPlan]", partial(_make_later, "ProgramPlan")))
    explain = block_on(api.Sandbox.explain)
    validate = block_on(api.Sandbox.validate)
    runtimes = block_on(api.Sandbox.runtimes)
    stats = block_on(api.Sandbox.stats)
    set_limits = block_on(api.Sandbox.set_limits)
    doctor = block_on(api.Sandbox.doctor)
    session = block_on(api.Sandbox.session, cast("type[Session]", partial(_make_later, "Session")))
    warm_up = block_on(api.Sandbox.warm_up)
    language_of = staticmethod(api.Sandbox.language_of)

    def inspect(self, session: str | Session) -> Inspection:
        """See :meth:`casemate.Sandbox.inspect`."""
        return cast("Inspection", self._call("inspect", session))

    @property
    def sessions(self) -> Sessions:
        """See :attr:`casemate.Sandbox.sessions`."""
        from casemate.sync.sessions import Sessions

        return Sessions(self.asynchronous.sessions, self._wait)

    @property
    def approvals(self) -> Approvals:
        """See :attr:`casemate.Sandbox.approvals`."""
        return Approvals(self.asynchronous.approvals)

    def __getattr__(self, name: str) -> Any:
        """The other parts of :class:`casemate.Sandbox`."""
        value = super().__getattr__(name)
        return Blocking(value, self._wait) if Sandbox.__annotations__.get(name) == "Blocking" else value

    def close(self) -> None:
        """End every cell and the sandbox's thread. Safe to repeat. The interpreter calls it at exit."""
        forget_at_exit(self)
        if self._loop.is_closed() or self._is_inherited():
            return
        self._wait(self.asynchronous.close)
        self._wait(self._loop.shutdown_asyncgens)  # closes abandoned streams
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _is_inherited(self) -> bool:
        """Whether this process was forked from the sandbox's owner. The sandbox's thread runs only in the owner."""
        return os.getpid() != self._owner

    def _wait(self, call: Callable[[], Any]) -> Any:
        if self._loop.is_closed():
            raise SandboxClosed("the sandbox was closed")
        if self._is_inherited():
            raise SandboxClosed(f"the sandbox belongs to process {self._owner}, which forked this one; make one here")
        outcome: Future[Any] = Future()
        tasks: list[asyncio.Task[Any]] = []

        def begin() -> None:
            if outcome.cancelled():
                return
            tasks.append(self._loop.create_task(_invoke(call)))
            tasks[0].add_done_callback(partial(_hand_over, outcome))

        def cancel() -> None:
            if not tasks:
                outcome.cancel()
            for task in tasks:
                task.cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
            return outcome.result()
        except BaseException:
            if not outcome.done():  # an interrupt: end the call before the caller sees the exception
                self._loop.call_soon_threadsafe(cancel)
                wait_for([outcome], _JOIN_TIMEOUT)
            raise


def _hand_over(outcome: Future[Any], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


async def _invoke(call: Callable[[], Any]) -> Any:
    outcome = call()
    return await outcome if inspect.isawaitable(outcome) else outcome
