"""This machine's free memory and processes, read from proc(5) and from casemate's own cgroups.

A look takes less than 0.1 ms. A value that cannot be read counts as unlimited.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from functools import cache
from itertools import accumulate

from casemate.model.room import Room

_PLENTY = 2000  # if RLIMIT_NPROC exceeds the machine's tasks by more than this, the user's tasks are not counted
_UNLIMITED = 1 << 60  # bytes or processes; more than any machine has, and below the value cgroup v1 uses for "no limit"
_LIMITS = {"memory": ("memory.max", "memory.high", "memory.limit_in_bytes"), "pids": ("pids.max",)}
_USED = {"memory": ("memory.current", "memory.usage_in_bytes"), "pids": ("pids.current",)}


def look() -> Room:
    """Return what is free now. Callable from any thread."""
    whole = [_number("/proc/meminfo", rb"%b:\s+(\d+) kB" % name) << 10 for name in (b"MemAvailable", b"MemTotal")]
    memory, total = min([whole, *(_room_in(folder, "memory") for folder in _groups("memory"))])
    pressure = _number("/proc/pressure/memory", rb"some avg10=(\d+)", missing=0)
    return Room(max(0, memory), total, pressure, max(0, _processes()))


def _processes() -> int:
    tasks = _number("/proc/loadavg", rb"/(\d+)", missing=0)  # threads of the whole machine
    free = min([_most_tasks() - tasks, *(_room_in(folder, "pids")[0] for folder in _groups("pids"))])
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most == resource.RLIM_INFINITY or not os.getuid():  # does not apply to root
        return free
    return min(free, most - (tasks if most - tasks > _PLENTY else _own_tasks()))


def _own_tasks() -> int:
    """Count threads of this user, by the owner of each /proc folder. That misses the inits of cells."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += os.stat(f"/proc/{name}/task").st_nlink - 2
    return count


@cache
def _most_tasks() -> int:
    return min(_number("/proc/sys/kernel/pid_max"), _number("/proc/sys/kernel/threads-max"))


@cache
def _groups(kind: str) -> list[str]:
    """Folders of this process's cgroups that limit ``kind``. Cached: a later move goes unnoticed."""
    folders = []
    for line in read("/proc/self/cgroup").decode(errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", kind):
            mounts = [f"/sys/fs/cgroup/{kind}"] if controllers else ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            levels = accumulate(f"/{part}" for part in path.split("/") if part not in ("", ".."))
            folders += [f"{mount}{level}/" for level in ("", *levels) for mount in mounts]
    return [folder for folder in folders if _room_in(folder, kind)[1] < _UNLIMITED]


def _room_in(folder: str, kind: str) -> list[int]:
    """Return what is left in a cgroup, and its limit. Inactive file cache counts as free: the kernel reclaims it."""
    most, used = (min(_number(folder + name) for name in names[kind]) for names in (_LIMITS, _USED))
    cached = _number(f"{folder}memory.stat", rb"(?s).*inactive_file (\d+)", missing=0) if kind == "memory" else 0
    return [most - used + cached, most]


def _number(path: str, pattern: bytes = rb"(\d+)", missing: int = _UNLIMITED) -> int:
    found = re.search(pattern, read(path))
    return int(found[1]) if found else missing


def read(path: str) -> bytes:
    """Read a small file; b"" if it cannot be read. Takes half the time of a file object."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 1 << 14)
        finally:
            os.close(fd)
    return b""
