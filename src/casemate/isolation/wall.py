"""What every wall offers: prove itself, and run one planned cell.

Above: `casemate.execution`, which knows walls only by this. Below: `native`.
A wall reports what happened as values; it raises only `casemate.CasemateError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from casemate.model.isolation import IsolationReport
from casemate.model.plan import Entry, Plan
from casemate.model.warmth import Warmth

Stream = Literal["stdout", "stderr"]

# Why casemate, and not the program, ended a cell.
Reason = Literal["timeout", "memory", "cpu", "output", "cancelled", "killed", "closed"]


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


class Sink(Protocol):
    """Takes what a cell says, in a thread of the wall's; must not block."""

    def output(self, stream: Stream, data: bytes) -> None:
        """Some bytes that the program wrote."""
        ...

    def frame(self, frame: bytes) -> None:
        """One control frame from inside the cell: hostile, bounded in size."""
        ...

    def is_full(self) -> bool:
        """Whether the wall should stop reading until the cell is resumed."""
        ...


class Cell(Protocol):
    """A living cell."""

    def kill(self, reason: Reason) -> None:
        """End everything in the cell. Harmless when it has ended. From any thread."""
        ...

    def resume(self) -> None:
        """Read on after the sink was full. From any thread."""
        ...

    async def listeners(self) -> list[int]:
        """Descriptors of the plan's listeners, in its order; the caller closes them. Waits until they are made.

        Raises ``asyncio.CancelledError`` when the cell ended before.
        """
        ...

    async def ended(self) -> Ending:
        """Wait for the end; everything in the cell is dead then.

        Raises ``Unavailable``, ``InvalidArgument`` or ``Fault`` for a cell that could not be made.
        """
        ...


class Wall(Protocol):
    """Something that holds cells."""

    name: str

    async def prove(self) -> IsolationReport:
        """What this wall can do here, as its self-test showed. Raises ``WallUnavailable``."""
        ...

    def system_entries(self) -> tuple[Entry, ...]:
        """What every cell can read of the host's system."""
        ...

    def start(self, plan: Plan, sink: Sink) -> Cell:
        """Start a cell for ``plan``; what it says goes to ``sink``."""
        ...

    def keep_ready(self, plan: Plan) -> None:
        """Keep cells ready for programs such as that of ``plan``, without waiting for it."""
        ...

    def warmth(self) -> Warmth:
        """What is kept ready."""
        ...

    async def close(self) -> None:
        """End every cell and everything of the wall. Bounded."""
        ...
