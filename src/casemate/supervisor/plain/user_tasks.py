"""How many processes and threads the kernel counts for our user, those of other containers among them."""

from __future__ import annotations

import os
import resource

_FRESH = 30.0  # seconds for which it is not counted again
_MORE = 1024  # that others of this user may begin meanwhile, and a cell between two looks at it
_MOST = 1 << 20


class UserTasks:
    """Counts when it is asked, and not too often."""

    def __init__(self) -> None:
        self._most, self._counted_at = 0, -_FRESH

    def most(self, now: float) -> int:
        """A bound for RLIMIT_NPROC of a cell besides what the cell may have."""
        if now - self._counted_at >= _FRESH:
            self._most, self._counted_at = count() + _MORE, now
        return self._most


def count() -> int:
    """How many there are: one more is refused with that as the limit (fork(2), EAGAIN)."""
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
