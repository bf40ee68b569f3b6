"""What no cgroup counts: the memory, cpu time and tasks of a cell, read from /proc now and then.

Best effort by nature: between two looks a cell can take more. One process alone is held by
RLIMIT_DATA meanwhile, so cells of a single process are looked at less often, unless that reserves a lot (Node).
"""

from __future__ import annotations

import contextlib
import heapq
import os
import time

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_VISITED = 33_000  # processes looked at in one cell; limits.processes is at most 32,768
_LARGE_TABLES = 8 << 20  # bytes of page tables of one process that take the kernel a tenth of a second to walk
_ALL_TABLES = 64 << 20  # of all that one exact look walks: 5 ms for each 2 MiB, which are of 1 GiB of memory
_HIDDEN = 1 << 62
_LEAST_PIECE = 2048  # bytes; a list is cut where the next number does not fit into a page any more
OFTEN = 0.02  # seconds between looks at a cell of several processes, or of one that RLIMIT_DATA does not hold
SELDOM = 0.1
_NEVER = float("inf")


class CellUsage:
    """One look at a cell.

    ``private`` memory of each process added up, page tables included, the most ``shared`` memory of one, and the
    shared memory of each added up, in bytes; ``cpu`` in seconds; ``tasks`` without init; ``pids`` of the processes.
    ``tables``: bytes of page tables; ``claims``: of each process, bytes of memory, bytes of page tables, and where in
    /proc it is asked for more.
    """

    def __init__(self) -> None:
        self.private = 0
        self.tables = 0
        self.claims: list[tuple[int, int, str]] = []
        self.shared = 0
        self.shared_by_each = 0
        self.cpu = 0.0
        self.tasks = 0
        self.pids: list[int] = []

    def memory(self, files: int) -> int:
        """Memory in use, but for the ``files`` of the cell's tmpfs, which may be mapped.

        Pages that processes share since a fork count for each, and of shared memory the largest alone: `proportional`
        is exact, and slow.
        """
        return self.private + max(0, self.shared - files)

    def most_memory(self) -> int:
        """What is in use if none of it is shared with anybody: never less than there is."""
        return self.private + self.shared_by_each


def measure(init: int) -> CellUsage:
    """Look at every living process below ``init``."""
    usage = CellUsage()
    usage.cpu = _reaped_cpu(init)
    waiting = children(init)
    while waiting and len(usage.pids) < _MAX_VISITED:
        pid = waiting.pop()
        _add(pid, usage)
        waiting.extend(children(pid))
    return usage


def proportional(usage: CellUsage, files: int, may_grow: Callable[[], bool]) -> int:
    """The memory of the processes in ``usage``, in bytes, each shared page divided among its holders (proc(5), Pss),
    but for the ``files`` of the cell's tmpfs, which may be mapped.

    A process that cannot be read counts as more than any limit: it hides on purpose. One whose page tables are so
    large that asking would take too long, also all together, counts with everything that it maps. The kernel answers
    for a process only when that is not forking. In a storm of forks that takes seconds, so ``may_grow`` is asked now
    and then: once it says no, nothing more is read.
    """
    total, shared, walked, asked = usage.tables, 0, 0, time.monotonic()
    for claimed, tables, place in sorted(usage.claims, reverse=True):
        walked += tables
        if time.monotonic() - asked > OFTEN:
            if not may_grow():
                break
            asked = time.monotonic()
        if tables > _LARGE_TABLES or walked > _ALL_TABLES:
            total += claimed
            continue
        try:
            rollup = _sizes(f"{place}/smaps_rollup", (b"Pss_Anon", b"Pss_Shmem"))
        except PermissionError:
            return _HIDDEN
        except OSError:
            continue  # it ended
        total += rollup.get(b"Pss_Anon", 0)
        shared += rollup.get(b"Pss_Shmem", 0)
    return total + max(0, shared - files)


def _add(pid: int, usage: CellUsage) -> None:
    try:
        fields = _fields(pid)
        tasks = int(fields[17])
        usage.tasks += tasks
        usage.cpu += sum(map(int, fields[11:15])) / _TICKS
        usage.pids.append(pid)
        place, sizes = f"/proc/{pid}", _memory_of(f"/proc/{pid}")
        if not sizes and tasks > 1:
            # Its first thread has ended and others live: proc(5) then shows no memory under its own number.
            place, sizes = _living_task(pid)
        private, shared, tables = (sizes.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmPTE"))
        usage.private += private + tables
        usage.shared = max(usage.shared, shared)
        usage.shared_by_each += shared
        usage.tables += tables
        usage.claims.append((private + shared, tables, place))
    except (OSError, ValueError, IndexError):
        return  # it ended between two reads


def _memory_of(place: str) -> dict[bytes, int]:
    """The memory of ``place``, a process or a task in /proc, in bytes; {} when it has none."""
    return _sizes(f"{place}/status", (b"RssAnon", b"RssShmem", b"VmPTE"))


def _sizes(path: str, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Those of ``names`` that a file of /proc has in kB, in bytes."""
    sizes = {}
    for line in read(path).splitlines():
        name, _, value = line.partition(b":")
        if name in names:
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


def _living_task(pid: int) -> tuple[str, dict[bytes, int]]:
    """Where a thread of ``pid`` lives, and the sizes of its memory; none where all of them are just ending."""
    for task in os.listdir(f"/proc/{pid}/task"):
        place = f"/proc/{pid}/task/{task}"
        try:
            sizes = _memory_of(place)
        except OSError:
            continue
        if sizes:
            return place, sizes
    return f"/proc/{pid}", {}


def _reaped_cpu(init: int) -> float:
    """Cpu time of what ``init`` has reaped, in seconds: orphans of the program."""
    try:
        return sum(map(int, _fields(init)[13:15])) / _TICKS
    except (OSError, ValueError, IndexError):
        return 0.0


def _fields(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat after the command, which may hold spaces and parentheses; what follows does not."""
    statistics = read(f"/proc/{pid}/stat")
    return statistics[statistics.rindex(b")") + 2 :].split()


def children(pid: int) -> list[int]:
    """Children by any thread of ``pid``."""
    pids: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, read(f"/proc/{pid}/task/{task}/children").split())
    except FileNotFoundError:
        return pids or _children_by_parent(pid)
    except OSError:
        pass
    return pids


def _children_by_parent(pid: int) -> list[int]:
    """The same where the kernel has no such list, as gVisor has none: of a process that is there, by looking at all."""
    pids = []
    for name in os.listdir("/proc") if os.path.exists(f"/proc/{pid}") else ():
        try:
            if name.isdigit() and int(_fields(int(name))[1]) == pid:
                pids.append(int(name))
        except (OSError, ValueError, IndexError):
            continue
    return pids


def terminals(uid: int) -> int:
    """How many pseudo-terminals are open whose owner is ``uid``: each has a name (devpts)."""
    count = 0
    with contextlib.suppress(OSError), os.scandir("/dev/pts") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # it was just closed
                count += entry.name.isdigit() and entry.stat().st_uid == uid
    return count


def has_no_children(pid: int) -> bool:
    """Whether ``pid`` certainly has no child, dead or alive; False where the kernel does not say."""
    try:
        return not any(read(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False


def all_tasks_in(pid: int, states: bytes) -> bool:
    """Whether every task of ``pid`` is in one of ``states``, or gone."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            statistics = read(f"/proc/{pid}/task/{task}/stat")
            if statistics[statistics.rindex(b")") + 2] not in states:
                return False
    except OSError:
        pass
    return True


def run_time(pids: Iterable[int], proc: str = "/proc") -> int | None:
    """Nanoseconds for which the tasks of ``pids`` have run; None where the kernel does not say it of each of them.

    It has no such file without CONFIG_SCHED_INFO, and zeros in it where delay accounting is off; a task that is there
    has run.
    """
    total = 0
    try:
        for pid in pids:
            for task in os.listdir(f"{proc}/{pid}/task"):
                run_time = int(read(f"{proc}/{pid}/task/{task}/schedstat").split()[0])
                if not run_time:
                    return None
                total += run_time
    except (OSError, IndexError, ValueError):
        return None
    return total


def read(path: str) -> bytes:
    """All of a file in /proc, some of which give a page at a time."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(fd, 65536):
            pieces.append(piece)
            if len(piece) < _LEAST_PIECE:
                break  # what is left would not have fitted into a page
        return b"".join(pieces)
    finally:
        os.close(fd)


class Schedule:
    """Times (monotonic seconds) by name, the earliest first."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # with times that have been replaced since, and are passed over

    def set(self, name: str, when: float) -> None:
        """``name`` is due then, and not when it was before."""
        if self._times.get(name) != when:
            self._times[name] = when
            if when < _NEVER:
                heapq.heappush(self._heap, (when, name))

    def remove(self, name: str) -> None:
        """It is gone. Harmless when repeated."""
        self._times.pop(name, None)

    def pop_due(self, now: float) -> list[str]:
        """The names whose time has come; each is forgotten until it is set again."""
        names = []
        while self.next_time() <= now:
            name = heapq.heappop(self._heap)[1]
            del self._times[name]
            names.append(name)
        return names

    def next_time(self) -> float:
        """The earliest time."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else _NEVER
