"""Emulates a supervisor in a thread, so that the docker wall can reuse the native wall's link. It keeps started
containers, gives each cell its own, and carries messages and descriptors between the link and the supervisor in each
container.

Messages from a container are hostile. Each is checked against its shape, and the first malformed one ends the
container. So does a deadline that passes without a message, because a container's own clocks are not trusted.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from casemate.files.temporary import TemporaryFolder
from casemate.model.plan import LAYERED, LAYERED_NODE
from casemate.supervisor import carriage, wire
from casemate.supervisor.jobs import Jobs, attempt
from casemate.supervisor.trees.remove import removing
from casemate.walls.docker import containers
from casemate.walls.docker.cell import CarriedCell, CellHost
from casemate.walls.docker.containers import Container, ContainerTerms, Size
from casemate.walls.docker.engine import Engine, EngineError
from casemate.walls.docker.messages import check_hello
from casemate.walls.native.descriptors import Outbox, close_all

_TIDY = 0.5  # seconds between checks of the deadlines
_MAKING = 2  # containers started at once if programs wait, else one: each keeps a core busy
_END_WITHIN = 10.0  # seconds for the engine to remove all containers at the end


class Bridge(CellHost):
    """Implements `native.link.SupervisorProcess`."""

    pid = 0  # no process of its own

    def __init__(self, engine: Engine, terms: ContainerTerms, first: Size, keep: int) -> None:
        """``first``: the size of the first containers; later ones have the size of the last run. ``keep``: how many are
        kept started without a cell."""
        super().__init__()
        self.socket, self._link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self.log = os.memfd_create("casemate-bridge-log", os.MFD_CLOEXEC)
        self._engine, self._terms, self._wanted, self._keep = engine, terms, first, keep
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: deque[Callable[[], None]] = deque()
        self._outbox = Outbox(self._link)
        self._values: dict[bytes, Any] = {}  # shared values of the link's messages
        self._folder: TemporaryFolder | None = None
        self._roots: dict[str, dict[str, str]] = {}  # the host's package folders that cells see, by path
        self._cells: dict[str, CarriedCell] = {}
        self._kept: dict[str, CarriedCell] = {}  # ended cells of sessions that may continue, by id
        self._ready: deque[Container] = deque()  # started, without a cell
        self._unsent: list[CarriedCell] = []  # cells whose stream must be flushed
        self._waiting: deque[CarriedCell] = deque()  # cells without a container
        self._lost: set[CarriedCell] = set()  # cells whose container is ending but whose end has not been reported
        self._making = 0
        self.jobs = Jobs(self._attempt, threads=True)
        self._threads: list[threading.Thread] = []
        self._ending = threading.Lock()
        self._greeted = False
        self._next_tidy = 0.0
        self._serving = True
        self._thread = threading.Thread(target=self._run, name="casemate-docker", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._let_go)

    # -- as a supervisor's process

    def last_words(self) -> str:
        return os.pread(self.log, 4096, 0).decode("utf-8", "replace").strip()

    def reap(self) -> None:
        """Wait, in bounded time, until the thread has ended. The link's closed socket makes it end."""
        self._thread.join(_END_WITHIN)

    def _let_go(self) -> None:
        """Close the containers' sockets in a forked child of the application, which would keep them alive."""
        self._serving = False
        for container in [*self._ready, *(cell.container for cell in self._all_cells() if cell.container)]:
            container.socket.close()
        if removing.locked():  # by a thread that does not exist in the child
            removing.release()

    # -- the thread

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError, EngineError):
                containers.sweep(self._engine)
            self._folder = TemporaryFolder("docker")
            os.chmod(self._folder.path, 0o700)
            self.set_interest(self._link.fileno(), select.POLLIN, self._serve_link)
            self.set_interest(self._wake, select.POLLIN, self._catch_up)
            self.set_interest(self.jobs.fd, select.POLLIN, self.jobs.finish)
            self._make()
            while self._serving:
                self._serve()
        except Exception as error:  # noqa: BLE001 - the log gives the link the reason for any failure
            os.write(self.log, f"{type(error).__name__}: {error}".encode())
        finally:
            self._end()

    def _serve(self) -> None:
        busy = self._cells or self._kept
        unsent, self._unsent = self._unsent, []
        ready = self._poll.wait(0 if unsent else _TIDY if busy else None)
        if any(fd == self._link.fileno() for fd, _ in ready):
            self._serve_link()  # first, because data in a pipe may depend on an earlier message
        for fd, _ in ready:
            handle = self._handlers.get(fd)
            if handle and fd != self._link.fileno():
                handle()
        now = time.monotonic()
        if now > self._next_tidy:
            self._next_tidy = now + _TIDY
            unsent = [*self._cells.values()]
        for cell in unsent:
            self._attempt(cell.id, cell.flush)
        for cell in list(self._cells.values()):
            self._attempt(cell.id, cell.hand_on_end)
            if cell.is_overdue(now):
                self.lose(cell, "timeout")

    def flush_later(self, cell: CarriedCell) -> None:
        """Flush the cell's stream in the next turn, together with whatever is added until then."""
        if cell not in self._unsent:
            self._unsent.append(cell)

    def _call(self, function: Callable[[], None]) -> bool:
        """Make the thread call ``function``. Callable from any thread. Returns False if the thread ends; its
        descriptors may be reused then."""
        with self._ending:
            if self._serving:
                self._calls.append(function)
                os.eventfd_write(self._wake, 1)
            return self._serving

    def _attempt(self, cell_id: str, do: Callable[[], object]) -> None:
        """Call ``do`` for a cell, and end the cell if that fails."""
        error, cell = attempt(do), self._cells.get(cell_id)
        if error and cell:
            self.lose(cell, "killed")

    def _catch_up(self, *, wait: bool = True) -> None:
        if wait:
            os.eventfd_read(self._wake)
        while self._calls:
            self._calls.popleft()()

    def _end(self) -> None:
        with self._ending:
            self._serving = False
        self._catch_up(wait=False)
        for container in [*self._ready, *(cell.container for cell in self._all_cells() if cell.container)]:
            self._remove(container)
        until = time.monotonic() + _END_WITHIN
        self._finish_jobs(until)
        self._link.close()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        for cell in self._all_cells():
            if cell.id not in self.jobs.waiting:  # else a thread still uses its descriptors
                attempt(cell.leave)
        if self._folder:
            with removing:
                self._folder.remove()
        self._poll.close()
        os.close(self._wake)
        if not self.jobs.waiting:
            os.close(self.jobs.fd)

    def _all_cells(self) -> list[CarriedCell]:
        return [*self._cells.values(), *self._kept.values()]

    def _finish_jobs(self, until: float) -> None:
        poll = select.poll()
        poll.register(self.jobs.fd, select.POLLIN)
        while self.jobs.waiting and poll.poll(max(0.0, until - time.monotonic()) * 1000):
            self.jobs.finish()

    # -- containers

    def _make(self) -> None:
        """Start the containers that are needed, each in a thread: the engine takes a quarter of a second."""
        urgent = [cell.size for cell in self._waiting if not cell.is_waiting]  # with a program to run
        wanted = [*urgent, *(cell.size for cell in self._waiting if cell.is_waiting)]
        wanted = wanted or [self._wanted] * (self._keep - len(self._ready))
        most = _MAKING if urgent else 1 - self._making
        for size in wanted[: max(0, min(most, len(wanted) - self._making))]:
            self._making += 1
            self._begin_thread(self._start, size)

    def _start(self, size: Size) -> None:
        try:
            container = Container(self._engine, self._terms, size)
        except (OSError, EngineError) as error:
            problem = error
            self._call(lambda: self._note_failure(problem))
            return
        if not self._call(lambda: self._take_started(container)):
            container.remove()

    def _note_failure(self, error: OSError | EngineError) -> None:
        self._making -= 1
        detail = str(error)
        status = error.status if isinstance(error, EngineError) else 0
        if not self._greeted:
            self.send({"op": "refused", "stage": "engine", "errno": status, "detail": detail})
        elif self._waiting:
            cell = self._waiting.popleft()
            self.refuse(cell, "engine", status, detail)
        self._make_if_waiting()

    def _take_started(self, container: Container) -> None:
        if not self._serving:
            self._remove(container)
            return
        self.set_interest(container.socket.fileno(), select.POLLIN, lambda: self._greet(container))
        self._greet(container)

    def _greet(self, container: Container) -> None:
        """Check a container's first message, its greeting."""
        try:
            frames = list(container.read())
            if not frames:
                return
            if len(frames) != 1 or frames[0][0] != carriage.MESSAGE:
                raise carriage.CarriageError("no greeting")
            hello = check_hello(frames[0][2])
        except (EOFError, ValueError) as error:
            words = bytes(container.errors).decode("utf-8", "replace").strip()[-600:]
            self._drop(container)
            self._note_failure(EngineError(0, f"its supervisor did not start: {words or error}"))
            return
        self._making -= 1
        self.set_interest(container.socket.fileno(), select.POLLIN, lambda: self._idle_ended(container))
        self._ready.append(container)
        if not self._greeted:
            self._greeted = True
            self.send({"op": "ready", "mode": "docker", **hello})
        self._match()

    def _idle_ended(self, container: Container) -> None:
        """Drop a container without a cell: it has ended, or sent something it must not."""
        if container in self._ready:
            self._ready.remove(container)
        self._drop(container)

    def _drop(self, container: Container) -> None:
        self.set_interest(container.socket.fileno(), 0)
        self._remove(container)

    def _remove(self, container: Container) -> None:
        self._begin_thread(container.remove)

    def _begin_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        """Start a thread for a slow call to the engine."""
        thread = threading.Thread(target=work, args=arguments, name="casemate-container", daemon=True)
        thread.start()
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def _match(self) -> None:
        """Assign ready containers to waiting cells of their size."""
        for cell in list(self._waiting):
            container = next((one for one in self._ready if one.size == cell.size), None)
            if container is not None:
                self._ready.remove(container)
                self._waiting.remove(cell)
                cell.enter(container)
        while len(self._ready) > self._keep:
            self._drop(self._ready.popleft())
        self._make_if_waiting()

    def _make_if_waiting(self) -> None:
        if self._waiting or (self._greeted and self._cells):
            self._make()

    # -- the link

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        self._outbox.add(wire.encode(message), fds or [])
        self._flush()

    def _flush(self) -> None:
        for _ in self._outbox.flush():
            pass  # messages that the kernel refuses are dropped
        events = select.POLLIN | (select.POLLOUT if self._outbox.waits else 0)
        self.set_interest(self._link.fileno(), events, self._serve_link)

    def _serve_link(self) -> None:
        self._flush()
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(
                    self._link, wire.MAX_MESSAGE, wire.MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._serving = False
                return
            message = wire.decode(data, self._values)
            self._dispatch(message, dict(zip(message.get("fds", ()), fds, strict=True)))

    def _dispatch(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        op, cell_id = message["op"], message.get("id", "")
        if op == "launch":
            self._launch(message, fds)
        elif op == "root":
            shown = [entry for entry in message["entries"] if entry["target"] in (LAYERED, LAYERED_NODE)]
            self._roots[message["key"]] = {entry["target"]: entry["source"] for entry in shown}
        elif op == "forget":
            kept = self._kept.pop(cell_id, None)
            if kept:
                self._give_up(kept)
        elif op == "zygote":
            self.send({"op": "zygote", "key": message["key"], "problem": "a container holds one cell"})
        elif cell_id in self._cells:
            self._cells[cell_id].tell(message, fds)
        else:
            close_all(fds.values())

    def _launch(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        earlier = self._kept.pop(message["continues"], None)
        assert self._folder is not None
        try:
            cell = CarriedCell(self, self._folder.path, message, self._roots[message["root"]], earlier)
        except OSError as error:
            close_all(fds.values())
            self._send_refusal(message["id"], "workspace", error.errno or 0, str(error))
            return
        self._cells[cell.id] = cell
        if not cell.begin(fds):
            return
        if cell.container is None:
            self._wanted = cell.size
            self._waiting.append(cell)
            self._match()

    # -- cells

    def refuse(self, cell: CarriedCell, stage: str, number: int, detail: str) -> None:
        """Report that the cell cannot be made."""
        self._send_refusal(cell.id, stage, number, detail)
        self._over(cell, keep=False)

    def _send_refusal(self, cell_id: str, stage: str, number: int, detail: str) -> None:
        self.send({"op": "launch refused", "id": cell_id, "stage": stage, "errno": number, "detail": detail[:2000]})

    def lose(self, cell: CarriedCell, reason: str) -> None:
        """End a cell whose container has ended or must end. Reports it once the engine has removed the container."""
        container = cell.let_go()
        if container is not None:
            self._lost.add(cell)
            self._begin_thread(self._end_lost, cell, container, reason)
        elif cell not in self._lost:
            self.jobs.when_free(cell.id, lambda: self._tell_lost(cell, reason))

    def _end_lost(self, cell: CarriedCell, container: Container, reason: str) -> None:
        container.remove()
        self._call(lambda: self.jobs.when_free(cell.id, lambda: self._tell_lost(cell, reason)))

    def _tell_lost(self, cell: CarriedCell, reason: str) -> None:
        self._lost.discard(cell)
        if self._cells.get(cell.id) is cell:
            ending = cell.lost_ending(reason)
            if ending is None:
                self.refuse(cell, "waiting", 0, "its container ended")
            else:
                self.end_cell(cell, ending)

    def end_cell(self, cell: CarriedCell, ending: dict[str, Any]) -> None:
        """Report a cell's end to the link. A session's files are kept for its next cell, even without the container."""
        try:
            files = os.dup(cell.mirror.fd)
        except OSError as error:
            self.refuse(cell, "descriptors", error.errno or 0, str(error))
            return
        self.send({"op": "ended", "id": cell.id, "ending": ending}, [files])
        self._over(cell, keep=cell.is_of_session and ending["reason"] != "closed")

    def _over(self, cell: CarriedCell, *, keep: bool) -> None:
        """Forget a cell whose end was reported. ``keep``: keep its files for the session's next cell."""
        self._cells.pop(cell.id, None)
        if cell in self._waiting:
            self._waiting.remove(cell)
        if keep:
            self._kept[cell.id] = cell
        else:
            self._give_up(cell)
        self._make_if_waiting()

    def _give_up(self, cell: CarriedCell) -> None:
        container = cell.leave()
        if container is not None:
            self._drop(container)
