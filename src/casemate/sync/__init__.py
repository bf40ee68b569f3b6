"""The same sandbox without ``await``: for scripts, notebooks and running event loops.

    from casemate.sync import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("print(2 + 2)").stdout)

Each sandbox has an event loop of its own in a thread of its own, so it also works where a
loop is running already.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from casemate.api import sandbox as asynchronous
from casemate.api.options import RunOptions, SandboxOptions, SessionOptions
from casemate.api.sandbox import connected_aside
from casemate.errors import SandboxClosed
from casemate.model.call_options import StepOptions
from casemate.model.events import Event
from casemate.model.execution import Execution
from casemate.model.isolation import Diagnosis
from casemate.model.limits import LimitOptions
from casemate.model.options import takes_options
from casemate.model.plan import Plan
from casemate.sync.parts import ApprovalRequest, Approvals, Blocking, ProgramPlan, Vault, Wait, each, plain

if TYPE_CHECKING:
    from casemate.model.limits import Limits
    from casemate.model.overview import Inspection, RuntimeInfo, Stats, Validation
    from casemate.sessions import run as asynchronous_run
    from casemate.sessions import session as asynchronous_session
    from casemate.sessions.protocol import Variable

__all__ = ["ApprovalRequest", "Approvals", "Blocking", "ProgramPlan", "Run", "Sandbox", "Session", "Sessions", "Vault"]

T = TypeVar("T")
_JOIN_TIMEOUT = 10.0  # seconds the loop's thread has to end


class Sandbox:
    """``casemate.Sandbox`` with blocking methods; arguments, results and errors are the same."""

    @takes_options(SandboxOptions)
    def __init__(self, *, _make: Any = asynchronous.Sandbox, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="casemate-sync", daemon=True)
        try:
            self._sandbox: asynchronous.Sandbox = _make(**options)
        except BaseException:
            self._loop.close()
            raise
        self._thread.start()

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Unpack[SandboxOptions]) -> Self:
        """See :meth:`casemate.Sandbox.from_file`."""
        return cls(_make=partial(asynchronous.Sandbox.from_file, path), **options)

    @classmethod
    def from_env(cls, **options: Unpack[SandboxOptions]) -> Self:
        """See :meth:`casemate.Sandbox.from_env`."""
        return cls(_make=asynchronous.Sandbox.from_env, **options)

    @classmethod
    def connect(cls, url: str | None = None, token: str | None = None, **arguments: Any) -> Self:
        """See :meth:`casemate.Sandbox.connect`."""
        return cls(_make=partial(connected_aside, url, token), **arguments)

    @takes_options(RunOptions)
    def run(self, code: str | bytes, **options: Unpack[RunOptions]) -> Execution:
        """See :meth:`casemate.Sandbox.run`. An interrupt (Ctrl-C) ends the cell."""
        return self._wait(self._sandbox.run(code, **options))

    @takes_options(RunOptions)
    def stream(self, code: str | bytes, **options: Unpack[RunOptions]) -> Iterator[Event]:
        """See :meth:`casemate.Sandbox.stream`. Leaving the loop early ends the cell."""
        yield from each(self._sandbox.stream(code, **options), self._wait)

    @takes_options(RunOptions)
    def start(self, code: str | bytes, **options: Unpack[RunOptions]) -> Run:
        """See :meth:`casemate.Sandbox.start`."""
        return Run(self._wait(_call(self._sandbox.start, code, **options)), self._wait)

    @takes_options(RunOptions)
    def plan(self, code: str | bytes, **options: Unpack[RunOptions]) -> ProgramPlan:
        """See :meth:`casemate.Sandbox.plan`."""
        return ProgramPlan(self._wait(self._sandbox.plan(code, **options)), self._wait)

    @takes_options(RunOptions)
    def explain(self, code: str | bytes, **options: Unpack[RunOptions]) -> Plan:
        """See :meth:`casemate.Sandbox.explain`."""
        return self._wait(self._sandbox.explain(code, **options))

    def validate(
        self, code: str | bytes, language: str = "python", fix: bool = False, *, session: bool = False
    ) -> Validation:
        """See :meth:`casemate.Sandbox.validate`."""
        return self._wait(self._sandbox.validate(code, language, fix, session=session))

    def runtimes(self) -> list[RuntimeInfo]:
        """See :meth:`casemate.Sandbox.runtimes`."""
        return self._wait(self._sandbox.runtimes())

    def stats(self) -> Stats:
        """See :meth:`casemate.Sandbox.stats`."""
        return self._wait(self._sandbox.stats())

    def inspect(self, session: str | Session) -> Inspection:
        """See :meth:`casemate.Sandbox.inspect`."""
        return self._wait(self._sandbox.inspect(plain(session)))

    def set_limits(self, **limits: Unpack[LimitOptions]) -> Limits:
        """See :meth:`casemate.Sandbox.set_limits`."""
        return self._wait(self._sandbox.set_limits(**limits))

    def doctor(self) -> Diagnosis:
        """See :meth:`casemate.Sandbox.doctor`."""
        return self._wait(self._sandbox.doctor())

    @staticmethod
    def language_of(file_name: str) -> str | None:
        """See :meth:`casemate.Sandbox.language_of`."""
        return asynchronous.Sandbox.language_of(file_name)

    def warm_up(self, *languages: str) -> None:
        """See :meth:`casemate.Sandbox.warm_up`."""
        self._sandbox.warm_up(*languages)

    @takes_options(SessionOptions)
    def session(self, language: str = "python", **options: Unpack[SessionOptions]) -> Session:
        """See :meth:`casemate.Sandbox.session`."""
        return Session(self._wait(_call(self._sandbox.session, language, **options)), self._wait)

    @property
    def sessions(self) -> Sessions:
        """See :attr:`casemate.Sandbox.sessions`."""
        return Sessions(self._sandbox, self._wait)

    @property
    def approvals(self) -> Approvals:
        """See :attr:`casemate.Sandbox.approvals`."""
        return Approvals(self._sandbox.approvals)

    @property
    def vault(self) -> Vault:
        """See :attr:`casemate.Sandbox.vault`."""
        return Vault(self._sandbox, self._wait)

    @property
    def packages(self) -> Blocking:
        """See :attr:`casemate.Sandbox.packages`."""
        return Blocking(self._sandbox.packages, self._wait)

    @property
    def tools(self) -> Blocking:
        """See :attr:`casemate.Sandbox.tools`."""
        return Blocking(self._sandbox.tools, self._wait)

    @property
    def artifacts(self) -> Blocking:
        """See :attr:`casemate.Sandbox.artifacts`."""
        return Blocking(self._sandbox.artifacts, self._wait)

    @property
    def audit(self) -> Blocking:
        """See :attr:`casemate.Sandbox.audit`."""
        return Blocking(self._sandbox.audit, self._wait)

    @property
    def egress(self) -> Blocking:
        """See :attr:`casemate.Sandbox.egress`."""
        return Blocking(self._sandbox.egress, self._wait)

    def close(self) -> None:
        """End every cell and the sandbox's own thread. Harmless when repeated."""
        if self._loop.is_closed():
            return
        self._wait(self._sandbox.close())
        self._wait(self._loop.shutdown_asyncgens())  # streams that somebody has left and not closed
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T] | Any) -> T:
        if self._loop.is_closed():
            coroutine.close()
            raise SandboxClosed("the sandbox was closed")
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            if outcome.cancelled():
                return
            tasks.append(self._loop.create_task(_as_coroutine(coroutine)))
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


class Session:
    """``casemate.sessions.Session`` with blocking methods; from any thread."""

    def __init__(self, session: asynchronous_session.Session, wait: Wait) -> None:
        self.id, self.name, self.language = session.id, session.name, session.language
        self.files = Blocking(session.files, wait)
        self.asynchronous = self._session = session
        self._wait = wait

    def __repr__(self) -> str:
        return repr(self._session)

    @takes_options(StepOptions)
    def run(self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]) -> Execution:
        """See :meth:`casemate.sessions.session.Session.run`. An interrupt (Ctrl-C) interrupts the step."""
        return cast("Execution", self._wait(self._session.run(code, wait=wait, **options)))

    @takes_options(StepOptions)
    def stream(self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]) -> Iterator[Event]:
        """See :meth:`casemate.sessions.session.Session.stream`. Leaving the loop early interrupts the step."""
        yield from each(self._session.stream(code, wait=wait, **options), self._wait)

    @takes_options(StepOptions)
    def start(self, code: str | bytes, **options: Unpack[StepOptions]) -> Run:
        """See :meth:`casemate.sessions.session.Session.start`."""
        return Run(self._wait(_call(self._session.start, code, **options)), self._wait)

    def attach(self, run_id: str) -> Run:
        """See :meth:`casemate.sessions.session.Session.attach`."""
        return Run(self._wait(self._session.attach(run_id)), self._wait)

    def interrupt(self) -> None:
        """See :meth:`casemate.sessions.session.Session.interrupt`."""
        self._wait(_call(self._session.interrupt))

    def reset(self) -> None:
        """See :meth:`casemate.sessions.session.Session.reset`."""
        self._wait(self._session.reset())

    def variables(self) -> list[Variable]:
        """See :meth:`casemate.sessions.session.Session.variables`."""
        return cast("list[Variable]", self._wait(self._session.variables()))

    def get(self, name: str) -> Any:
        """See :meth:`casemate.sessions.session.Session.get`."""
        return self._wait(self._session.get(name))

    def set(self, name: str, value: Any) -> None:
        """See :meth:`casemate.sessions.session.Session.set`."""
        self._wait(self._session.set(name, value))

    def close(self) -> None:
        """See :meth:`casemate.sessions.session.Session.close`."""
        self._wait(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class Run:
    """``casemate.sessions.Run`` with blocking methods."""

    def __init__(self, run: asynchronous_run.Run, wait: Wait) -> None:
        self.id = run.id
        self._run = run
        self._wait = wait

    def __repr__(self) -> str:
        return repr(self._run)

    def stream(self, cursor: int = 0) -> Iterator[Event]:
        """See :meth:`casemate.sessions.run.Run.stream`."""
        yield from each(self._run.stream(cursor), self._wait)

    def wait(self) -> Execution:
        """See :meth:`casemate.sessions.run.Run.wait`."""
        return cast("Execution", self._wait(self._run.wait()))

    def cancel(self) -> None:
        """See :meth:`casemate.sessions.run.Run.cancel`."""
        self._wait(self._run.cancel())


class Sessions:
    """``sandbox.sessions`` with blocking methods."""

    def __init__(self, sandbox: asynchronous.Sandbox, wait: Wait) -> None:
        self._sessions = sandbox.sessions
        self._wait = wait

    def get(self, id_or_name: str) -> Session:
        """See :meth:`casemate.sessions.registry.Sessions.get`."""
        return Session(self._wait(self._sessions.get(id_or_name)), self._wait)

    def list(self) -> list[Session]:
        """See :meth:`casemate.sessions.registry.Sessions.list`."""
        return [Session(session, self._wait) for session in self._wait(self._sessions.list())]

    def bridge(self, name: str, source: str | Session, target: str | Session) -> Any:
        """See :meth:`casemate.sessions.registry.Sessions.bridge`."""
        giving, taking = (plain(one) for one in (source, target))
        return self._wait(self._sessions.bridge(name, giving, taking))


async def _call(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """``function`` in the sandbox's own loop."""
    return function(*arguments, **named)


def _hand_over(outcome: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable
