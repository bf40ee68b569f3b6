"""What the machine has left, and whether one more cell may start on it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from casemate.model.limits import format_size

Missing = Literal["", "turns", "memory", "processes"]

PATIENCE = 30.0  # seconds: where nothing of ours will end, nobody knows when there is room, and callers time out
_CELL_MEMORY = 32 << 20  # bytes: an interpreter and a library; what a program takes later, the next look sees
_CELL_PROCESSES = 16  # Node's threads and casemate's own
_SPARED, _MOST_SPARED = 0.05, 256 << 20  # of the memory, for whatever else runs here
_SCARCE = 0.25  # of the memory: with more to spare what waits is at a limit of its own, such as a program at its cell's
_PRESSED = 20  # percent of the time: from here on cells that run hold each other up


@dataclass(frozen=True, slots=True)
class Room:
    """What this machine has left, or the part of it that casemate may use.

    Attributes:
        memory: Bytes that can be had without swapping, of ``memory_total``.
        memory_pressure: Percent of the last ten seconds in which something waited for memory; 0 where nothing tells.
        processes: How many more processes and threads there may be.
    """

    memory: int = 0
    memory_total: int = 0
    memory_pressure: int = 0
    processes: int = 0

    def __str__(self) -> str:
        pressure = f", waited for {self.memory_pressure} % of the time" if self.memory_pressure else ""
        return f"{format_size(self.memory)} of memory{pressure}, and {self.processes} more processes"


class Verdict(NamedTuple):
    """``missing``: why it does not start."""

    act: Literal["start", "wait", "refuse"]
    missing: Missing = ""


def decide(room: Room, begun: int, running: int, waited: float) -> Verdict:
    """Whether one more cell starts. ``begun``: how many go on that ``room`` does not show yet; ``running``: how many in
    all; ``waited``: seconds without room. Pressure, where memory is scarce, holds back all but the only one: it may be
    because of others.
    """
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
