"""What this machine has left, as proc(5) and the cgroups that casemate itself is in tell it.

One look takes less than a tenth of a millisecond. What nothing tells counts as unlimited.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from functools import cache
from itertools import accumulate

from casemate.model.room import Room

_PLENTY = 2000  # processes: where there are so many more, nobody need count whose they are
_UNLIMITED = 1 << 60  # bytes or processes; more than any machine has, and less than what cgroup v1 calls its limit
_LIMITS = {"memory": ("memory.max", "memory.high", "memory.limit_in_bytes"), "pids": ("pids.max",)}
_USED = {"memory": ("memory.current", "memory.usage_in_bytes"), "pids": ("pids.current",)}


def look() -> Room:
    """What there is now. From any thread."""
    whole = [_number("/proc/meminfo", rb"%b:\s+(\d+) kB" % name) << 10 for name in (b"MemAvailable", b"MemTotal")]
    memory, total = min([whole, *(_room_in(folder, "memory") for folder in _groups("memory"))])
    pressure = _number("/proc/pressure/memory", rb"some avg10=(\d+)", missing=0)
    return Room(max(0, memory), total, pressure, max(0, _processes()))


def _processes() -> int:
    tasks = _number("/proc/loadavg", rb"/(\d+)", missing=0)  # threads of the whole machine
    free = min([_most_tasks() - tasks, *(_room_in(folder, "pids")[0] for folder in _groups("pids"))])
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most == resource.RLIM_INFINITY or not os.getuid():  # root is not held to it
        return free
    return min(free, most - (tasks if most - tasks > _PLENTY else _own_tasks()))


def _own_tasks() -> int:
    """Threads of this user, as far as the owner of a process's files tells: not the init of a cell."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it may just have ended
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += os.stat(f"/proc/{name}/task").st_nlink - 2
    return count


@cache
def _most_tasks() -> int:
    return min(_number("/proc/sys/kernel/pid_max"), _number("/proc/sys/kernel/threads-max"))


@cache
def _groups(kind: str) -> list[str]:
    """Folders of the cgroups with a limit of this kind, of those that this process was in at its first look."""
    folders = []
    for line in _read("/proc/self/cgroup").decode(errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", kind):
            mounts = [f"/sys/fs/cgroup/{kind}"] if controllers else ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            levels = accumulate(f"/{part}" for part in path.split("/") if part not in ("", ".."))
            folders += [f"{mount}{level}/" for level in ("", *levels) for mount in mounts]
    return [folder for folder in folders if _room_in(folder, kind)[1] < _UNLIMITED]


def _room_in(folder: str, kind: str) -> list[int]:
    """What is left in a cgroup, and its limit. Files that nobody has used lately are given up before anything fails."""
    most, used = (min(_number(folder + name) for name in names[kind]) for names in (_LIMITS, _USED))
    cached = _number(f"{folder}memory.stat", rb"(?s).*inactive_file (\d+)", missing=0) if kind == "memory" else 0
    return [most - used + cached, most]


def _number(path: str, pattern: bytes = rb"(\d+)", missing: int = _UNLIMITED) -> int:
    found = re.search(pattern, _read(path))
    return int(found[1]) if found else missing


def _read(path: str) -> bytes:
    """A small file, empty where there is none; in half the time that a file object takes."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 1 << 14)
        finally:
            os.close(fd)
    return b""
