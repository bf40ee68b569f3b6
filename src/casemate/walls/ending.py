"""What a wall has measured of a cell: how it ended, and what a step of its session used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Ending:
    """How a cell ended, as seen from outside.

    ``wait_status``: of the program (as wait(2) gives it), None when it never reported;
    ``reason``: None when the program ended by itself; ``tree_fd``: a descriptor of the folder
    of everything the cell could write, which the receiver closes. ``start``: how the cell was made, as
    :class:`casemate.model.isolation.IsolationReport` has it, and ``start_reason`` why.
    """

    wait_status: int | None
    reason: str | None
    seconds: float
    cpu_seconds: float
    peak_memory: int
    tasks: int
    oom: bool
    space_left: int
    inodes_left: int
    tree_fd: int
    start: str = "exec"
    start_reason: str = ""


class StepUsage(NamedTuple):
    """What a session's cell used during a step: seconds of cpu, and the most bytes and tasks; what it went on using,
    and what was left of its limits, when the step was over; whether the wall ``interrupted`` it: its time was up."""

    cpu_seconds: float
    peak_memory: int
    tasks: int
    memory_left: int
    tasks_left: int
    space_left: int
    inodes_left: int
    interrupted: bool
