"""The interface of a wall: prove itself, and run planned cells.

`casemate.execution` uses walls only through it. `registry` lists the walls, each in its own folder. A wall reports what
happened as values and raises only `casemate.CasemateError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from casemate.errors import WallUnavailable
    from casemate.model.diagnosis import Warmth
    from casemate.model.isolation import IsolationReport
    from casemate.model.overview import InUse
    from casemate.model.plan import Entry, Launch, Plan


@dataclass(frozen=True, slots=True)
class CellEnding:
    """How a cell ended, as seen from outside."""

    wait_status: int | None  # of the program, as in wait(2); None if it never reported
    reason: str | None  # None if the program ended by itself
    seconds: float
    cpu_seconds: float
    peak_memory: int
    tasks: int  # the most seen at once
    begun: int  # tasks started in all; 0 if unknown
    oom: bool
    space_left: int
    inodes_left: int
    tree_fd: int
    """The folder of everything the cell could write, with `workspace` in it; the receiver closes it. For an "overlay"
    it also has `upper`: the changes as an upper directory of overlayfs (`casemate.workspace.upper`). Without `upper`
    nothing is applied."""
    start: str = "exec"  # how it was made, as in `casemate.model.isolation.IsolationReport`
    start_reason: str = ""  # why the cell was not ready: never empty for "exec", else empty


class StepUsage(NamedTuple):
    """What a session's cell used during a step."""

    cpu_seconds: float
    peak_memory: int  # bytes
    tasks: int  # the most at once
    memory_left: int  # bytes still in use after the step
    tasks_left: int  # still running after the step
    space_left: int  # bytes of its limit that are free after the step
    inodes_left: int
    interrupted: bool  # by the wall, because its time was up


Stream = Literal["stdout", "stderr"]

# Why casemate ended a cell.
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
    """Receives the output of a cell in a thread of the wall. Its methods must not block."""

    def output(self, stream: Stream, data: bytes) -> None:
        """Take bytes that the program wrote."""

    def frame(self, frame: bytes) -> None:
        """Take one control frame from inside the cell. It is hostile, and bounded in size."""

    def is_full(self) -> bool:
        """Whether the wall should stop reading until the cell is resumed."""


class SessionSink(Protocol):
    """Receives the output of a session's cell in a thread of the wall. Its methods must not block."""

    def output(self, step: int | None, stream: Stream, data: bytes) -> None:
        """Take bytes from the pipes of ``step``; None means the cell's own pipes."""

    def frame(self, frame: bytes) -> bool:
        """Take one hostile control frame. Returns whether text written before it is still to be read from the pipes."""

    def count_frames(self) -> int:
        """Return how many frames of the current step have arrived."""

    def settle(self, upto: int = ...) -> None:
        """Note that the pipes were emptied after the first ``upto`` frames arrived: all text written before those
        frames has been delivered."""

    def step_ready(self, step: int) -> None:
        """Note that the pipes of ``step`` exist. When the cell starts, it is called for the first two steps."""

    def step_over(self, step: int, usage: StepUsage) -> None:
        """Take the usage of ``step``."""

    def is_full(self, step: int | None) -> bool:
        """Whether the wall should stop reading this step's pipes until the cell is resumed. 0 stands for the cell's own
        pipes, None for the control pipe."""

    def interpreter_closed(self) -> None:
        """Note that the interpreter closed its end of the request or control pipe."""


class Standard(NamedTuple):
    """A program's standard streams: descriptors, which the wall copies. They must be pipes that the caller made and
    whose other ends the program does not have. With a terminal the program could type for its user (TIOCSTI,
    ioctl_tty(2)); a file it could read and write at any position."""

    stdin: int
    stdout: int
    stderr: int


class Cell(Protocol):
    """A living cell. Every method but `wait` may be called from any thread."""

    def kill(self, reason: Reason) -> None:
        """End everything in the cell, if it still runs. A session keeps its files for its next cell unless the reason
        is "closed"."""

    def read_on(self) -> None:
        """Resume reading after the sink was full."""

    def read_now(self, then: Callable[[], object]) -> None:
        """Call ``then`` in the reading thread once the sink has everything the program has written so far. It is not
        called if the cell has ended."""

    def pause(self) -> None:
        """Stop everything in the cell, and its clock, until `resume`, because the cell waits for an answer. Does
        nothing if it has been interrupted or runs no step. The clock counts processes that run nevertheless."""

    def resume(self) -> None:
        """Continue the cell and its clock, if paused."""

    def listeners(self) -> Future[list[int]]:
        """Return descriptors of the plan's listeners, in its order, once they are made; the caller closes them. The
        future is cancelled if the cell ends first."""

    def listen(self, sockets: Sequence[tuple[str, str, int]]) -> Future[list[int]]:
        """Make more sockets in the cell's network. Each has a kind ("tcp", "udp", or "client" for one that does not
        listen), an address and a port. Returns descriptors in that order, which the receiver closes. The future may
        hold an ``OSError``."""

    async def wait(self) -> CellEnding:
        """Wait until everything in the cell is dead.

        Raises ``Unavailable``, ``InvalidArgument`` or ``Fault`` if the cell could not be made.
        """

    def signal(self, number: int) -> None:
        """Send a signal to the program and its foreground processes. If the program has not started, the cell ends."""


class SessionCell(Cell, Protocol):
    """A living cell whose interpreter runs one step after another (docs/internals/session-protocol.md)."""

    id: str
    start: str  # how it was made, and why, as in `CellEnding`
    start_reason: str

    @property
    def is_missed(self) -> bool:
        """Whether it was a ready cell that ended before its program began. The caller should start another cell."""

    def send(self, request: bytes) -> None:
        """Send the interpreter a request. Never blocks."""

    def begin_step(self, step: int, request: bytes, seconds: float, grace: float, repeat: float) -> None:
        """Send the interpreter the request for a step. After ``seconds`` the step is interrupted, again every
        ``repeat`` seconds, and ``grace`` seconds later the cell ends."""

    def hurry(self) -> None:
        """Report a finished step at once, because a caller waits for it."""

    def end_step(self, step: int) -> None:
        """Note that the step is over. `SessionSink.step_over` follows, and `SessionSink.step_ready` for the step after
        the next. Call it only from the sink's thread."""

    def interrupt(self, grace: float) -> None:
        """Interrupt the step. If that does not help, the cell ends ``grace`` seconds later."""

    async def pause_files(self) -> bool:
        """Stop everything in the cell. Returns whether all of it stopped."""

    def resume_files(self) -> None:
        """Resume after `pause_files`."""

    async def stayed_paused(self) -> bool:
        """Return whether nothing ran in the cell between the last `pause_files` and `resume_files`."""

    async def open_folders(self) -> tuple[int, int]:
        """Return descriptors of the workspace as the cell sees it and of the folder of everything it can write. The
        receiver closes them. Raises the same errors as `wait` if the cell could not be made."""

    def show(self, source: str, target: str) -> Future[None]:
        """Show ``source``, a host folder, read-only at ``target``, an empty folder of every cell, for the life of the
        cell. The future may hold an ``OSError``."""

    def forget(self) -> None:
        """Discard the files that were kept of the cell."""


class Wall(Protocol):
    name: str
    host_address: str  # of a plan's listeners, as cells see it
    lays_out: bool  # whether changes of a caller's folder appear in the upper layer only after a step
    refused: Sequence[tuple[str, WallUnavailable]]  # stronger walls that were tried and are unavailable, once proved

    def warm_up(self) -> None:
        """Start what cells need, without waiting. Raises ``Unavailable``."""

    async def prove(self) -> IsolationReport:
        """Run the self-test, or use its earlier result. Raises ``WallUnavailable``."""

    def system_entries(self) -> tuple[Entry, ...]:
        """The system files that every cell can read."""

    def shown_paths(self) -> tuple[str, ...]:
        """The paths of this machine that every cell sees under any policy."""

    def place(self, launch: Launch) -> Launch:
        """Return ``launch`` with the interpreter's path inside cells. Raises ``RuntimeMissing``."""

    def start(self, plan: Plan, sink: Sink) -> Cell:
        """Start a cell for ``plan``; its output goes to ``sink``. Descriptor 3 of the cell is the control pipe (see
        docs/internals/session-protocol.md). The program does not get it unless ``plan.control``."""

    def start_piped(self, plan: Plan, standard: Standard) -> Cell:
        """Start a cell for ``plan`` with the caller's standard streams. Its output is not captured."""

    def open(self, plan: Plan, sink: SessionSink) -> SessionCell:
        """Start a cell for the session ``plan``."""

    def keep_ready(self, plan: Plan) -> None:
        """Keep cells ready for programs like that of ``plan``. Does not wait."""

    def warmth(self) -> Warmth:
        """What is kept ready."""

    def in_use(self) -> InUse:
        """The resources that cells use now. Blocks briefly."""

    async def close(self) -> None:
        """End every cell and the wall's own processes, in bounded time."""
