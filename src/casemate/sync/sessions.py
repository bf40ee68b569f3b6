"""Sessions, runs and plans without ``await``."""

from __future__ import annotations

import builtins
from typing import Any, Self

from casemate.api import call_plan
from casemate.model.execution import Execution
from casemate.sessions import registry, run, session
from casemate.sync.parts import Blocking, Wait, blocking, streaming


class Run(Blocking):
    """``casemate.sessions.Run`` with blocking methods."""

    id: str

    stream = streaming(run.Run.stream)
    wait = blocking(run.Run.wait)
    cancel = blocking(run.Run.cancel)


class Session(Blocking):
    """``casemate.sessions.Session`` with blocking methods; from any thread. An interrupt (Ctrl-C) interrupts the step,
    and so does leaving a stream."""

    asynchronous: session.Session
    id: str
    name: str | None
    language: str

    def __init__(self, asynchronous: Any, wait: Wait) -> None:
        super().__init__(asynchronous, wait)
        self.files = Blocking(asynchronous.files, wait)

    run = blocking(session.Session.run)
    stream = streaming(session.Session.stream)
    start = blocking(session.Session.start, Run)
    attach = blocking(session.Session.attach, Run)
    interrupt = blocking(session.Session.interrupt)
    reset = blocking(session.Session.reset)
    variables = blocking(session.Session.variables)
    get = blocking(session.Session.get)
    set = blocking(session.Session.set)
    close = blocking(session.Session.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def _make_sessions(found: builtins.list[session.Session], wait: Wait) -> builtins.list[Session]:
    return [Session(one, wait) for one in found]


class Sessions(Blocking):
    """``sandbox.sessions`` with blocking methods."""

    get = blocking(registry.Sessions.get, Session)
    list = blocking(registry.Sessions.list, _make_sessions)

    def bridge(self, name: str, source: str | Session, target: str | Session) -> Any:
        """See :meth:`casemate.sessions.registry.Sessions.bridge`."""
        return self._call("bridge", name, source, target)


class ProgramPlan(Blocking):
    """``casemate.ProgramPlan`` with a blocking method."""

    calls: tuple[call_plan.PlannedCall, ...]
    execution: Execution

    run = blocking(call_plan.ProgramPlan.run)
