"""What the host sees of cells: their processes, and what they leave behind. Nothing here asks casemate."""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import containers
from tests.support.waiting import MAX_WAIT
from tests.warmth import is_init, runs_a_program

from casemate import Event

SUPERVISOR = b"casemate-supervisor"
_PIECE = 1 << 22  # bytes of memory read at once


def children(pid: int) -> list[int]:
    """Children of every thread of ``pid``, zombies included.

    Read twice: the kernel passes one over where another ends meanwhile (proc(5), /proc/pid/task/tid/children).
    """
    found: dict[int, None] = {}
    for task in 2 * _threads(pid):
        with contextlib.suppress(OSError):  # the thread has ended
            found |= dict.fromkeys(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    return list(found)


def _threads(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def descendants(pid: int) -> list[int]:
    """Everything below ``pid``, nearest first."""
    found = []
    waiting = children(pid)
    while waiting:
        one = waiting.pop(0)
        found.append(one)
        waiting += children(one)
    return found


def command(pid: int) -> bytes:
    """The command line of ``pid``; empty for a zombie and for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def state(pid: int) -> str:
    """``R``, ``S``, ``T``, ``Z`` and so on; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def supervisors(host: int | None = None) -> list[int]:
    """The first process of each supervisor of ``host`` (this process when None)."""
    return [pid for pid in children(host or os.getpid()) if SUPERVISOR in command(pid)]


def serving(host: int | None = None) -> list[int]:
    """The process of each supervisor that is the parent of cells; the first one sees to its end."""
    pids = containers.supervisors() if host in (None, os.getpid()) else []
    for first in supervisors(host):
        pids += [pid for pid in children(first) if SUPERVISOR in command(pid)] or [first]
    return pids


def cells(host: int | None = None) -> list[int]:
    """The init of each cell in which a program runs (others are ready for one, or empty)."""
    inits = (pid for server in serving(host) for pid in children(server) if is_init(pid))
    return [pid for pid in inits if any(runs_a_program(child) for child in children(pid))]


def in_cells(host: int | None = None) -> list[int]:
    """Every process in every cell in which something runs, init first."""
    return [pid for init in cells(host) for pid in (init, *descendants(init))]


@dataclass(frozen=True)
class Watched:
    """Processes held by descriptors: a number that is used again cannot be mistaken for them."""

    pidfds: tuple[int, ...]

    def living(self) -> int:
        """How many of them live at this moment."""
        return len(self.pidfds) - len(select.select(self.pidfds, [], [], 0)[0])

    def wait(self, seconds: float = MAX_WAIT) -> bool:
        """Wait for the end of all; whether they did end."""
        poll = select.poll()
        left = set(self.pidfds)
        for fd in left:
            poll.register(fd, select.POLLIN)
        while left:
            ended = poll.poll(seconds * 1000)
            if not ended:
                return False
            for fd, _ in ended:
                poll.unregister(fd)
                left.discard(fd)
        return True


@contextlib.contextmanager
def watching(pids: list[int]) -> Iterator[Watched]:
    """Hold ``pids``, which must be alive."""
    held: list[int] = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                held.append(os.pidfd_open(pid))
        yield Watched(tuple(held))
    finally:
        for fd in held:
            os.close(fd)


def descriptors(pid: int | str = "self") -> dict[str, int]:
    """What descriptors of ``pid`` lead to, and how many of each."""
    found: dict[str, int] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            kind = re.sub(r"\d+", "N", target) if target.startswith("/") else target.partition(":")[0]
            found[kind] = found.get(kind, 0) + 1
    return found


def holds(pid: int, value: bytes) -> bool | None:
    """Whether ``value`` is in the memory of ``pid`` that it can write to; None when that may not be read."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            places = [line.split()[:2] for line in maps]
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        ranges = [tuple(int(end, 16) for end in place.split("-")) for place, rights in places if "w" in rights]
        return any(value in piece for first, last in ranges for piece in _pieces(memory, first, last, len(value)))
    finally:
        os.close(memory)


def _pieces(memory: int, first: int, last: int, overlap: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # what is reserved and cannot be read
        while first < last:
            yield os.pread(memory, min(_PIECE + overlap, last - first), first)
            first += _PIECE


def mounts(pid: int | str = "self") -> list[str]:
    """Mount points that ``pid`` sees, but for those that tests on other workers make for themselves."""
    points = (line.split()[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return sorted(point for point in points if "/pytest-" not in point)


def cgroup_folders(*supervisors: int) -> set[str]:
    """The folders that these supervisors made in any hierarchy."""
    found = [str(path) for path in _cgroup_folders(Path("/sys/fs/cgroup"), 6)]
    return {path for path in found if any(f"/casemate-{pid}-" in path for pid in supervisors)}


def _cgroup_folders(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                if path.name.startswith("casemate-"):
                    yield path
                    yield from (below for below in path.iterdir() if below.is_dir())
                elif depth:
                    yield from _cgroup_folders(path, depth - 1)


def resident(pid: int | str = "self", line: str = "VmRSS") -> int:
    """Resident memory of a process in bytes: now, or at most since the peak was reset (``VmHWM``)."""
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith(f"{line}:"):
            return int(text.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Reset ``VmHWM`` (proc_pid_clear_refs(5))."""
    Path("/proc/self/clear_refs").write_text("5")


@contextlib.contextmanager
def leaving(stream: Iterator[Event]) -> Iterator[Iterator[Event]]:
    """``stream``, closed at the end of the block whatever happens in it."""
    try:
        yield stream
    finally:
        assert isinstance(stream, Generator)
        stream.close()
