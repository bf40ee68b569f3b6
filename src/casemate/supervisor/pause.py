"""Stop everything in a cell but its init, and account for how long it has been stopped.

It is stopped by SIGSTOP, which no code can block or handle (signal(7)). SIGCONT cannot be blocked either, and a timer
of the code's own may send it (timer_create(2)). So whether everything stayed stopped is a question of its own. The time
for which the tasks have run answers it: a cell's clock is credited only with time in which nothing in it ran.
"""

from __future__ import annotations

import contextlib
import os
import time

from casemate.supervisor import watch

_SIGSTOP, _SIGCONT = 19, 18
_STOPPED_STATES = b"TtZX"  # of tasks that run nothing (proc(5))
FILES_WITHIN = 0.01  # seconds; the host asks again and again
_STOP_WITHIN, _RETRY_AFTER = 0.03, 0.0005  # seconds; nobody else's clock is looked at meanwhile


def can_be_verified() -> bool:
    """Whether this kernel tells how long tasks have run. Where it does not, no pause is known to have held."""
    return watch.run_time([os.getpid()]) is not None


class Pause:
    """One pause of the cell whose init is ``init``. ``is_complete``: whether all of it is known to be stopped."""

    def __init__(self, init: int) -> None:
        self.is_complete = False
        self._init = init
        self._stopped_pids: set[int] = set()
        self._run_times: tuple[frozenset[int], int | None] | None = None  # when everything was stopped
        self._credited_until = time.monotonic()

    def stop(self, within: float = _STOP_WITHIN) -> bool:
        """Stop everything, also what has been woken since, in so many seconds; whether all of it is stopped."""
        self.is_complete = self._stop(within)
        self._credited_until = time.monotonic()
        return self.is_complete

    def _stop(self, within: float) -> bool:
        self._run_times = None
        until = time.monotonic() + within
        while True:
            pids = watch.measure(self._init).pids
            moving = [pid for pid in pids if not watch.all_tasks_in(pid, _STOPPED_STATES)]
            if not moving:
                self._run_times = frozenset(pids), watch.run_time(pids)
                return True
            if time.monotonic() > until:
                return False
            for pid in moving:
                self._stopped_pids.add(pid)
                _send_signal(pid, _SIGSTOP)
            time.sleep(_RETRY_AFTER)

    def is_unbroken(self) -> bool:
        """Whether nothing has run since all of it was stopped, as far as that can be known."""
        pids = watch.measure(self._init).pids
        run_time = watch.run_time(pids)
        return run_time is not None and self._run_times == (frozenset(pids), run_time)

    def take_credit(self, now: float) -> float:
        """Seconds for which it was stopped since the last call: all of them, or none if anything has run."""
        self.is_complete = self.is_complete and self.is_unbroken()
        credit = now - self._credited_until if self.is_complete else 0.0
        self._credited_until = now
        return credit

    def resume(self) -> None:
        """Continue what was stopped here, and nothing that was stopped before."""
        for pid in self._stopped_pids.intersection(watch.measure(self._init).pids):
            _send_signal(pid, _SIGCONT)


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended, and its number may be another's
        os.kill(pid, number)
