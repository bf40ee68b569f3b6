"""What the machine has left, and whether one more cell may start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from casemate.model.limits import format_size

Missing = Literal["", "turns", "memory", "processes"]

PATIENCE = 30.0  # seconds: longest wait for memory when none of our cells will free any
_CELL_MEMORY = 32 << 20  # bytes of an interpreter and a library; the next measurement sees what it uses later
_CELL_PROCESSES = 16  # threads of Node and casemate
_SPARED, _MOST_SPARED = 0.05, 256 << 20  # part of the memory, and bytes, left for other programs
_SCARCE = 0.25  # part of the memory: with more left, pressure comes from a lower limit, such as a cell's own
_PRESSED = 20  # percent of the time: at this pressure, running cells delay each other


@dataclass(frozen=True, slots=True)
class Room:
    """What this machine, or casemate's share of it, has left.

    Attributes:
        memory: Bytes available without swapping, of ``memory_total``.
        memory_pressure: Percent of the last ten seconds in which a process waited for memory; 0 if it is not measured.
        processes: How many more processes and threads can start.
    """

    memory: int = 0
    memory_total: int = 0
    memory_pressure: int = 0
    processes: int = 0

    def __str__(self) -> str:
        pressure = f", waited for {self.memory_pressure} % of the time" if self.memory_pressure else ""
        return f"{format_size(self.memory)} of memory{pressure}, and {self.processes} more processes"


class Verdict(NamedTuple):
    """Whether a cell starts. ``missing``: why it does not."""

    act: Literal["start", "wait", "refuse"]
    missing: Missing = ""


def decide(room: Room, begun: int, running: int, waited: float) -> Verdict:
    """Decide whether one more cell starts. ``begun``: running cells that ``room`` does not include yet; ``running``:
    all running cells; ``waited``: seconds without room. If memory is scarce, pressure holds back all but a lone cell,
    since other programs may cause it."""
    spared = min(room.memory_total * _SPARED, _MOST_SPARED)
    is_pressed = room.memory_pressure >= _PRESSED and room.memory < room.memory_total * _SCARCE
    missing: Missing = ""
    if room.memory - spared < (begun + 1) * _CELL_MEMORY or (running and is_pressed):
        missing = "memory"
    elif room.processes < (begun + 1) * _CELL_PROCESSES:
        missing = "processes"
    else:
        return Verdict("start")
    return Verdict("wait" if running or waited < PATIENCE else "refuse", missing)
