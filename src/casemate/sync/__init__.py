"""The same sandbox without ``await``: for scripts, notebooks and running event loops.

    from casemate.sync import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("print(2 + 2)").stdout)

Each sandbox has an event loop of its own in a thread of its own, so it also works where a
loop is running already.
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
from casemate.event_loop import close_at_exit, forget_at_exit, polling_loop, run_in_loop
from casemate.model.foreign import HintingClass, no_attribute
from casemate.model.options import takes_options
from casemate.sync.parts import ApprovalRequest, Approvals, Blocking, Wait, block_on, block_on_stream

if TYPE_CHECKING:
    from casemate.model.overview import Inspection
    from casemate.sync.sessions import ProgramPlan, Run, Session, Sessions

__all__ = ["ApprovalRequest", "Approvals", "Blocking", "ProgramPlan", "Run", "Sandbox", "Session", "Sessions"]

_PARTS = ("vault", "packages", "tools", "artifacts", "audit", "egress", "evidence", "host", "web")
_JOIN_TIMEOUT = 10.0  # seconds the loop's thread has to end


def __getattr__(name: str) -> Any:
    """What sandboxes rarely need is loaded when it is named."""
    if name in __all__:
        from casemate.sync import sessions

        return getattr(sessions, name)
    raise no_attribute("module 'casemate.sync'", name, __all__)


def _make_run(run: Any, wait: Wait) -> Run:
    from casemate.sync.sessions import Run

    return Run(run, wait)


def _make_plan(plan: Any, wait: Wait) -> ProgramPlan:
    from casemate.sync.sessions import ProgramPlan

    return ProgramPlan(plan, wait)


def _make_session(session: Any, wait: Wait) -> Session:
    from casemate.sync.sessions import Session

    return Session(session, wait)


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
        self._loop = polling_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="casemate-sync", daemon=True)
        try:
            self.asynchronous = _make(**options)
        except BaseException:
            self._loop.close()
            raise
        self._owner = os.getpid()
        self._thread.start()
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
        return cls(_make=partial(_connect_in_thread, url, token), **arguments)

    run = block_on(api.Sandbox.run)
    stream = block_on_stream(api.Sandbox.stream)
    start = block_on(api.Sandbox.start, _make_run)
    plan = block_on(api.Sandbox.plan, _make_plan)
    explain = block_on(api.Sandbox.explain)
    validate = block_on(api.Sandbox.validate)
    runtimes = block_on(api.Sandbox.runtimes)
    stats = block_on(api.Sandbox.stats)
    set_limits = block_on(api.Sandbox.set_limits)
    doctor = block_on(api.Sandbox.doctor)
    session = block_on(api.Sandbox.session, _make_session)
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
        """The other parts, as of :class:`casemate.Sandbox`."""
        if name not in _PARTS:
            return super().__getattr__(name)
        return Blocking(getattr(self.asynchronous, name), self._wait)

    def close(self) -> None:
        """End every cell and the sandbox's own thread. It may be called again. The end of the interpreter calls it."""
        forget_at_exit(self)
        if self._loop.is_closed() or self._is_inherited():
            return
        self._wait(self.asynchronous.close)
        self._wait(self._loop.shutdown_asyncgens)  # streams that somebody has left and not closed
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
        """Whether this is a child that was forked: the thread is its parent's."""
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
            if not outcome.done():  # an interrupt: what was begun ends first, so that whoever is told finds it ended
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


def _connect_in_thread(url: str | None, token: str | None, **arguments: Any) -> Any:
    """Connect in a thread, since the caller's own event loop may be running."""
    from concurrent.futures import ThreadPoolExecutor

    async def connect() -> Any:
        connected = await api.Sandbox.connect(url, token, **arguments)
        await connected.close()  # what it was connected with; it connects anew where it is used
        return connected

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run_in_loop, connect()).result()
