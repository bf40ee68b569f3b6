"""What every wall offers: prove itself, and run one planned cell.

Above: `casemate.execution`, which knows walls only by this. Below: a folder for each wall, listed in `registry`.
A wall reports what happened as values; it raises only `casemate.CasemateError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from casemate.errors import Fault, WallUnavailable

if TYPE_CHECKING:
    from casemate.model.diagnosis import Warmth
    from casemate.model.isolation import IsolationReport
    from casemate.model.overview import InUse
    from casemate.model.plan import Entry, Launch, ListeningSocket, Plan


@dataclass(frozen=True, slots=True)
class CellEnding:
    """How a cell ended, as seen from outside.

    ``wait_status``: of the program (as wait(2) gives it), None when it never reported;
    ``reason``: None when the program ended by itself; ``tasks``: the most that were seen at once, and how many were
    ``begun`` in all, 0 where that is not known; ``tree_fd``: a descriptor of the folder
    of everything the cell could write, `workspace` in it, which the receiver closes. ``start``: how it was made, as
    :class:`casemate.model.isolation.IsolationReport` has it, and ``start_reason`` why.
    """

    wait_status: int | None
    reason: str | None
    seconds: float
    cpu_seconds: float
    peak_memory: int
    tasks: int
    begun: int
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


Stream = Literal["stdout", "stderr"]

# Why casemate, and not the program, ended a cell.
Reason = Literal[
    "timeout",
    "memory",
    "cpu",
    "disk",
    "processes",
    "output",
    "cancelled",
    "killed",
    "closed",
    "silent",
    "deaf",
    "pipes",
    "uncovered",
    "terminals",
]


class Sink(Protocol):
    """Takes what a cell says, in a thread of the wall's; must not block."""

    def output(self, stream: Stream, data: bytes) -> None:
        """Some bytes that the program wrote."""

    def frame(self, frame: bytes) -> None:
        """One control frame from inside the cell: hostile, bounded in size."""

    def is_full(self) -> bool:
        """Whether the wall should stop reading until the cell is resumed."""


class CellMissed(Fault):
    """A cell that was ready had ended before its program began, which so never did: begin it in another."""


class SessionSink(Protocol):
    """Takes what a session's cell says, in a thread of the wall's; must not block."""

    def output(self, step: int | None, stream: Stream, data: bytes) -> None:
        """Some bytes from the pipes of ``step``, or from the cell's own."""

    def frame(self, frame: bytes) -> bool:
        """One control frame, hostile; whether text that was written before it is still to come from the pipes."""

    def count_frames(self) -> int:
        """How many frames of the step that runs have come."""

    def settle(self, upto: int = ...) -> None:
        """The pipes have been emptied since the first ``upto`` frames came: no text will come any more that was written
        before those."""

    def step_ready(self, step: int) -> None:
        """The pipes of ``step`` are there."""

    def step_over(self, step: int, usage: StepUsage) -> None:
        """What was used up to the end of ``step``."""

    def is_full(self, step: int | None) -> bool:
        """Whether the wall should stop reading this step's pipes until the cell is resumed; 0 is for the cell's own
        pipes, and None for the one that frames come through."""

    def interpreter_closed(self) -> None:
        """The interpreter does not speak or listen any more: its end of a pipe is closed."""


class Standard(NamedTuple):
    """A program's standard streams: descriptors, of which a wall takes copies. Pipes of the caller's making, whose
    other ends the program does not have: with a terminal it could type for its user (TIOCSTI, ioctl_tty(2)), and a file
    would be its to read and write at any place."""

    stdin: int
    stdout: int
    stderr: int


class LivingCell(Protocol):
    """What a run's cell and a session's cell have in common. Every method but `wait` may be called from any thread."""

    def kill(self, reason: Reason) -> None:
        """End everything in the cell. Harmless when it has ended. The files of a session's cell are kept for its next
        one unless the reason is "closed"."""

    def read_on(self) -> None:
        """Read on after the sink was full."""

    def read_now(self, then: Callable[[], object]) -> None:
        """Call ``then`` once the sink has what the program has written by now, from whichever thread reads it; not
        where the cell has ended."""

    def pause(self) -> None:
        """Stop everything in it, and its clock, until `resume`: it waits for an answer and for nothing else. Not when
        it has been interrupted, or when no step runs. The clock counts whatever runs all the same."""

    def resume(self) -> None:
        """Let it and its clock go on. Harmless when it was not paused."""

    def listeners(self) -> Future[list[int]]:
        """Descriptors of the plan's listeners, in its order, when they are made; the caller closes them. Cancelled when
        the cell ended before."""

    def listen(self, sockets: Sequence[ListeningSocket]) -> Future[list[int]]:
        """Make more sockets in the cell's network: descriptors in that order, which the receiver closes. The future may
        hold an ``OSError``."""

    async def wait(self) -> CellEnding:
        """Wait for the end; everything in the cell is dead then.

        Raises ``Unavailable``, ``InvalidArgument`` or ``Fault`` for a cell that could not be made, and ``CellMissed``
        for a session's.
        """


class Cell(LivingCell, Protocol):
    """A living cell of a run."""

    def signal(self, number: int) -> None:
        """Send the program, and what it runs in its foreground, a signal. Where it has not begun the cell is ended.
        From any thread."""


class SessionCell(LivingCell, Protocol):
    """A living cell whose interpreter takes one step after the other (docs/internals/session-protocol.md)."""

    id: str
    start: str  # how it was made, and why, as in `Ending`
    start_reason: str

    def send(self, request: bytes) -> None:
        """Send the interpreter a request. From any thread; never blocks."""

    def prepare_step(self, step: int) -> None:
        """Make the pipes of ``step``, one of the first two of this cell; `SessionSink.step_ready` follows."""

    def begin_step(self, step: int, request: bytes, seconds: float, grace: float, repeat: float) -> None:
        """Send the interpreter the request for a step. It has ``seconds``; then it is interrupted, again each
        ``repeat`` seconds, and the cell ends ``grace`` seconds later."""

    def hurry(self) -> None:
        """Somebody waits for what will be told of a step that is over."""

    def end_step(self, step: int) -> None:
        """The step is over; `SessionSink.step_over` follows, and `SessionSink.step_ready` for the next but one. Only
        from where the sink is called."""

    def interrupt(self, grace: float) -> None:
        """Interrupt what runs; the cell ends ``grace`` seconds later if that was of no use."""

    async def pause_files(self) -> bool:
        """Stop everything in the cell; whether all of it is stopped."""

    def resume_files(self) -> None:
        """Let it go on."""

    async def stayed_paused(self) -> bool:
        """Whether nothing in it has run between the last `pause_files` and the last `resume_files`."""

    async def open_folders(self) -> tuple[int, int]:
        """Descriptors of the workspace as the cell sees it, and of the folder of everything it can write; the
        receiver closes them. Raises as `wait` does where the cell could not be made."""

    def show(self, source: str, target: str) -> Future[None]:
        """Show ``source``, a folder of the host, read-only at ``target``, a folder that every cell has empty. From any
        thread; what is shown stays as long as the cell lives. The future may hold an ``OSError``."""

    def forget(self) -> None:
        """The files that were kept of it are not wanted any more. Harmless when repeated."""


class Wall(Protocol):
    """Something that holds cells."""

    name: str
    host_address: str
    """Where cells find the host: of a plan's listeners."""
    lays_out: bool  # whether changes of a caller's folder are laid out when a step is over, and not where they are made
    refused: Sequence[tuple[str, WallUnavailable]]
    """Stronger walls that were wanted and cannot be had, by name, once it is proved."""

    def warm_up(self) -> None:
        """Start what cells need without waiting for it. Raises ``Unavailable``."""

    async def prove(self) -> IsolationReport:
        """What this wall can do here, as its self-test showed. Raises ``WallUnavailable``."""

    def system_entries(self) -> tuple[Entry, ...]:
        """What every cell can read of the host's system."""

    def shown_paths(self) -> tuple[str, ...]:
        """What of this machine every cell sees, whatever a policy says."""

    def place(self, launch: Launch) -> Launch:
        """``launch`` with the interpreter where cells have it. Raises ``RuntimeMissing``."""

    def start(self, plan: Plan, sink: Sink) -> Cell:
        """Start a cell for ``plan``; what it says goes to ``sink``."""

    def start_piped(self, plan: Plan, standard: Standard) -> Cell:
        """Start a cell for ``plan`` whose standard streams are the caller's; it is listened to by nobody else."""

    def open(self, plan: Plan, sink: SessionSink) -> SessionCell:
        """Start a cell for the session ``plan``."""

    def keep_ready(self, plan: Plan) -> None:
        """Keep cells ready for programs such as that of ``plan``, without waiting for it."""

    def warmth(self) -> Warmth:
        """What is kept ready."""

    def in_use(self) -> InUse:
        """What its cells use now. Blocks for a moment."""

    async def close(self) -> None:
        """End every cell and everything of the wall. Bounded."""
