"""What no cgroup counts: the memory, cpu time and tasks of a cell, read from /proc now and then.

Best effort by nature: between two looks a cell can take more. One process alone is held by
RLIMIT_DATA meanwhile, so cells of a single process are looked at less often, unless that reserves a lot (Node).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_VISITED = 33_000  # processes looked at in one cell; limits.processes is at most 32,768
_LARGE_TABLES = 8 << 20  # bytes of page tables that take the kernel a tenth of a second to walk
_HIDDEN = 1 << 62
_LEAST_PIECE = 2048  # bytes; a list is cut where the next number does not fit into a page any more
OFTEN = 0.02  # seconds between looks at a cell of several processes, or of one that RLIMIT_DATA does not hold
SELDOM = 0.1


class Sight:
    """One look at a cell.

    ``private`` memory of each process added up, page tables included, and the most ``shared`` memory of one, in bytes;
    ``cpu`` in seconds; ``tasks`` without init; ``pids`` of the processes. ``tables``: bytes of page tables, and
    ``unasked`` of memory in processes whose page tables are so large that asking more would take too long; ``places``:
    where in /proc each of the others is asked.
    """

    def __init__(self) -> None:
        self.private = 0
        self.tables = 0
        self.unasked = 0
        self.places: list[str] = []
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
    total = sight.tables + sight.unasked
    for place in sight.places:
        try:
            rollup = _read(f"{place}/smaps_rollup")
        except PermissionError:
            return _HIDDEN
        except OSError:
            continue  # it ended
        for line in rollup.splitlines():
            if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


def _add(pid: int, sight: Sight) -> None:
    try:
        fields = _fields(pid)
        tasks = int(fields[17])
        sight.tasks += tasks
        sight.cpu += sum(map(int, fields[11:15])) / _TICKS
        sight.pids.append(pid)
        place, sizes = f"/proc/{pid}", _sizes(f"/proc/{pid}")
        if not sizes and tasks > 1:
            # Its first thread has ended and others live: proc(5) then tells nothing of its memory by its own number.
            place, sizes = _living_task(pid)
        private, shared, tables = (sizes.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmPTE"))
        sight.private += private + tables
        sight.shared = max(sight.shared, shared)
        sight.tables += tables
        if tables > _LARGE_TABLES:
            sight.unasked += private + shared
        else:
            sight.places.append(place)
    except (OSError, ValueError, IndexError):
        return  # it ended between two reads


def _sizes(place: str) -> dict[bytes, int]:
    """Sizes in bytes that ``place``, a process or a task in /proc, tells of its memory; {} when it has none."""
    sizes = {}
    for line in _read(f"{place}/status").splitlines():
        name, _, value = line.partition(b":")
        if name in (b"RssAnon", b"RssShmem", b"VmPTE"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


def _living_task(pid: int) -> tuple[str, dict[bytes, int]]:
    """Where a thread of ``pid`` lives, and the sizes of its memory; none where all of them are just ending."""
    for task in os.listdir(f"/proc/{pid}/task"):
        place = f"/proc/{pid}/task/{task}"
        try:
            sizes = _sizes(place)
        except OSError:
            continue
        if sizes:
            return place, sizes
    return f"/proc/{pid}", {}


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


def stands_still(pid: int, states: bytes) -> bool:
    """Whether every task of ``pid`` is in one of ``states``, or gone."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            statistics = _read(f"/proc/{pid}/task/{task}/stat")
            if statistics[statistics.rindex(b")") + 2] not in states:
                return False
    except OSError:
        pass
    return True


def run_time(pids: Iterable[int]) -> int:
    """Nanoseconds for which the tasks of ``pids`` have run; less where some have gone, or where the kernel does not
    count."""
    total = 0
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                total += int(_read(f"/proc/{pid}/task/{task}/schedstat").split()[0])
        except (OSError, IndexError, ValueError):
            continue
    return total


def _read(path: str) -> bytes:
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
