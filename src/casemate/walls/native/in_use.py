"""What the supervisor and its cells use now, as the kernel tells it: proc(5), and the cells' cgroups where there are.

Blocks for as long as it takes to look at every process of this machine once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from casemate.model.overview import InUse
from casemate.walls.native.running import RunningCell, RunningSession

if TYPE_CHECKING:
    from casemate.walls.native.link import SupervisorLink

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESIDENT = "proc(5): resident pages of every process; what processes share is counted in each, files in cells are not"
_CGROUPS = "memory of the cells' cgroups, files in them included"
_CPU = "cpu time from proc(5)"
_MOUNTS = (("/sys/fs/cgroup", "", "memory.current"), ("/sys/fs/cgroup/memory", "memory", "memory.usage_in_bytes"))


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    ticks: int
    pages: int


def used_by(link: SupervisorLink | None) -> InUse:
    """What the supervisor of ``link`` and its cells use; nothing where there is none."""
    supervisor, cells = (0, []) if link is None else link.cells()
    if not supervisor:
        return InUse()
    ready = sum(_is_ready(cell) for cell in cells)
    processes = _processes_of(supervisor)
    memory = _memory_of_cgroups([process.pid for process in processes], supervisor)
    mechanism = f"{_RESIDENT if memory is None else _CGROUPS}; {_CPU}"
    if memory is None:
        memory = sum(process.pages for process in processes) * _PAGE
    seconds = sum(process.ticks for process in processes) / _TICKS
    return InUse(len(cells) - ready, ready, len(processes), memory, seconds, mechanism)


def _is_ready(cell: RunningCell) -> bool:
    """Whether it waits for a program."""
    return (cell.session_sink if isinstance(cell, RunningSession) else cell.sink) is None


def _processes_of(supervisor: int) -> list[_Process]:
    """The process ``supervisor`` and everything that it has begun."""
    children: dict[int, list[_Process]] = {}
    tree: list[_Process] = []
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
        if process.pid == supervisor:
            tree.append(process)
    for process in tree:  # which grows meanwhile
        tree += children.pop(process.pid, ())
    return tree


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat")):
            fields = stat.rpartition(")")[2].split()  # a process may call itself anything
            yield _Process(int(name), int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[21]))


def _memory_of_cgroups(pids: list[int], supervisor: int) -> int | None:
    """Bytes in the cgroups that are the cells' own; None where they have none."""
    own = set(_groups(supervisor))
    folders = {folder for pid in pids for folder in _groups(pid)} - own
    amounts = [int(text) for folder in folders if (text := _read(folder).strip()).isdigit()]
    return sum(amounts) if amounts else None


def _groups(pid: int) -> Iterator[str]:
    """Files that tell how much memory is in the cgroups of a process."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for mount, controller, file in _MOUNTS:
            if controller in controllers.split(",") and ".." not in path:
                yield f"{mount}{path.rstrip('/')}/{file}"


def _read(path: str) -> str:
    """A file that may have gone."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
