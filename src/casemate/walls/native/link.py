"""The link to one supervisor: its process, its socket, and a thread that reads the output of cells.

Only that thread reads the socket and the pipes, so reading does not depend on the application's event loop. Nothing
waits for the end of a pipe: a cell is over when the supervisor says so, and then the rest of its pipes is read without
waiting.
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
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, cast

from casemate.errors import Fault
from casemate.files.beneath import write_all
from casemate.supervisor import wire
from casemate.supervisor.readiness import DescriptorPoll
from casemate.walls.native.descriptors import (
    Outbox,
    close_all,
    open_pipes,
    open_requests,
    open_ways_in,
    seal,
)
from casemate.walls.native.refusal import why_lost
from casemate.walls.native.running import RunningCell
from casemate.walls.native.running_session import RunningSession

if TYPE_CHECKING:
    from casemate.model.plan import Plan
    from casemate.walls.native.pool import Pools
    from casemate.walls.wall import CellEnding, SessionSink, Sink

_STOP_GRACE = 2.0  # seconds for the pump to end
_POSTED = 0.001  # seconds: batch delay. Waking the pump at once would take the GIL from the caller

_QUIET = 3.0  # seconds of silence before a supervisor with cells gets a ping; after that it is checked every second
_MOST_LOOKS = 10  # checks without an answer. Seconds would include time in which this process was stopped


class SupervisorProcess(Protocol):
    """A started supervisor, as its link uses it."""

    pid: int  # 0 if it is not a process
    log: int  # a descriptor of the file with its stderr
    socket: socket.socket

    def last_words(self) -> str:
        """Return the end of its stderr; "" if it had no errors."""

    def reap(self) -> None:
        """Wait for its end, in bounded time."""


def _close_tree(ending: Future[CellEnding | None]) -> None:
    """Discard the files of a cell."""
    if ending.exception() is None and (ended := ending.result()):
        os.close(ended.tree_fd)


class SupervisorLink:
    """One running supervisor and its cells. Implements their `Pump`."""

    def __init__(self, supervisor: SupervisorProcess) -> None:
        """Takes over ``supervisor``, which was just started."""
        self.pools: Pools | None = None
        self.hello: Future[dict[str, Any]] = Future()
        self._supervisor = supervisor
        self._socket = self._supervisor.socket
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._outbox = Outbox(self._socket)
        self._is_posted = False  # whether posted messages wait
        self._flush_at = 0.0  # when the pump sends them, if no other thread does first
        self._cells: dict[str, RunningCell] = {}
        self.readers: dict[int, RunningCell] = {}
        self.writers: dict[int, RunningSession] = {}
        self._resting: list[tuple[float, int, RunningCell]] = []  # a heap: when to resume reading, and from which cell
        self.poll = DescriptorPoll()
        self._lock = threading.Lock()
        self._looks, self._look_at = 0, 0.0  # checks since the supervisor's last message, and time of the next check
        self._closing = False
        self.alive = True
        self._thread = threading.Thread(target=self._pump, name="casemate-native", daemon=True)
        self._thread.start()
        let_go = weakref.WeakMethod(self._let_go)
        # A forked child must not keep the cells alive after the application has ended.
        os.register_at_fork(after_in_child=lambda: (method := let_go()) and method())

    # -- from any thread

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a message. Takes over ``fds`` and closes them once they are sent."""
        self.post(message, fds)
        self.flush()

    def post(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Queue a message. It is sent with the next one, by `flush`, or after the batch delay."""
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
        if self._is_posted:
            with self._lock:
                self._send_posted()

    def open_pools(self, concurrency: int) -> Pools:
        """Return the link's pools, created on first use. Only one caller at a time."""
        from casemate.walls.native.pool import Pools  # a single run does not need it

        self.pools = self.pools or Pools(self, self.prepare, concurrency)
        return self.pools

    # -- start of cells: with their program, or waiting for one

    def launch(self, request: dict[str, Any], fds: dict[str, int], sink: Sink | SessionSink) -> RunningCell:
        """Launch a cell by exec, with ``fds`` (taken over) and new pipes for its output. Raises ``OSError``."""
        if request["session"]:
            requests = open_requests(fds)
            pipes = open_pipes(fds, requests)
            cell: RunningCell = RunningSession(self, request["id"], cast("SessionSink", sink), pipes, requests)
        else:
            cell = RunningCell(self, request["id"], sink, open_pipes(fds))
        self._launch(cell, request, fds)
        return cell

    def relaunch(self, cell: RunningCell, request: dict[str, Any], fds: dict[str, int]) -> None:
        """Launch by exec in place of a ready cell that ended before its program began. Raises ``OSError``."""
        cell.become(self, request["id"], open_pipes(fds))
        self._launch(cell, request, fds)
        cell.kill_again()

    def _launch(self, cell: RunningCell, request: dict[str, Any], fds: dict[str, int]) -> None:
        with self._lock:
            alive = self.alive
            if alive:
                self._cells[cell.id] = cell
        if not alive:
            close_all(fds.values())
            cell.lose(why_lost("", closing=self._closing))
            return
        self.send({**request, "id": cell.id, "fds": list(fds)}, list(fds.values()))
        if cell.sink is not None:  # without a sink, no program runs in it yet
            self.call(cell.watch)

    def prepare(self, request: dict[str, Any], payload: int) -> RunningCell:
        """Launch a cell that waits for its program, with ``payload`` (taken over). Raises ``OSError``."""
        fds = {"payload": payload}
        way_in, order = open_ways_in(fds)
        kind = RunningSession if request["session"] else RunningCell
        cell = kind(self, os.urandom(8).hex(), None, open_pipes(fds, way_in, order))
        cell.stdin, cell.order = way_in, order
        self._launch(cell, request, fds)
        return cell

    def begin(
        self,
        cell: RunningCell,
        message: dict[str, Any],
        fds: dict[str, int],
        stdin: bytes,
        sink: Sink | SessionSink,
    ) -> bool:
        """Give a waiting cell its program, in ``message`` and ``fds``, and its standard input.

        Takes ``fds`` over and returns True. Returns False, and starts nothing, if the cell has ended meanwhile. Raises
        ``OSError``, and ends the cell, if there is no memory for ``stdin``.
        """
        with self._lock:
            if not self.alive or cell.is_over or cell.order < 0:
                return False
            order, way_in, program = cell.take_ways_in(sink)
        if program >= 0:
            os.close(program)
        try:
            seal(way_in, stdin)
        except OSError:
            os.close(order)  # ends the cell
            raise
        finally:
            os.close(way_in)
        fds["order"] = order
        self.send({**message, "id": cell.id, "fds": list(fds)}, list(fds.values()))
        self.call(cell.watch)  # last, because it wakes the pump, which would delay this thread
        return True

    def begin_now(self, cell: RunningCell, plan: Plan, order: bytes, sink: Sink | SessionSink) -> bool:
        """Give a waiting cell its program directly; the supervisor is informed but has nothing to do.

        Returns False, and starts nothing, if that is not possible. Raises ``OSError``; the caller must then end the
        cell.
        """
        with self._lock:
            if not self._can_send() or cell.is_over or cell.program < 0:
                return False
            ways_in = cell.take_ways_in(sink)
        failure: OSError | None = None
        try:
            order_pipe, way_in, program = ways_in
            seal(way_in, plan.stdin)
            write_all(program, plan.code)
            # This message starts the cell's clock, so only the order is written after it: between two calls, other
            # threads of the application may hold the GIL.
            if is_given := self._send_word(cell, plan.deadline, len(order)):
                os.write(order_pipe, order)  # atomic: it is at most PIPE_BUF long
        except OSError as error:
            is_given, failure = False, error
        finally:
            close_all(ways_in)
        if is_given:
            self.call(cell.watch)  # last, because the supervisor may wait until the order's pipe is closed
            return True
        cell.future.add_done_callback(_close_tree)
        cell.kill("closed")
        if failure and not isinstance(failure, BrokenPipeError):  # a broken pipe means that the cell has ended
            raise failure
        return False

    def _can_send(self) -> bool:
        """Send posted messages. Returns whether the next message would go out at once. Call under the lock."""
        self._send_posted()
        return self.alive and not self._outbox.waits

    def _send_word(self, cell: RunningCell, deadline: float, order_size: int) -> bool:
        """Tell the supervisor that the host gives ``cell`` its program. Returns whether the message was sent at
        once, before any later message."""
        message = {"op": "begin", "id": cell.id, "deadline": deadline, "order_size": order_size}
        with self._lock:
            return self._can_send() and self._outbox.send_now(wire.encode({**message, "started": time.monotonic()}))

    def _take_program(self, cell: RunningCell | None, fds: list[int]) -> None:
        """Take the program file of a waiting cell, unless the cell has its program already."""
        with self._lock:
            if cell is not None and cell.order >= 0 and fds:
                cell.program = fds.pop()
        close_all(fds)

    def is_up(self) -> bool:
        """Whether the supervisor runs. Notices its end before the pump does."""
        with self._lock:
            if not self.alive:
                return False
            poll = select.poll()
            poll.register(self._socket, select.POLLHUP)
            return not poll.poll(0)

    def cells(self) -> tuple[int, list[RunningCell]]:
        """Return the supervisor's process id, 0 if it has ended, and its cells."""
        with self._lock:
            return (self._supervisor.pid if self.alive else 0), list(self._cells.values())

    def call(self, function: Any, *arguments: Any) -> None:
        self._calls.append((function, arguments))
        with self._lock:
            if self.alive:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the supervisor and every cell, and wait for that, in bounded time."""
        with self._lock:
            self._closing = True
            if self.alive:
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_STOP_GRACE)
        self._supervisor.reap()

    def _let_go(self) -> None:
        """Close the link in a forked child of the application."""
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
                self.readers[fd].read(fd)
            elif fd in self.writers:
                self.writers[fd].send_on()
        if self._is_posted and time.monotonic() >= self._flush_at:
            self.flush()
        if self.pools:
            self.pools.on_time()
        while self._resting and self._resting[0][0] <= time.monotonic():
            heapq.heappop(self._resting)[2].end_rest()
        return self._look()

    def _look(self) -> bool:
        """Check that a supervisor with cells answers. End it after a long silence. Returns whether it still runs."""
        now = time.monotonic()
        if not (self._cells and self._supervisor.pid) or now < self._look_at:
            return True
        self._looks, self._look_at = self._looks + 1, now + 1
        if self._looks == 1:
            self.send({"op": "ping"})
        if self._looks <= _MOST_LOOKS:
            return True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._supervisor.reap()  # before callers see the failure
        return False

    def _send_on(self) -> None:
        """Send as much as possible, and wait for room for the rest."""
        with self._lock:
            self._flush()
            waiting = self._outbox.waits
        self.poll.register(self._socket.fileno(), select.POLLIN | (select.POLLOUT if waiting else 0))

    def _catch_up(self) -> None:
        for _ in range(len(self._calls)):  # calls added meanwhile wait for the next turn
            function, arguments = self._calls.popleft()
            function(*arguments)

    def _send_posted(self) -> None:
        """Send posted messages as far as possible; the pump sends the rest. Call under the lock."""
        if self.alive and self._is_posted:
            self._flush()
            if self._outbox.waits:
                os.eventfd_write(self._wake, 1)

    def _flush(self) -> None:
        """Send queued messages as far as possible. Call under the lock."""
        self._is_posted = False
        for data, error in self._outbox.flush():
            message = {**wire.decode(data, {}), "op": "launch refused", "stage": "descriptors", "errno": error.errno}
            self._calls.append((self._finish, ({**message, "detail": str(error)}, [])))
            os.eventfd_write(self._wake, 1)

    def wake_later(self, cell: RunningCell, when: float) -> None:
        heapq.heappush(self._resting, (when, id(cell), cell))

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
        if flags & socket.MSG_CTRUNC and message["op"] == "ended":
            lost = {"op": "launch refused", "stage": "descriptors", "errno": errno.EMFILE}
            message = {**message, **lost, "detail": "no descriptor is left"}
        self._hear(message, fds)
        return True

    def _hear(self, message: dict[str, Any], fds: list[int]) -> None:
        """Handle a message of the supervisor."""
        op, cell = message["op"], self._cells.get(message.get("id", ""))
        if op in ("ready", "refused"):
            if not self.hello.done():  # a supervisor may refuse twice: at a stage, and when it exits
                self.hello.set_result(message)
        elif op in ("zygote", "zygote ended"):
            if self.pools:
                self.pools.handle(message)
        elif op == "program":
            self._take_program(cell, fds)
        elif op in ("ended", "launch refused"):
            self._finish(message, fds)
        elif cell is None or not cell.hear(message, fds):
            close_all(fds)

    def _finish(self, message: dict[str, Any], fds: list[int]) -> None:
        cell = self._cells.get(message["id"])
        if cell is None:
            close_all(fds)
            return
        with self._lock:
            cell.is_over = True  # before its descriptors are closed, so that nothing begins in it
        cell.end()
        with self._lock:
            del self._cells[cell.id]
        cell.report_end(message, fds)

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
