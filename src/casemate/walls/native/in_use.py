"""Measures what the supervisor and its cells use now, from proc(5) and the cells' cgroups, if any.

Blocks while it reads the status of every process of this machine once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from casemate.model.overview import InUse
from casemate.walls import machine

if TYPE_CHECKING:
    from casemate.walls.native.link import SupervisorLink

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESIDENT = "proc(5): resident pages of every process; shared pages count once per process, files in cells do not count"
_CGROUPS = "memory of the cells' cgroups, including files in cells"
_CPU = "cpu time from proc(5)"
_MOUNTS = (("/sys/fs/cgroup", "", "memory.current"), ("/sys/fs/cgroup/memory", "memory", "memory.usage_in_bytes"))


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    ticks: int
    pages: int


def used_by(link: SupervisorLink | None) -> InUse:
    """Return the resources of the supervisor of ``link`` and its cells."""
    supervisor, cells = (0, []) if link is None else link.cells()
    if not supervisor:
        return InUse()
    ready = sum(cell.sink is None for cell in cells)  # they wait for a program
    processes = _processes_of(supervisor)
    memory = _memory_of_cgroups([process.pid for process in processes], supervisor)
    mechanism = f"{_RESIDENT if memory is None else _CGROUPS}; {_CPU}"
    if memory is None:
        memory = sum(process.pages for process in processes) * _PAGE
    seconds = sum(process.ticks for process in processes) / _TICKS
    return InUse(len(cells) - ready, ready, len(processes), memory, seconds, mechanism)


def _processes_of(supervisor: int) -> list[_Process]:
    """Return the process ``supervisor`` and all of its descendants."""
    children: dict[int, list[_Process]] = {}
    tree: list[_Process] = []
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
        if process.pid == supervisor:
            tree.append(process)
    for process in tree:  # grows during the loop
        tree += children.pop(process.pid, ())
    return tree


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat")):
            fields = stat.rpartition(")")[2].split()  # a process's name may contain anything
            yield _Process(int(name), int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[21]))


def _memory_of_cgroups(pids: list[int], supervisor: int) -> int | None:
    """Return the bytes in the cells' own cgroups, or None if they have none."""
    own = set(_groups(supervisor))
    folders = {folder for pid in pids for folder in _groups(pid)} - own
    amounts = [int(text) for folder in folders if (text := _read(folder).strip()).isdigit()]
    return sum(amounts) if amounts else None


def _groups(pid: int) -> Iterator[str]:
    """Yield the files with the memory use of a process's cgroups."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for mount, controller, file in _MOUNTS:
            if controller in controllers.split(",") and ".." not in path:
                yield f"{mount}{path.rstrip('/')}/{file}"


def _read(path: str) -> str:
    return machine.read(path).decode("utf-8", "replace")
