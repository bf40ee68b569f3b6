"""What no cgroup counts: the memory, cpu time and tasks of a cell, read from /proc now and then.

Best effort by nature: between two looks a cell can take more. One process alone is held by
RLIMIT_DATA meanwhile, so cells of a single process are looked at less often.
"""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_VISITED = 5000  # processes looked at in one cell; the limit on tasks is far below
OFTEN = 0.02  # seconds between looks at a cell of several processes
SELDOM = 0.1


class Sight:
    """One look at a cell. ``memory`` in bytes, ``cpu`` in seconds (living processes), ``tasks`` without init."""

    def __init__(self) -> None:
        self.memory = 0
        self.cpu = 0.0
        self.tasks = 0
        self.processes = 0


def look(init: int) -> Sight:
    """Look at every living process below ``init``."""
    sight = Sight()
    waiting = _children(init)
    while waiting and sight.processes < _MAX_VISITED:
        pid = waiting.pop()
        _add(pid, sight)
        waiting.extend(_children(pid))
    return sight


def _add(pid: int, sight: Sight) -> None:
    try:
        statistics = _read(f"/proc/{pid}/stat")
        # The command may hold spaces and parentheses; the fields after its last ")" do not.
        fields = statistics[statistics.rindex(b")") + 2 :].split()
        sight.processes += 1
        sight.tasks += int(fields[17])
        sight.cpu += (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / _TICKS
        resident, shared = _read(f"/proc/{pid}/statm").split()[1:3]
        sight.memory += (int(resident) - int(shared)) * _PAGE
    except (OSError, ValueError, IndexError):
        return  # it ended between two reads


def _children(pid: int) -> list[int]:
    """Children by any thread of ``pid``."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        pass
    return found


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)
