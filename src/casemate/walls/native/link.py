"""The link to one supervisor: its process, its socket, and a thread that pumps what cells say.

The thread is the only reader of the socket and of every pipe, so pumping does not depend on
the application's event loop. Nothing waits for the end of a pipe: a cell is over when the
supervisor says so, and then what its pipes still hold is read without waiting.
"""

from __future__ import annotations

import errno
import heapq
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from casemate.errors import Fault
from casemate.supervisor import wire
from casemate.supervisor.frames import FrameError
from casemate.supervisor.readiness import DescriptorPoll
from casemate.walls.native.descriptors import ALL, PIPE, Outbox, close_all, what_is_in
from casemate.walls.native.refusal import Unlaunched, why_lost
from casemate.walls.native.running import (
    RunningCell,
    RunningSession,
    SessionPipes,
    StepPipe,
)
from casemate.walls.native.starts import CellStarter
from casemate.walls.wall import CellEnding, Stream

_STOP_GRACE = 2.0  # seconds the pump has to see the end
_POSTED = 0.001  # seconds that what is posted waits: who is woken for it would take the turn of whom it was done for
_LONG = 0.005  # seconds that what came through a pipe may take; most takes a thousandth
_REST = 4  # times as long as that a pipe that took longer rests, so that other cells have their turn
_QUIET = 3.0  # seconds until a supervisor that has cells is asked whether it is there, and then looked at each second
_MOST_LOOKS = 10  # without an answer: time in which this process was stopped has none
_PIECE = PIPE // 16  # bytes that are read of it at once then: twice as many after each quick one, up to half a pipe


class SupervisorProcess(Protocol):
    """A supervisor that was started, as its link has it. ``pid``: 0 where it is no process; ``socket``: to it; ``log``:
    the file with its own error text."""

    pid: int
    log: int
    socket: socket.socket

    def last_words(self) -> str:
        """The end of its own error text; empty when it has had no errors."""

    def reap(self) -> None:
        """Wait for its end. Bounded."""


class PoolKeeper(Protocol):
    """The pools, as the link calls them. All of it is called in the pump thread."""

    def handle(self, message: dict[str, Any]) -> None:
        """The supervisor tells of a zygote."""

    def next_time(self) -> float | None:
        """When it wants to be called next, in monotonic seconds; None for not at all."""

    def on_time(self) -> None:
        """It may be that time."""


class SupervisorLink(CellStarter):
    """One running supervisor."""

    def __init__(self, supervisor: SupervisorProcess) -> None:
        """``supervisor`` was just started, and is given away."""
        self.pools: PoolKeeper | None = None
        self.hello: Future[dict[str, Any]] = Future()
        self._supervisor = supervisor
        self._socket = self._supervisor.socket
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._outbox = Outbox(self._socket)
        self._is_posted = False  # since the last time that something was sent
        self._flush_at = 0.0  # when the pump sends that, unless somebody does before
        self._cells = {}
        self.readers: dict[int, RunningCell] = {}
        self.sessions = SessionPipes(self)
        self._resting: list[tuple[float, int, RunningCell]] = []  # a heap: when to read on, and what
        self.poll = DescriptorPoll()
        self._lock = threading.Lock()
        self._looks, self._look_at = 0, 0.0  # since it was asked, and when the next one is
        self._closing = False
        self.alive = True
        self._thread = threading.Thread(target=self._pump, name="casemate-native", daemon=True)
        self._thread.start()
        let_go = weakref.WeakMethod(self._let_go)
        # A forked child of the application must not keep the cells alive after the application is gone.
        os.register_at_fork(after_in_child=lambda: (method := let_go()) and method())

    # -- from any thread

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a message; takes over ``fds`` and closes them once they are on their way."""
        self.post(message, fds)
        self.flush()

    def post(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Have a message sent with the next one: by `flush`, or soon."""
        data = wire.encode(message)
        if len(data) > wire.MAX_MESSAGE:
            close_all(fds or [])
            raise Fault(f"a message of {len(data)} bytes is too long for the supervisor")
        with self._lock:
            if not self.alive:
                close_all(fds or [])
                return
            self._outbox.add(data, fds or [])
            if not self._is_posted:
                self._is_posted, self._flush_at = True, time.monotonic() + _POSTED

    def flush(self) -> None:
        """Send what was posted, unless another thread does."""
        if self._is_posted:
            with self._lock:
                self._send_posted()

    def is_up(self) -> bool:
        """Whether the supervisor is there, also when the pump has not noticed its end yet."""
        with self._lock:
            if not self.alive:
                return False
            poll = select.poll()
            poll.register(self._socket, select.POLLHUP)
            return not poll.poll(0)

    def cells(self) -> tuple[int, list[RunningCell]]:
        """The supervisor's process id, 0 where it is gone, and the cells that there are."""
        with self._lock:
            return (self._supervisor.pid if self.alive else 0), list(self._cells.values())

    def call(self, function: Any, *arguments: Any) -> None:
        """Have the pump thread call ``function``."""
        self._calls.append((function, arguments))
        with self._lock:
            if self.alive:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the supervisor and with it every cell. Returns when all is gone; bounded."""
        with self._lock:
            self._closing = True
            if self.alive:
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_STOP_GRACE)
        self._supervisor.reap()

    def _let_go(self) -> None:
        """In a forked child of the application: it is its parent's."""
        if self.alive:
            self.alive = False
            self._socket.close()
            close_all(fd for cell in self._cells.values() for fd in (cell.order, cell.stdin, cell.program) if fd >= 0)

    # -- in the pump thread

    def _pump(self) -> None:
        self.poll.register(self._socket.fileno(), select.POLLIN)
        self.poll.register(self._wake, select.POLLIN)
        try:
            while self._pump_once():
                pass
        finally:
            self._end_all()

    def _pump_once(self) -> bool:
        times = [
            self.pools.next_time() if self.pools else None,
            self._resting[0][0] if self._resting else None,
            self._flush_at if self._is_posted else None,
            self._look_at if self._cells and self._supervisor.pid else None,
        ]
        when = min((time for time in times if time is not None), default=None)
        for fd, events in self.poll.wait(None if when is None else max(0.0, when - time.monotonic())):
            if fd == self._socket.fileno():
                if events & ~select.POLLOUT and not self._receive():
                    return False
                if events & select.POLLOUT:
                    self._send_on()
            elif fd == self._wake:
                os.eventfd_read(self._wake)
                self._send_on()
                self._catch_up()
            elif fd in self.readers:
                self._read(fd, self.readers[fd])
            elif fd in self.sessions.writers:
                self.sessions.send_on(fd)
        if self._is_posted and time.monotonic() >= self._flush_at:
            self.flush()
        if self.pools:
            self.pools.on_time()
        while self._resting and self._resting[0][0] <= time.monotonic():
            cell = heapq.heappop(self._resting)[2]
            cell.rests = False
            self.read_on(cell)
            self._settle(cell, time.thread_time())
        return self._look()

    def _look(self) -> bool:
        """Ask the supervisor of cells whether it is there; end it where it has not answered for long."""
        now = time.monotonic()
        if not (self._cells and self._supervisor.pid) or now < self._look_at:
            return True
        self._looks, self._look_at = self._looks + 1, now + 1
        if self._looks == 1:
            self.send({"op": "ping"})
        if self._looks <= _MOST_LOOKS:
            return True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._supervisor.reap()  # before the callers hear of it
        return False

    def _send_on(self) -> None:
        """Send what waits as far as it goes, and be woken when more of it can."""
        with self._lock:
            self._flush()
            waiting = self._outbox.waits
        self.poll.register(self._socket.fileno(), select.POLLIN | (select.POLLOUT if waiting else 0))

    def _catch_up(self) -> None:
        for _ in range(len(self._calls)):  # what they call in their turn comes in the next one
            function, arguments = self._calls.popleft()
            function(*arguments)

    def _send_posted(self) -> None:
        """Send what was posted as far as it goes; the pump sends the rest. Under the lock."""
        if self.alive and self._is_posted:
            self._flush()
            if self._outbox.waits:
                os.eventfd_write(self._wake, 1)

    def _flush(self) -> None:
        """Send what waits, as far as it goes. Under the lock."""
        self._is_posted = False
        for data, error in self._outbox.flush():
            message = {**wire.decode(data, {}), "op": "launch refused", "stage": "descriptors", "errno": error.errno}
            self._calls.append((self._finish, ({**message, "detail": str(error)}, [])))
            os.eventfd_write(self._wake, 1)

    def watch(self, cell: RunningCell) -> None:
        """Read the cell's pipes from now on. Harmless for those that are read already."""
        for fd in cell.pipes:
            if fd not in self.readers:
                self.readers[fd] = cell
                if cell.rests:
                    cell.paused[fd] = None
                else:
                    self.poll.register(fd, select.POLLIN)

    def read_on(self, cell: RunningCell) -> None:
        """Read on where it was paused, unless the cell rests."""
        if not cell.rests:
            for fd in cell.paused:
                self.poll.register(fd, select.POLLIN)
            cell.paused.clear()

    def _read(self, fd: int, cell: RunningCell) -> None:
        if fd in cell.paused:
            return  # since this turn began
        data = what_is_in(fd, cell.read_size)
        if not data:
            if data is not None:
                self.close_pipe(fd, cell)
            return
        began = time.thread_time()
        if isinstance(cell, RunningSession) and cell.pipes[fd] is not None:
            self.sessions.read_control(cell)  # what was said before this was written comes before it
        if fd in cell.pipes:
            self.deliver(fd, cell, data)
        is_slow = time.thread_time() - began > _LONG * cell.read_size / PIPE
        if not is_slow and len(data) == cell.read_size < PIPE // 2:  # a whole one is for cells that never took long
            cell.read_size *= 2
        self._settle(cell, began, fd, is_slow=is_slow)
        if fd in cell.pipes and self._is_full(fd, cell):
            self._pause(cell, [fd])

    def _settle(self, cell: RunningCell, began: float, fd: int = -1, *, is_slow: bool = False) -> None:
        """Hand on what waits for text, and have a cell rest that took long since ``began``, by its pipe ``fd``."""
        if isinstance(cell, RunningSession) and not cell.rests:
            self.sessions.settle(cell)
        took = time.thread_time() - began
        is_slow = is_slow or took > _LONG
        if is_slow and cell.read_size < PIPE:  # what came first may have loaded modules
            self._rest(cell, fd, took)
        elif isinstance(cell, RunningSession) and cell.unsettled and not cell.rests and not cell.will_settle:
            cell.will_settle = True
            self.call(self._settle_on, cell)
        if is_slow:
            cell.read_size = _PIECE

    def _settle_on(self, cell: RunningSession) -> None:
        cell.will_settle = False
        self._settle(cell, time.thread_time())

    def _rest(self, cell: RunningCell, fd: int, took: float) -> None:
        """Read none of its pipes for a while, so that other cells have their turn, and then ``fd`` last."""
        if fd in cell.pipes:
            cell.pipes[fd] = cell.pipes.pop(fd)
        self._pause(cell, list(cell.pipes))
        cell.rests = True
        heapq.heappush(self._resting, (time.monotonic() + _REST * took, id(cell), cell))

    def _pause(self, cell: RunningCell, fds: list[int]) -> None:
        """Read these pipes no more until `read_on`."""
        for fd in fds:
            if fd in self.readers and fd not in cell.paused:
                self.poll.unregister(fd)
                cell.paused[fd] = None

    def _is_full(self, fd: int, cell: RunningCell) -> bool:
        place = cell.pipes[fd]
        if isinstance(cell, RunningSession):
            step = place.step if isinstance(place, StepPipe) else None if place is None else 0
            return cell.session_sink is not None and cell.session_sink.is_full(step)
        return cell.sink is not None and cell.sink.is_full()

    def deliver(self, fd: int, cell: RunningCell, data: bytes) -> None:
        """Hand on what came through a pipe of the cell's."""
        try:
            self._hand_on(cell, cell.pipes[fd], data)
        except FrameError:
            self.close_pipe(fd, cell)
        except Exception:  # noqa: BLE001 - whatever one cell's data does, the other cells' pump goes on
            self.close_pipe(fd, cell)
            self._calls.append((cell.kill, ("killed",)))
            os.eventfd_write(self._wake, 1)

    def _hand_on(self, cell: RunningCell, place: Stream | StepPipe | None, data: bytes) -> None:
        if isinstance(cell, RunningSession):
            self.sessions.hand_on(cell, place, data)
            return
        assert cell.sink is not None
        if isinstance(place, str):
            cell.sink.output(place, data)
            return
        for frame in cell.frames.feed(data):
            cell.sink.frame(frame)

    def close_pipe(self, fd: int, cell: RunningCell) -> None:
        """Nothing more is wanted of this pipe, or will come."""
        if fd not in cell.paused:
            self.poll.unregister(fd)
        cell.paused.pop(fd, None)
        place = cell.pipes.pop(fd)
        del self.readers[fd]
        os.close(fd)
        if place is None and isinstance(cell, RunningSession):
            self.sessions.report_closed(cell)

    def read_now(self, cell: RunningCell, then: Callable[[], object]) -> None:
        """Hand on what the cell has written by now, as far as its sink takes it and it does not rest, and call
        ``then``."""
        if isinstance(cell, RunningSession):
            if not cell.paused:
                cell.unsettled = True
                self._settle(cell, time.thread_time())
        else:
            for fd in [fd for fd in cell.pipes if fd in self.readers and fd not in cell.paused]:
                self.read_out(fd, cell)
        then()

    def drain(self, cell: RunningCell) -> None:
        """Read what a dead cell's pipes still hold, and close them."""
        for fd in list(cell.pipes):
            self.read_out(fd, cell)
            if fd in cell.pipes:
                self.close_pipe(fd, cell)

    def read_out(self, fd: int, cell: RunningCell, most: int = ALL) -> None:
        """What is in a pipe now, ``most`` bytes of it."""
        data = what_is_in(fd, most)
        if data:
            self.deliver(fd, cell, data)
        elif data is not None:
            self.close_pipe(fd, cell)

    def _receive(self) -> bool:
        try:
            data, fds, flags, _ = socket.recv_fds(
                self._socket, wire.MAX_MESSAGE, wire.MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return False
        if not data:
            return False
        message = wire.decode(data)
        self._looks, self._look_at = 0, time.monotonic() + _QUIET
        if message["op"] in ("ready", "refused"):
            if not self.hello.done():  # who refuses may say so twice: of a stage, and of its own end
                self.hello.set_result(message)
        elif message["op"] == "listening":
            cell = self._cells.get(message["id"])
            if cell is None or not cell.take_listeners(message, fds):
                close_all(fds)
        elif message["op"] == "program":
            self.take_program(self._cells.get(message["id"]), fds)
        elif message["op"] in ("zygote", "zygote ended"):
            if self.pools:
                self.pools.handle(message)
        elif message["op"] in ("session files", "pipes", "step over", "files paused", "files resumed", "shown"):
            self.sessions.handle(self._cells.get(message["id"]), message, fds)
        elif flags & socket.MSG_CTRUNC:
            lost = {"op": "launch refused", "stage": "descriptors", "errno": errno.EMFILE}
            self._finish({**message, **lost, "detail": "no descriptor is left"}, fds)
        else:
            self._finish(message, fds)
        return True

    def _finish(self, message: dict[str, Any], fds: list[int]) -> None:
        cell = self._cells.get(message["id"])
        if cell is None:
            close_all(fds)
            return
        with self._lock:
            cell.is_over = True  # before its descriptors are closed: nothing begins in it any more
        if isinstance(cell, RunningSession):
            self.sessions.end(cell)
        elif cell.sink is None:
            close_all(list(cell.pipes))
            cell.close_ways_in()
        else:
            if cell.pipes and next(iter(cell.pipes)) not in self.readers:
                self.watch(cell)  # it ended before we came to watch it
            self.drain(cell)
        cell.end_listening()
        with self._lock:
            del self._cells[cell.id]
        if message["op"] == "ended":
            cell.future.set_result(CellEnding(**message["ending"], tree_fd=fds[0]))
        else:
            close_all(fds)
            cell.future.set_exception(Unlaunched(message["stage"], message["errno"], message["detail"]))

    def _end_all(self) -> None:
        with self._lock:
            self.alive = False
            cells = list(self._cells.values())
            self._outbox.clear()
        silence = f"it did not answer for {_MOST_LOOKS} s, and was ended" * (self._looks > _MOST_LOOKS)
        error = why_lost(silence or self._supervisor.last_words(), closing=self._closing)
        for cell in cells:
            cell.lose(error)
        if not self.hello.done():
            self.hello.set_exception(error)
        self._socket.close()
        self.poll.close()
        os.close(self._wake)
        os.close(self._supervisor.log)
        self._supervisor.reap()
