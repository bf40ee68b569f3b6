"""Everything in a cell but its init, stopped: by SIGSTOP, which no code can block or handle (signal(7)).

SIGCONT cannot be blocked either, and a timer of the code's own may send it (timer_create(2)): so whether all of it has
stood still is a question of its own, which the time that its tasks have run answers.
"""

from __future__ import annotations

import contextlib
import os
import time

from casemate.supervisor import watch

_SIGSTOP, _SIGCONT = 19, 18
_STATES = b"TtZX"  # of tasks that run nothing (proc(5))
_WITHIN, _PAUSE = 0.03, 0.0005  # seconds; nobody else's clock is looked at meanwhile


def can_be_known() -> bool:
    """Whether this kernel tells how long tasks have run. Where it does not, nothing is known to have stood still."""
    return watch.run_time([os.getpid()]) is not None


class Standstill:
    """One standstill of the cell whose init is ``init``."""

    def __init__(self, init: int) -> None:
        self._init = init
        self._stopped: set[int] = set()
        self._stood: tuple[frozenset[int], int | None] | None = None

    def stop(self) -> bool:
        """Stop everything, also what has been woken since; whether all of it stands still."""
        self._stood = None
        until = time.monotonic() + _WITHIN
        while True:
            pids = watch.look(self._init).pids
            moving = [pid for pid in pids if not watch.stands_still(pid, _STATES)]
            if not moving:
                self._stood = frozenset(pids), watch.run_time(pids)
                return True
            if time.monotonic() > until:
                return False
            for pid in moving:
                self._stopped.add(pid)
                _send(pid, _SIGSTOP)
            time.sleep(_PAUSE)

    def holds(self) -> bool:
        """Whether nothing has run since all of it was stopped, as far as that can be known."""
        pids = watch.look(self._init).pids
        ran = watch.run_time(pids)
        return ran is not None and self._stood == (frozenset(pids), ran)

    def end(self) -> None:
        """Let go on what was stopped, and nothing that stood still before."""
        for pid in self._stopped.intersection(watch.look(self._init).pids):
            _send(pid, _SIGCONT)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended, and its number may be another's
        os.kill(pid, number)
