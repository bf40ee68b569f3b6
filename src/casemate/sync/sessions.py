"""Sessions, runs and plans without ``await``."""

from __future__ import annotations

import builtins
import contextlib
from typing import Any, Self

from casemate.api import call_plan
from casemate.errors import SandboxClosed
from casemate.model.execution import Execution
from casemate.model.shown import ShownSession
from casemate.sessions import registry, run, session
from casemate.sync.parts import Blocking, Wait, block_on


class Run(Blocking):
    """``casemate.sessions.Run`` with blocking methods."""

    id: str

    stream = block_on(run.Run.stream)
    wait = block_on(run.Run.wait)
    cancel = block_on(run.Run.cancel)


class Session(ShownSession, Blocking):
    """``casemate.sessions.Session`` with blocking methods, for any thread. An interrupt (Ctrl-C) or leaving a stream
    interrupts the step."""

    asynchronous: session.Session
    id: str
    name: str | None
    language: str

    def __init__(self, asynchronous: Any, wait: Wait) -> None:
        super().__init__(asynchronous, wait)
        self.files = Blocking(asynchronous.files, wait)

    run = block_on(session.Session.run)
    stream = block_on(session.Session.stream)
    start = block_on(session.Session.start, Run)
    attach = block_on(session.Session.attach, Run)
    interrupt = block_on(session.Session.interrupt)
    reset = block_on(session.Session.reset)
    variables = block_on(session.Session.variables)
    get = block_on(session.Session.get)
    set = block_on(session.Session.set)
    diff = block_on(session.Session.diff)
    apply = block_on(session.Session.apply)
    discard = block_on(session.Session.discard)
    expose = block_on(session.Session.expose)
    unexpose = block_on(session.Session.unexpose)
    previews = block_on(session.Session.previews)

    def close(self) -> None:
        """See :meth:`casemate.sessions.Session.close`."""
        with contextlib.suppress(SandboxClosed):  # the sandbox has ended it, or this is a forked child
            self._call("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def _make_sessions(found: builtins.list[session.Session], wait: Wait) -> builtins.list[Session]:
    return [Session(one, wait) for one in found]


class Sessions(Blocking):
    """``sandbox.sessions`` with blocking methods."""

    get = block_on(registry.Sessions.get, Session)
    list = block_on(registry.Sessions.list, _make_sessions)

    def bridge(self, name: str, source: str | Session, target: str | Session) -> Any:
        """See :meth:`casemate.sessions.registry.Sessions.bridge`."""
        return self._call("bridge", name, source, target)


class ProgramPlan(Blocking):
    """``casemate.ProgramPlan`` with a blocking method."""

    calls: tuple[call_plan.PlannedCall, ...]
    execution: Execution

    run = block_on(call_plan.ProgramPlan.run)
