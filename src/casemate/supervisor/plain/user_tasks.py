"""Counts the processes and threads of our user as the kernel does, including those in other containers."""

from __future__ import annotations

import os
import resource

_FRESH = 30.0  # seconds until a count expires
_MORE = 1024  # headroom for the user's other programs, and for a cell between two looks
_MOST = 1 << 20


class UserTasks:
    def __init__(self) -> None:
        self._most, self._counted_at = 0, -_FRESH

    def most(self, now: float) -> int:
        """The user's other tasks, to add to a cell's own limit in RLIMIT_NPROC."""
        if now - self._counted_at >= _FRESH:
            self._most, self._counted_at = count() + _MORE, now
        return self._most


def count() -> int:
    """Count the tasks, by searching for the limit at which fork fails (fork(2), EAGAIN)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    low, high = 0, _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    try:
        while low < high:
            middle = (low + high) // 2
            resource.setrlimit(resource.RLIMIT_NPROC, (middle, hard))
            low, high = (low, middle) if _may_fork() else (middle + 1, high)
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    return low


def _may_fork() -> bool:
    try:
        pid = os.fork()
    except OSError:
        return False
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True
