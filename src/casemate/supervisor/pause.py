"""Stops everything in a cell but its init, and accounts for the time it is stopped.

It sends SIGSTOP, which no code can block or handle (signal(7)). SIGCONT cannot be blocked either, and a program's timer
may send it (timer_create(2)). The tasks' run times show whether everything stayed stopped: a cell's clock is credited
only with time in which nothing in it ran.
"""

from __future__ import annotations

import contextlib
import os
import time

from casemate.supervisor import watch

_SIGSTOP, _SIGCONT = 19, 18
_STOPPED_STATES = b"TtZX"  # task states that execute nothing (proc(5))
FILES_WITHIN = 0.01  # seconds to stop for a read of files; the host retries
_STOP_WITHIN, _RETRY_AFTER = 0.03, 0.0005  # seconds; meanwhile no other cell's clock is checked


def can_be_verified() -> bool:
    """Whether this kernel reports how long tasks have run. Without it, a pause cannot be verified."""
    return watch.run_time([os.getpid()]) is not None


class Pause:
    """One pause of the cell with the init ``init``."""

    def __init__(self, init: int) -> None:
        self.is_complete = False  # all of it is known to be stopped
        self._init = init
        self._stopped_pids: set[int] = set()
        self._run_times: tuple[frozenset[int], int | None] | None = None  # when everything was stopped
        self._credited_until = time.monotonic()

    def stop(self, within: float = _STOP_WITHIN) -> bool:
        """Stop everything, including tasks that woke again. Returns whether all is stopped after ``within`` seconds."""
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
        """Whether nothing has run since everything was stopped, as far as the kernel can tell."""
        pids = watch.measure(self._init).pids
        run_time = watch.run_time(pids)
        return run_time is not None and self._run_times == (frozenset(pids), run_time)

    def take_credit(self, now: float) -> float:
        """Seconds for which it was stopped since the last call; 0 if anything has run."""
        self.is_complete = self.is_complete and self.is_unbroken()
        credit = now - self._credited_until if self.is_complete else 0.0
        self._credited_until = now
        return credit

    def resume(self) -> None:
        """Resume what this pause stopped; processes that were stopped before stay stopped."""
        for pid in self._stopped_pids.intersection(watch.measure(self._init).pids):
            _send_signal(pid, _SIGCONT)


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended; the pid may be reused
        os.kill(pid, number)
