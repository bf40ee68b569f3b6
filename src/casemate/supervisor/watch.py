"""Measures a cell's memory, cpu time and tasks where no cgroup counts them. Reads /proc at intervals.

This is best effort: a cell can take more between two looks. RLIMIT_DATA bounds one process at all times. So a cell of
one process is measured less often, unless its program reserves too much memory for a tight limit (Node).
"""

from __future__ import annotations

import contextlib
import heapq
import os
import time

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_VISITED = 33_000  # processes measured in one cell; limits.processes is at most 32,768
_LARGE_TABLES = 8 << 20  # bytes of one process's page tables; the kernel takes a tenth of a second to walk them
_ALL_TABLES = 64 << 20  # the same for all processes in one exact look; 2 MiB of tables map 1 GiB and take 5 ms
_HIDDEN = 1 << 62
_LEAST_PIECE = 2048  # bytes; the kernel fills a page with as many whole numbers as fit, so a shorter read is the end
OFTEN = 0.02  # seconds between looks at a cell with several processes, or with one that RLIMIT_DATA does not bound
SELDOM = 0.1
_NEVER = float("inf")


class CellUsage:
    """The result of one look at a cell. Sizes are in bytes."""

    def __init__(self) -> None:
        self.private = 0  # private memory of all processes, page tables included
        self.tables = 0
        # Of each process: its memory, its page tables, and the /proc path to measure it at.
        self.claims: list[tuple[int, int, str]] = []
        self.shared = 0  # the largest shared memory of one process
        self.shared_by_each = 0  # the shared memory of all processes, added up
        self.cpu = 0.0  # seconds
        self.tasks = 0  # without init
        self.pids: list[int] = []

    def memory(self, files: int) -> int:
        """Memory in use, without the ``files`` of the cell's tmpfs. An estimate: pages shared by a fork count for each
        process, and shared memory counts for one process only. `proportional` is exact but slow."""
        return self.private + max(0, self.shared - files)

    def most_memory(self) -> int:
        """An upper bound: the memory in use if nothing is shared."""
        return self.private + self.shared_by_each


def measure(init: int) -> CellUsage:
    """Measure every living process below ``init``."""
    usage = CellUsage()
    usage.cpu = _reaped_cpu(init)
    waiting = children(init)
    while waiting and len(usage.pids) < _MAX_VISITED:
        pid = waiting.pop()
        _add(pid, usage)
        waiting.extend(children(pid))
    return usage


def proportional(usage: CellUsage, files: int, may_grow: Callable[[], bool]) -> int:
    """The memory of the processes in ``usage``, in bytes, with each shared page divided among its holders (proc(5),
    Pss), and without the ``files`` of the cell's tmpfs.

    A process that cannot be read counts as more than any limit: it hides on purpose. If page tables are too large to
    walk, alone or together, the process counts with all its memory. The kernel answers only while the process is not
    forking. Many forks can delay it for seconds, so ``may_grow`` is called at intervals; False stops the reading.
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
            continue  # the process ended
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
            # Its first thread has ended: proc(5) then shows no memory for the process itself.
            place, sizes = _living_task(pid)
        private, shared, tables = (sizes.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmPTE"))
        usage.private += private + tables
        usage.shared = max(usage.shared, shared)
        usage.shared_by_each += shared
        usage.tables += tables
        usage.claims.append((private + shared, tables, place))
    except (OSError, ValueError, IndexError):
        return  # the process ended between two reads


def _memory_of(place: str) -> dict[bytes, int]:
    """The memory of ``place``, a process or task in /proc, in bytes; {} if it has none."""
    return _sizes(f"{place}/status", (b"RssAnon", b"RssShmem", b"VmPTE"))


def _sizes(path: str, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """The values of ``names`` in a /proc file, converted from kB to bytes."""
    sizes = {}
    for line in read(path).splitlines():
        name, _, value = line.partition(b":")
        if name in names:
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


def _living_task(pid: int) -> tuple[str, dict[bytes, int]]:
    """The path of a living thread of ``pid``, and its memory; {} if all threads are ending."""
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
    """Cpu time in seconds of the orphans that ``init`` has reaped."""
    try:
        return sum(map(int, _fields(init)[13:15])) / _TICKS
    except (OSError, ValueError, IndexError):
        return 0.0


def _fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the command, which may contain spaces and parentheses."""
    statistics = read(f"/proc/{pid}/stat")
    return statistics[statistics.rindex(b")") + 2 :].split()


def children(pid: int) -> list[int]:
    """The children of all threads of ``pid``."""
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
    """The children found by scanning all of /proc, where the kernel (gVisor) has no children file."""
    pids = []
    for name in os.listdir("/proc") if os.path.exists(f"/proc/{pid}") else ():
        try:
            if name.isdigit() and int(_fields(int(name))[1]) == pid:
                pids.append(int(name))
        except (OSError, ValueError, IndexError):
            continue
    return pids


def terminals(uid: int) -> int:
    """How many open pseudo-terminals ``uid`` owns, by their names in devpts."""
    count = 0
    with contextlib.suppress(OSError), os.scandir("/dev/pts") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # it was just closed
                count += entry.name.isdigit() and entry.stat().st_uid == uid
    return count


def has_no_children(pid: int) -> bool:
    """Whether ``pid`` certainly has no child, dead or alive. False if the kernel cannot tell."""
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
    """Nanoseconds that the tasks of ``pids`` have run; None if the kernel does not report it: schedstat is missing
    without CONFIG_SCHED_INFO, and shows 0 without delay accounting. A real task never shows 0."""
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
    """All of a /proc file; some return a page per read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(fd, 65536):
            pieces.append(piece)
            if len(piece) < _LEAST_PIECE:
                break  # a short read is the end
        return b"".join(pieces)
    finally:
        os.close(fd)


class Schedule:
    """Times (monotonic seconds) by name."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # may hold replaced times, which are skipped

    def set(self, name: str, when: float) -> None:
        if self._times.get(name) != when:
            self._times[name] = when
            if when < _NEVER:
                heapq.heappush(self._heap, (when, name))

    def remove(self, name: str) -> None:
        """Remove ``name``, if present."""
        self._times.pop(name, None)

    def pop_due(self, now: float) -> list[str]:
        """Remove and return the names that are due."""
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
