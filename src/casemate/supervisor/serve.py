"""The supervisor's loop: make cells, begin their programs, watch their limits, say how each ended."""

from __future__ import annotations

import _socket
import array
import os
import resource
import select
import time

from casemate.supervisor import (
    cells,
    cgroups,
    kernel,
    listeners,
    namespaces,
    pool,
    readiness,
    roots,
    sessions,
    watch,
    wire,
    zygotes,
)
from casemate.supervisor.scratch import Scratch, ScratchError

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from casemate.supervisor.maker import Maker

_EMFILE = 24
# Of a request for a cell.
_CELL_KEYS = (
    "layers", "rlimits", "cpu_set", "readable", "writable", "control", "interpreter", "cwd", "awaits_order", "session",
)  # fmt: skip
_CELL_DESCRIPTORS = ("stdin", "stdout", "stderr", "control", "payload", "order")  # descriptors that a cell gets
_MAX_WAIT = 3600.0  # seconds; only so that a wait has a bound
_ASK_AGAIN = 1.0  # seconds until zygotes that do not answer are looked at again
_REMOVE_AGAIN = 0.02  # seconds until a cgroup that the kernel still holds is tried again


class SupervisorLoop:
    """Serves one host, alone in its thread."""

    def __init__(self, host: Any, maker: Maker, groups: cgroups.Cgroups) -> None:
        self._host = host
        self._maker = maker
        self._roots: dict[str, Any] = {}
        self._broken_roots: dict[str, str] = {}
        self._pool = pool.CellPool(maker, groups)
        self._zygotes: dict[str, zygotes.ZygoteProcess] = {}
        self._cells: dict[str, cells.CellProcess] = {}
        self._schedule = watch.Schedule()  # when each cell wants to be looked at
        self._listeners = listeners.Listeners(self._host.send, maker)
        self._sessions = sessions.SessionRequests(self._host.send, maker)
        self._pids: set[int] = set()  # of the first processes of cells, until they are reaped
        self._forking: dict[str, list[Callable[[], None]]] = {}  # cells that a zygote makes, and what to do then
        self._removals: list[cgroups.CellCgroup] = []
        self._poll = readiness.DescriptorPoll()
        self._handlers: dict[int, Callable[[], None]] = {}  # what to do when a descriptor becomes readable
        self._serving = True
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # Descriptors that cells of this user have in flight count against us (unix(7), ETOOMANYREFS).
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def try_cgroups(self) -> dict[str, str | None]:
        """Whether cgroups can be used here, for memory and for cpu, as tried on a ready cell."""
        return self._pool.try_cgroups()

    def run(self) -> None:
        """Serve until the host closes its end; then return, and with us every cell ends."""
        self._watch(self._host.fileno(), self._receive)
        while self._serving:
            ready = [(fd, self._handlers.get(fd)) for fd, _ in self._next_events()]
            for fd, handle in ready:
                if handle and self._handlers.get(fd) is handle:  # else it is over by now, or another's number
                    handle()
            now = time.monotonic()
            for cell_id in self._schedule.pop_due(now):
                self._cells[cell_id].keep_time(now)
                self._schedule_look(cell_id)
            for key in [zygote.key for zygote in self._zygotes.values() if zygote.is_silent(now)]:
                self._end_zygote(key)
        self._end_all()

    def _next_events(self) -> list[tuple[int, int]]:
        events = self._poll.wait(0)
        if events:
            return events
        # There is nothing else to do.
        self._removals = [group for group in self._removals if not group.remove()]
        self._maker.tidy(time.monotonic())
        self._pool.prepare()
        return self._poll.wait(self._wait())

    def _wait(self) -> float:
        longest = _REMOVE_AGAIN if self._removals else _ASK_AGAIN if self._forking else _MAX_WAIT
        due = min(self._schedule.next_time(), self._pool.next_time(), self._maker.next_time())
        return min(max(0.0, due - time.monotonic()), longest)

    def _schedule_look(self, cell_id: str) -> None:
        cell = self._cells.get(cell_id)
        if cell:
            self._schedule.set(cell_id, cell.next_time())

    def _watch(self, fd: int, handle: Callable[[], None]) -> None:
        self._handlers[fd] = handle
        self._poll.register(fd, select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._poll.unregister(fd)

    # -- what the host says

    def _receive(self) -> None:
        self._hear()

    def _hear(self) -> bool:
        """Take the host's next message; false where there is none now, or it is gone."""
        try:
            received = self._host.receive()
        except BlockingIOError:
            return False
        if received is None:
            self._serving = False
            return False
        message, fds, is_whole = received
        if is_whole:
            self._dispatch(message, fds)
        else:
            kernel.close_all(fds.values())
            self._host.refuse(message["id"], "descriptors", _EMFILE, "the supervisor may open no more files")
        return True

    def _dispatch(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Do what the host says; ``fds`` are ours, and closed by whoever is done with them."""
        match message["op"]:
            case "root":
                self._build_root(message)
            case "launch":
                self._launch(message, fds)
            case "begin":
                self._do_when_forked(
                    message["id"], lambda: self._begin(message, fds), lambda: kernel.close_all(fds.values())
                )
            case (
                "kill" | "signal" | "pause" | "resume" | "listen"
                | "pipes" | "step" | "step over" | "interrupt" | "pause files" | "resume files" | "show"
            ):  # fmt: skip
                self._do_when_forked(message["id"], lambda: self._control(self._cells[message["id"]], message))
            case "forget":
                self._sessions.forget(message["id"])
            case "zygote":
                self._start_zygote(message)
            case "end zygote":
                self._end_zygote(message["key"])

    def _control(self, cell: cells.CellProcess, message: dict[str, Any]) -> None:
        match message["op"]:
            case "kill":
                cell.kill(message["reason"])
            case "signal":
                cell.forward_signal(message["number"])
            case "pause":
                cell.pause()
            case "resume":
                cell.resume()
            case "listen":
                self._listeners.add(cell, message)
            case _:
                self._sessions.handle(cell, message)

    def _do_when_forked(self, cell_id: str, do: Callable[[], None], else_do: Callable[[], None] | None = None) -> None:
        """Do it now, or once the cell's zygote has made the cell; ``else_do`` where there is no such cell."""
        if cell_id in self._cells:
            do()
            self._schedule_look(cell_id)
        elif cell_id in self._forking:
            self._forking[cell_id].append(lambda: self._do_when_forked(cell_id, do, else_do))
        elif else_do:
            else_do()

    def _build_root(self, message: dict[str, Any]) -> None:
        key = message["key"]
        try:
            self._roots[key] = self._maker.build_root(key, message["entries"])
        except (roots.RootError, OSError) as error:
            self._broken_roots[key] = str(error)

    # -- making cells

    def _launch(self, request: dict[str, Any], fds: dict[str, int]) -> None:
        """A cell, from the zygote that the request names or from the pool."""
        if request["root"] not in self._roots:
            kernel.close_all(fds.values())
            self._host.refuse(request["id"], "root", 0, self._broken_roots.get(request["root"], "unknown root"))
            return
        request["cpu_set"] = self._pool.choose_cpus(request["limits"]["cpus"])
        if not request["interpreter"]:
            self._start_cell(request, fds, None, 0)
            return
        zygote = self._zygotes.get(request["zygote"])
        if zygote is None or zygote.data is None:
            kernel.close_all(fds.values())
            self._host.refuse(request["id"], "zygote", 0, "it has ended")
            return
        self._forking[request["id"]] = []
        try:
            pending = self._pool.new_pending(self._sessions.identity(request))
        except OSError as error:
            self._finish_fork(request, fds, None, 0, error.errno or 0)
            return
        shared = zygote.data
        zygote.request_cell(pending, lambda ready: self._finish_fork(request, fds, ready, shared))

    def _finish_fork(self, request: dict[str, Any], fds: dict[str, int], ready: pool.ReadyCell | None, shared: int,
              number: int = 0) -> None:  # fmt: skip
        waiting = self._forking.pop(request["id"])
        if ready is None:
            kernel.close_all(fds.values())
            self._host.refuse(request["id"], "zygote", number, "it could not make a cell")
        else:
            self._start_cell(request, fds, ready, shared)
        for do in waiting:
            do()

    def _start_cell(
        self, request: dict[str, Any], fds: dict[str, int], ready: pool.ReadyCell | None, shared: int
    ) -> None:
        """Give a cell's first process what it needs. ``ready``: made by a zygote; None: take one from the pool."""
        try:
            self._set_up_cell(request, fds, ready, shared)
        except ScratchError as error:
            self._host.refuse(request["id"], error.part, error.errno, str(error))
        except roots.RootError as error:
            self._host.refuse(request["id"], "environment", 0, str(error))
        except (OSError, namespaces.SetupError) as error:
            self._host.refuse(request["id"], "launch", getattr(error, "errno", 0) or 0, str(error))
        finally:
            kernel.close_all(fds.values())

    def _set_up_cell(
        self, request: dict[str, Any], fds: dict[str, int], ready: pool.ReadyCell | None, shared: int
    ) -> None:
        scratch = None
        try:
            ready = ready or self._pool.take(self._sessions.identity(request))
            for name in ("stdin", "stdout", "stderr", "control"):
                ready.identity.chown_fd(fds[name])
            scratch = self._sessions.prepare_scratch(request, fds, ready.identity, self._roots[request["root"]])
            cell = self._send_request(request, fds, ready, scratch, shared)
        except BaseException:
            if ready:
                ready.discard()
            if scratch:
                scratch.close()
            raise
        scratch.close_mounts()
        self._cells[cell.id] = cell
        self._schedule_look(cell.id)
        if cell.session and not cell.is_waiting:
            self._sessions.send_files(cell)
        if scratch.program_fd >= 0 and not cell.session:  # whose requests come after the order
            self._offer(cell, scratch.program_fd, fds["order"])
        scratch.close_program()
        self._pids.add(cell.pid)
        self._maker.attend(cell, self._watch, self._unwatch)
        self._watch(cell.pidfd, lambda: self._reap(cell))
        self._watch(cell.status_fd, lambda: self._read_status(cell))
        if cell.group and cell.group.oom_fd is not None:
            self._watch(cell.group.oom_fd, lambda: cell.kill("memory"))

    def _offer(self, cell: cells.CellProcess, program: int, order: int) -> None:
        """Let the host give this cell its program itself. Where it cannot, it has us give it."""
        try:
            cell.offer(order)
            self._host.send({"op": "program", "id": cell.id}, [program])
        except OSError:
            cell.withdraw_offer()

    def _send_request(
        self, request: dict[str, Any], fds: dict[str, int], ready: pool.ReadyCell, scratch: Scratch, shared: int
    ) -> cells.CellProcess:
        if request["rlimits"]["DATA"] is not None:
            request["rlimits"]["DATA"] += shared
        cell_request = {name: request[name] for name in _CELL_KEYS}
        cell = cells.CellProcess(request, ready, scratch, shared)
        try:
            cell.limit(request["limits"])
            if request["listeners"]:
                self._listeners.open(cell, request)
            ready.send_request(cell_request, scratch, {name: fds[name] for name in _CELL_DESCRIPTORS if name in fds})
        except BaseException:
            cell.close_descriptors()
            raise
        return cell

    def _begin(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Tell a cell that waits what its program is.

        Its limits are lowered when its own set-up, which needs more than some of them, is over.
        """
        cell = self._cells[message["id"]]
        if "order_file" not in fds:  # the host gives it its program itself
            cell.begin_by_host(message)
            return
        cell.withdraw_offer()
        if cell.reason is not None:
            kernel.close_all(fds.values())  # it is being ended while it waits: `_report_end` says so
            return
        if message["narrows"] and not cell.is_set_up:
            cell.pending_begin = (message, fds)
            return
        try:
            if message["narrows"]:
                cpus = self._pool.choose_cpus(message["limits"]["cpus"])
                cell.narrow(message["limits"], message["rlimits"], cpus)
            cell.scratch.add_program(message, fds)
            if message["listeners"]:
                self._listeners.open(cell, message)
            cell.begin(message["deadline"])
            cells.splice_order(fds["order_file"], message["order_size"], fds["order"])
            if cell.session:
                self._sessions.send_files(cell)  # not before: requests come through the same pipe, after the order
        except ScratchError as error:
            cell.kill("unbegun")
            self._host.refuse(cell.id, error.part, error.errno, str(error))
        except OSError as error:
            cell.problem = str(error)
            cell.kill("unbegun")  # `_report_end` says that it never began
        finally:
            kernel.close_all(fds.values())

    # -- zygotes

    def _start_zygote(self, request: dict[str, Any]) -> None:
        key = request["key"]
        zygotes.reap_orphans(self._is_own_process)
        root = self._roots.get(request["root"])
        if root is None:
            self._host.send(
                {"op": "zygote", "key": key, "problem": self._broken_roots.get(request["root"], "unknown root")}
            )
            return
        try:
            zygote = zygotes.ZygoteProcess(
                request, root, self._maker, self._pool.seccomp_program(), self._is_own_process
            )
        except (OSError, roots.RootError) as error:
            self._host.send({"op": "zygote", "key": key, "problem": str(error)})
            return
        self._zygotes[key] = zygote
        self._watch(zygote.pidfd, lambda: self._end_zygote(key))
        self._watch(zygote.socket.fileno(), lambda: self._read_zygote(zygote))

    def _read_zygote(self, zygote: zygotes.ZygoteProcess) -> None:
        try:
            message = zygote.read_message()
        except (OSError, ValueError):
            self._end_zygote(zygote.key)
            return
        if message is not None:
            self._host.send({**message, "op": "zygote", "key": zygote.key, "pid": zygote.pid})

    def _is_own_process(self, pid: int) -> bool:
        """Whether ``pid`` is a process of somebody's already."""
        zygotes_too = (zygote.pid for zygote in self._zygotes.values())
        return pid in self._pids or pid in zygotes_too or self._pool.is_ready(pid)

    def _end_zygote(self, key: str) -> None:
        """End a zygote, or take note of its end. Its cells live on."""
        zygote = self._zygotes.pop(key, None)
        if zygote is None:
            return
        self._unwatch(zygote.pidfd)
        self._unwatch(zygote.socket.fileno())
        self._host.send({"op": "zygote ended", "key": key, "detail": zygote.end()})

    # -- the end of a cell

    def _read_status(self, cell: cells.CellProcess) -> None:
        """A cell's init has written something. When the program has ended and nothing else is left in the cell, its end
        is reported at once; the end of init itself takes the kernel as long again."""
        if not cell.read_status():
            if cell.is_set_up and cell.pending_begin:
                message, fds = cell.pending_begin
                cell.pending_begin = None
                self._begin(message, fds)
                self._schedule_look(cell.id)
            if cell.status_is_over:
                self._unwatch(cell.status_fd)
            return
        self._unwatch(cell.status_fd)
        self._hear_begin(cell)
        report = cell.report or {}
        if "wait_status" in report and cell.reason is None and cell.is_empty():
            self._report_end(cell, cell.outcome(report))

    def _hear_begin(self, cell: cells.CellProcess) -> None:
        """Take what the host has said by now: a cell to which it gave its program must not pass for one that waits."""
        while cell.is_waiting and cell.order_fd >= 0 and self._hear():
            pass

    def _reap(self, cell: cells.CellProcess) -> None:
        """A cell's first process has ended, and so has everything in it."""
        self._hear_begin(cell)
        self._unwatch(cell.pidfd)
        used = cell.reap()
        self._maker.leave(cell)
        self._pids.discard(cell.pid)
        if cell.report is None:
            if cell.status_fd in self._handlers:
                self._unwatch(cell.status_fd)
            cell.read_status()
        if cell.id in self._cells:
            self._report_end(cell, cell.outcome({**used, **(cell.report or {})}))
        if cell.pending_begin:
            kernel.close_all(cell.pending_begin[1].values())
        if cell.group:
            self._removals.append(cell.group)  # after the result is on its way: it may wait in the kernel
        cell.close()

    def _report_end(self, cell: cells.CellProcess, outcome: dict[str, Any]) -> None:
        del self._cells[cell.id]
        self._schedule.remove(cell.id)
        if cell.group and cell.group.oom_fd is not None:
            self._unwatch(cell.group.oom_fd)
        report = cell.report or {}
        if "failed" in report:
            self._host.refuse(cell.id, report["failed"], report["errno"], report["detail"])
        elif not cell.has_begun():
            self._host.refuse(cell.id, "waiting", 0, cell.problem or "it ended before its program began")
        else:
            if not self._maker.is_survived(cell):
                cell.scratch.lay_out()
            if cell.session and cell.reason != "closed":
                self._sessions.keep_files(cell)
            self._host.send({"op": "ended", "id": cell.id, "ending": outcome}, [cell.scratch.tree_fd])

    def _end_all(self) -> None:
        self._sessions.forget_all()
        for key in list(self._zygotes):
            self._end_zygote(key)
        self._pool.discard()
        for cell in self._cells.values():
            cell.kill("closed")
        for cell in self._cells.values():
            os.waitpid(cell.pid, 0)
            if cell.group:
                cell.group.remove()


class HostSocket:
    """Whom the supervisor serves."""

    def __init__(self, socket: _socket.socket) -> None:
        self._socket = socket
        self._buffer = memoryview(bytearray(wire.MAX_MESSAGE))
        self._kept: dict[bytes, Any] = {}

    def fileno(self) -> int:
        """To wait for its messages by."""
        return self._socket.fileno()

    def receive(self) -> tuple[dict[str, Any], dict[str, int], bool] | None:
        """Its message, the descriptors that came with it by their names, and whether all came; None when it is gone.

        Raises ``BlockingIOError`` where there is none now.
        """
        numbers = array.array("i")
        size, ancillary, flags, _ = self._socket.recvmsg_into(
            [self._buffer], _socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * numbers.itemsize), _socket.MSG_DONTWAIT
        )
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
        if not size:
            return None
        for fd in numbers:
            os.set_inheritable(fd, False)
        message = wire.decode(bytes(self._buffer[:size]), self._kept)
        is_whole = not flags & _socket.MSG_CTRUNC
        return message, dict(zip(message.get("fds", ()), numbers, strict=is_whole)), is_whole

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send it a message; ``fds`` stay ours."""
        try:
            kernel.send_fds(self._socket, wire.encode(message), fds or ())
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is gone; the next receive ends us

    def refuse(self, cell_id: str, where: str, number: int, detail: str) -> None:
        """Tell it that there will be no such cell."""
        self.send({"op": "launch refused", "id": cell_id, "stage": where, "errno": number, "detail": detail[:2000]})
