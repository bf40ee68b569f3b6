"""The link to one supervisor: its process, its socket, and a thread that pumps what cells say.

The thread is the only reader of the socket and of every pipe, so pumping does not depend on
the application's event loop. Nothing waits for the end of a pipe: a cell is over when the
supervisor says so, and then what its pipes still hold is read without waiting.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import Any

from casemate.errors import CasemateError, Fault, SandboxClosed
from casemate.isolation.native import spawn
from casemate.isolation.native.carrying import carry
from casemate.isolation.native.frames import FrameError
from casemate.isolation.native.keeping import Keeper
from casemate.isolation.native.memory import seal
from casemate.isolation.native.running import RunningCell, Unlaunched, ending_of, open_pipes
from casemate.isolation.wall import Sink, Stream
from casemate.supervisor import wire

_READ = 1 << 16  # bytes; a pipe's usual capacity
_MAX_DRAIN = 1 << 24  # bytes read of one pipe after its cell is dead; the kernel's largest pipe is smaller
_STOP_GRACE = 2.0  # seconds the pump has to see the end


class Link:
    """One running supervisor."""

    def __init__(self) -> None:
        self.keeper: Keeper | None = None
        self.hello: Future[dict[str, Any]] = Future()
        self._supervisor = spawn.take()
        self._socket = self._supervisor.socket
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._cells: dict[str, RunningCell] = {}
        self._readers: dict[int, RunningCell] = {}
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._closing = False
        self.alive = True
        self._thread = threading.Thread(target=self._pump, name="casemate-native", daemon=True)
        self._thread.start()
        reference = weakref.ref(self)
        # A forked child of the application must not keep the cells alive after the application is gone.
        os.register_at_fork(after_in_child=lambda: _let_go(reference()))

    # -- from any thread

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a message; takes over ``fds`` and closes them once they are on their way."""
        data = wire.encode(message)
        if len(data) > wire.MAX_MESSAGE:
            _close_all(fds or [])
            raise Fault(f"a message of {len(data)} bytes is too long for the supervisor")
        with self._lock:
            if not self.alive:
                _close_all(fds or [])
                return
            self._outbox.append((data, fds or []))
            self._flush()
            if self._outbox:
                os.eventfd_write(self._wake, 1)

    def is_up(self) -> bool:
        """Whether the supervisor is there, also when the pump has not noticed its end yet."""
        with self._lock:
            if not self.alive:
                return False
            poll = select.poll()
            poll.register(self._socket, select.POLLHUP)
            return not poll.poll(0)

    def call(self, function: Any, *arguments: Any) -> None:
        """Have the pump thread call ``function``."""
        self._calls.append((function, arguments))
        with self._lock:
            if self.alive:
                os.eventfd_write(self._wake, 1)

    def launch(self, request: dict[str, Any], fds: dict[str, int], sink: Sink) -> RunningCell:
        """Launch a cell with ``fds`` (given away) and fresh pipes for its output."""
        cell = RunningCell(self, request["id"], sink, open_pipes(fds))
        if self._enter(cell, fds):
            self.call(self._watch, cell)
            self.send({**request, "op": "launch", "fds": list(fds)}, list(fds.values()))
        return cell

    def prepare(self, request: dict[str, Any], payload: int) -> RunningCell:
        """Launch a cell that waits for its program, with ``payload`` (given away). Raises ``OSError``."""
        fds, ours = {"payload": payload}, []
        try:
            ours.append(os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            fds["stdin"] = os.open(f"/proc/self/fd/{ours[0]}", os.O_RDONLY | os.O_CLOEXEC)
            fds["order"], order = os.pipe2(os.O_CLOEXEC)
            ours.append(order)
        except OSError:
            _close_all([*fds.values(), *ours])
            raise
        try:
            cell = RunningCell(self, os.urandom(8).hex(), None, open_pipes(fds))
        except OSError:
            _close_all(ours)
            raise
        cell.stdin, cell.order = ours
        os.set_blocking(cell.order, False)  # a cell that does not read must not hold the supervisor up
        if self._enter(cell, fds):
            self.send({**request, "op": "launch", "id": cell.id, "fds": list(fds)}, list(fds.values()))
        return cell

    def begin(self, cell: RunningCell, message: dict[str, Any], fds: dict[str, int], stdin: bytes, sink: Sink) -> bool:
        """Give a cell that waits its program: ``message``, with ``fds``, and its standard input.

        Takes ``fds`` over and gives True; or gives False when the cell has ended meanwhile, and nothing has begun.
        Raises ``OSError`` when there is no memory for ``stdin``; then the cell ends.
        """
        with self._lock:
            if not self.alive or cell.id not in self._cells:
                return False
            cell.sink = sink
            order, way_in = cell.order, cell.stdin
            cell.order = cell.stdin = -1
        self.call(self._watch, cell)
        try:
            seal(way_in, stdin)
        except OSError:
            os.close(order)  # which ends it
            raise
        finally:
            os.close(way_in)
        fds["order"] = order
        self.send({**message, "id": cell.id, "fds": list(fds)}, list(fds.values()))
        return True

    def _enter(self, cell: RunningCell, fds: dict[str, int]) -> bool:
        with self._lock:
            alive = self.alive
            if alive:
                self._cells[cell.id] = cell
        if not alive:
            _close_all([*fds.values(), *cell.pipes])
            cell.close_ways_in()
            cell.listening.cancel()
            cell.future.set_exception(SandboxClosed("the sandbox was closed"))
        return alive

    def close(self) -> None:
        """End the supervisor and with it every cell. Returns when all is gone; bounded."""
        self._closing = True
        with self._lock:
            if self.alive:
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_STOP_GRACE)
        self._supervisor.reap()

    # -- in the pump thread

    def _pump(self) -> None:
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)
        try:
            while self._turn():
                pass
        finally:
            self._lost()

    def _turn(self) -> bool:
        for fd, _ in self._epoll.poll(self._wait()):
            if fd == self._socket.fileno():
                if not self._receive():
                    return False
            elif fd == self._wake:
                self._catch_up()
            elif fd in self._readers:
                self._read(fd, self._readers[fd])
        if self.keeper:
            self.keeper.on_time()
        return True

    def _wait(self) -> float | None:
        when = self.keeper.next_time() if self.keeper else None
        return None if when is None else max(0.0, when - time.monotonic())

    def _catch_up(self) -> None:
        os.eventfd_read(self._wake)
        with self._lock:
            self._flush()
            waiting = bool(self._outbox)
        self._epoll.modify(self._socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if waiting else 0))
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)

    def _flush(self) -> None:
        """Send what waits, as far as it goes without blocking. Under the lock."""
        while self._outbox:
            data, fds = self._outbox[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                carry(self._socket, data, rights)
            except BlockingIOError:
                return
            except OSError as error:
                self._unsent(data, error)  # else the supervisor is gone, and the pump notices
            self._outbox.popleft()
            _close_all(fds)

    def _unsent(self, data: bytes, error: OSError) -> None:
        """A launch that the kernel does not carry, because cells of this user hold too many descriptors in flight."""
        if error.errno != errno.ETOOMANYREFS:
            return
        message = wire.decode(data)
        self._calls.append((self._finish, ({**message, "op": "unlaunched", "stage": "descriptors", "errno": error.errno,
                                            "detail": str(error)}, [])))  # fmt: skip
        os.eventfd_write(self._wake, 1)

    def _watch(self, cell: RunningCell) -> None:
        for fd in cell.pipes:
            self._readers[fd] = cell
            self._epoll.register(fd, select.EPOLLIN)

    def resume(self, cell: RunningCell) -> None:
        """Read on where the sink had been full."""
        for fd in cell.paused:
            self._epoll.register(fd, select.EPOLLIN)
        cell.paused.clear()

    def _read(self, fd: int, cell: RunningCell) -> None:
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(fd, cell)
            return
        self._deliver(fd, cell, data)
        if fd in cell.pipes and cell.sink and cell.sink.is_full():
            self._epoll.unregister(fd)
            cell.paused.add(fd)

    def _deliver(self, fd: int, cell: RunningCell, data: bytes) -> None:
        try:
            self._hand_on(cell, cell.pipes[fd], data)
        except FrameError:
            self._close_pipe(fd, cell)
        except Exception:  # noqa: BLE001 - whatever one cell's data does, the other cells' pump goes on
            self._close_pipe(fd, cell)
            self._calls.append((cell.kill, ("killed",)))
            os.eventfd_write(self._wake, 1)

    def _hand_on(self, cell: RunningCell, stream: Stream | None, data: bytes) -> None:
        assert cell.sink is not None
        if stream is not None:
            cell.sink.output(stream, data)
            return
        for frame in cell.frames.feed(data):
            cell.sink.frame(frame)

    def _close_pipe(self, fd: int, cell: RunningCell) -> None:
        if fd not in cell.paused:
            self._epoll.unregister(fd)
        cell.paused.discard(fd)
        del cell.pipes[fd]
        del self._readers[fd]
        os.close(fd)

    def _drain(self, cell: RunningCell) -> None:
        """Read what a dead cell's pipes still hold, and close them."""
        for fd in list(cell.pipes):
            read = 0
            while fd in cell.pipes and read < _MAX_DRAIN:
                try:
                    data = os.read(fd, _READ)
                except BlockingIOError:
                    break
                if not data:
                    break
                read += len(data)
                self._deliver(fd, cell, data)
            if fd in cell.pipes:
                self._close_pipe(fd, cell)

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
        if message["op"] in ("ready", "refused"):
            self.hello.set_result(message)
        elif message["op"] == "listening":
            self._listening(message["id"], fds)
        elif message["op"] in ("zygote", "zygote ended"):
            if self.keeper:
                self.keeper.hear(message)
        elif flags & socket.MSG_CTRUNC:
            lost = {
                "op": "unlaunched",
                "stage": "descriptors",
                "errno": errno.EMFILE,
                "detail": "no descriptor is left",
            }
            self._finish({**message, **lost}, fds)
        else:
            self._finish(message, fds)
        return True

    def _listening(self, cell_id: str, fds: list[int]) -> None:
        with self._lock:
            cell = self._cells.get(cell_id)
        if cell is None:
            _close_all(fds)
        else:
            if not cell.listening.set_running_or_notify_cancel():
                _close_all(fds)
                return
            cell.listening.set_result(fds)

    def _finish(self, message: dict[str, Any], fds: list[int]) -> None:
        with self._lock:
            cell = self._cells.pop(message["id"], None)
        if cell is None:
            _close_all(fds)
            return
        if cell.sink is None:
            _close_all(list(cell.pipes))
            cell.close_ways_in()
        else:
            if cell.pipes and next(iter(cell.pipes)) not in self._readers:
                self._watch(cell)  # it ended before we came to watch it
            self._drain(cell)
        cell.listening.cancel()
        if message["op"] == "ended":
            cell.future.set_result(ending_of(message, fds[0]))
        else:
            _close_all(fds)
            cell.future.set_exception(Unlaunched(message["stage"], message["errno"], message["detail"]))

    def _lost(self) -> None:
        with self._lock:
            self.alive = False
            cells = list(self._cells.values())
            for _, fds in self._outbox:
                _close_all(fds)
            self._outbox.clear()
        error = self._why_lost()
        for cell in cells:
            for fd in list(cell.pipes):
                os.close(fd)
            cell.close_ways_in()
            cell.listening.cancel()
            cell.future.set_exception(error)
        if not self.hello.done():
            self.hello.set_exception(error)
        self._epoll.close()
        self._socket.close()
        os.close(self._wake)
        os.close(self._supervisor.log)
        self._supervisor.reap()

    def _why_lost(self) -> CasemateError:
        text = self._supervisor.last_words()
        if text:
            return Fault(f"the supervisor failed: {text}")
        if self._closing:
            return SandboxClosed("the sandbox was closed while this ran")
        return Fault("the supervisor was killed while this ran; the next run starts a new one")


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _let_go(link: Link | None) -> None:
    """In a forked child of the application: the link is its parent's."""
    if link is not None and link.alive:
        link.alive = False
        link._socket.close()
