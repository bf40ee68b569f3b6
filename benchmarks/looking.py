"""A sandbox's processes, memory and cgroups, seen from outside, for benchmarks that look for leaks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Process:
    """One process: its ``pid``, its parent, its name, and its command line."""

    pid: int
    parent: int
    name: str
    command: bytes

    @property
    def is_supervisor(self) -> bool:
        return b"casemate-supervisor" in self.command and self.name not in ("casemate-init", "casemate-zygote")

    @property
    def is_zygote(self) -> bool:
        return self.name == "casemate-zygote"

    @property
    def is_init(self) -> bool:
        return self.name == "casemate-init"


@dataclass(frozen=True, slots=True)
class Held:
    """A process's memory in bytes (proportional, so shared memory counts once), descriptors and mounts."""

    memory: int
    descriptors: int
    mounts: int


def below(root: int) -> list[Process]:
    """Every process that descends from ``root``, parents before children."""
    everyone = list(_everyone())
    found: list[Process] = []
    parents = {root}
    while parents:
        children = [one for one in everyone if one.parent in parents]
        found += children
        parents = {one.pid for one in children}
    return found


def casemates_own() -> list[Process]:
    """Every supervisor, zygote and init on the machine."""
    return [one for one in _everyone() if one.is_supervisor or one.is_zygote or one.is_init]


def held(pid: int) -> Held:
    """The current resources of ``pid``. Raises ``OSError`` if it has ended."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    memory = next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    mounts = len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return Held(memory, len(os.listdir(f"/proc/{pid}/fd")), mounts)


def private_bytes(pid: int) -> int:
    """The private memory of ``pid``, as smaps(5) counts it."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_"))


def groups(supervisor: int | None = None) -> list[str]:
    """casemate's cgroup folders in all hierarchies, including those of cells. Of ``supervisor``, or of all."""
    found = []
    for top in _CGROUPS.glob(f"**/casemate-{'' if supervisor is None else f'{supervisor}-'}*"):
        found += [str(top), *(str(cell) for cell in top.iterdir() if cell.is_dir())]
    return found


def _everyone() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                status = Path(f"/proc/{name}/stat").read_text()
                state, parent = status[status.rindex(")") + 2 :].split()[:2]
                if state not in "ZX":
                    comm = status[status.index("(") + 1 : status.rindex(")")]
                    yield Process(int(name), int(parent), comm, Path(f"/proc/{name}/cmdline").read_bytes())
