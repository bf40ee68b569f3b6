"""What no cgroup counts: the memory, cpu time and tasks of a cell, read from /proc now and then.

Best effort by nature: between two looks a cell can take more. One process alone is held by
RLIMIT_DATA meanwhile, so cells of a single process are looked at less often.
"""

from __future__ import annotations

import os

_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_VISITED = 33_000  # processes looked at in one cell; limits.processes is at most 32,768
OFTEN = 0.02  # seconds between looks at a cell of several processes
SELDOM = 0.1


class Sight:
    """One look at a cell.

    ``private`` memory of each process added up and the most ``shared`` memory of one, in bytes; ``cpu`` in seconds;
    ``tasks`` without init; ``pids`` of the processes.
    """

    def __init__(self) -> None:
        self.private = 0
        self.shared = 0
        self.cpu = 0.0
        self.tasks = 0
        self.pids: list[int] = []

    def memory(self, files: int) -> int:
        """Memory in use, but for the ``files`` of the cell's tmpfs, which may be mapped.

        Pages that processes share since a fork count for each: `proportional` is exact, and slow.
        """
        return self.private + max(0, self.shared - files)


def look(init: int) -> Sight:
    """Look at every living process below ``init``."""
    sight = Sight()
    sight.cpu = _cpu_of_reaped(init)
    waiting = children(init)
    while waiting and len(sight.pids) < _MAX_VISITED:
        pid = waiting.pop()
        _add(pid, sight)
        waiting.extend(children(pid))
    return sight


def proportional(sight: Sight) -> int:
    """The memory of the processes in ``sight``, in bytes, each shared page divided among its holders (proc(5), Pss).

    A process that cannot be read counts as more than any limit: it hides on purpose.
    """
    total = 0
    for pid in sight.pids:
        try:
            rollup = _read(f"/proc/{pid}/smaps_rollup")
        except PermissionError:
            return 1 << 62
        except OSError:
            continue  # it ended
        for line in rollup.splitlines():
            if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


def _add(pid: int, sight: Sight) -> None:
    try:
        fields = _fields(pid)
        sight.tasks += int(fields[17])
        sight.cpu += sum(map(int, fields[11:15])) / _TICKS
        sight.pids.append(pid)
        shared = 0
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"RssAnon:"):
                sight.private += int(line.split()[1]) * 1024
            elif line.startswith(b"RssShmem:"):
                shared = int(line.split()[1]) * 1024
        sight.shared = max(sight.shared, shared)
    except (OSError, ValueError, IndexError):
        return  # it ended between two reads


def _cpu_of_reaped(init: int) -> float:
    """Cpu time of what ``init`` has reaped, in seconds: orphans of the program."""
    try:
        return sum(map(int, _fields(init)[13:15])) / _TICKS
    except (OSError, ValueError, IndexError):
        return 0.0


def _fields(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat after the command, which may hold spaces and parentheses; what follows does not."""
    statistics = _read(f"/proc/{pid}/stat")
    return statistics[statistics.rindex(b")") + 2 :].split()


def children(pid: int) -> list[int]:
    """Children by any thread of ``pid``."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        pass
    return found


def has_no_children(pid: int) -> bool:
    """Whether ``pid`` certainly has no child, dead or alive; False where the kernel does not say."""
    try:
        return not any(_read(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)
