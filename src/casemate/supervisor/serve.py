"""The supervisor's loop: make cells, start their programs, enforce their limits, report how each ended."""

from __future__ import annotations

import os
import resource
import select
import time
from functools import partial

from casemate.supervisor import (
    cells,
    cgroups,
    jobs,
    kernel,
    pool,
    readiness,
    requests,
    roots,
    watch,
    wire,
    zygotes,
)
from casemate.supervisor.scratch import Scratch

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from casemate.supervisor import sockets
    from casemate.supervisor.maker import Maker

_EMFILE = 24
# Keys of a launch request that the cell's init needs.
_CELL_KEYS = (
    "layers", "rlimits", "cpu_set", "readable", "writable", "control", "interpreter", "cwd", "awaits_order", "session",
)  # fmt: skip
_CELL_DESCRIPTORS = ("stdin", "stdout", "stderr", "control", "payload", "order")  # descriptors that a cell may get
_MAX_WAIT = 3600.0  # seconds
_ASK_AGAIN = 1.0  # seconds between checks for zygotes that do not answer
_REMOVE_AGAIN = 0.02  # seconds between attempts to remove a cgroup that the kernel still holds
_BUSY = 0.1  # longest time in seconds that events may put off idle work


class SupervisorLoop(readiness.Poller):
    """Serves one host. An error that concerns a cell ends only that cell. Slow work runs in ``threads``, if set."""

    def __init__(
        self,
        host: Any,
        maker: Maker,
        groups: cgroups.Cgroups,
        calls: sockets.NetlinkCalls | None = None,
        *,
        threads: bool = False,
    ) -> None:
        super().__init__()
        self._host = host
        self._maker = maker
        self._calls = calls
        self._roots: dict[str, Any] = {}
        self._broken_roots: dict[str, str] = {}
        self._jobs = jobs.Jobs(self._attempt, threads=threads)
        self._pool = pool.CellPool(maker, groups)
        self._zygotes: dict[str, zygotes.ZygoteProcess] = {}
        self._cells: dict[str, cells.CellProcess] = {}
        self._schedule = watch.Schedule()  # when each cell is due for a check
        self._requests = requests.CellRequests(self._host.send, maker, self._jobs.run)
        self._pids: set[int] = set()  # first processes of cells that are not reaped yet
        self._removals: list[cgroups.CellCgroup] = []
        self._serving = True
        self._busy_until = 0.0  # when idle work is due (monotonic seconds)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # Descriptors in flight from cells of this user count against this process (unix(7), ETOOMANYREFS).
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def try_cgroups(self) -> dict[str, str | None]:
        """Test on a ready cell whether cgroups can limit memory and cpu here."""
        return self._pool.try_cgroups()

    def run(self) -> None:
        """Serve until the host closes its end, then end every cell."""
        self._watch(self._host.fileno(), self._receive)
        self._watch(self._jobs.fd, self._jobs.finish)
        if self._calls and self._calls.listener >= 0:
            self._watch(self._calls.listener, self._calls.answer)
        while self._serving:
            ready = [(fd, self._handlers.get(fd)) for fd, _ in self._next_events()]
            for fd, handle in ready:
                if handle and self._handlers.get(fd) is handle:  # else an earlier handler removed or replaced it
                    handle()
            now = time.monotonic()
            for cell_id in self._schedule.pop_due(now):
                self._attempt(cell_id, partial(self._keep_time, self._cells[cell_id], now))
            for key in [zygote.key for zygote in self._zygotes.values() if zygote.is_silent(now)]:
                self._end_zygote(key)
        self._end_all()

    def _next_events(self) -> list[tuple[int, int]]:
        """The descriptors that are ready. Idle work runs if there are no events, and at least every `_BUSY` seconds."""
        events = self._poll.wait(0)
        if not events or time.monotonic() > self._busy_until:
            self._removals = [group for group in self._removals if not group.remove()]
            if not self._jobs.waiting:
                self._pool.prepare()
            events = events or self._poll.wait(self._wait())
            self._busy_until = time.monotonic() + _BUSY
        return events

    def _wait(self) -> float:
        longest = _REMOVE_AGAIN if self._removals else _ASK_AGAIN if self._jobs.waiting else _MAX_WAIT
        due = self._schedule.next_time()
        if not self._jobs.waiting:
            due = min(due, self._pool.next_time())
        return min(max(0.0, due - time.monotonic()), longest)

    def _watch(self, fd: int, handle: Callable[[], object], cell_id: str = "") -> None:
        """Call ``handle`` when ``fd`` is readable. Errors end the cell ``cell_id``, if one is given."""
        self.set_interest(fd, select.POLLIN, partial(self._attempt, cell_id, handle))

    def _unwatch(self, fd: int) -> None:
        self.set_interest(fd, 0)

    # -- cells

    def _attempt(self, cell_id: str, do: Callable[[], object]) -> None:
        """Call ``do``. An error ends the cell ``cell_id``; without a cell it is raised."""
        error = jobs.attempt(do)
        if error and not cell_id:
            raise error
        if cell := self._cells.get(cell_id):
            if error:
                cell.problem = error
                cell.kill(wire.FAILED + ascii(error)[:200])
            self._schedule.set(cell_id, cell.next_time())
        elif error:  # the cell has no process yet, or no longer
            self._refuse(cell_id, "environment" if isinstance(error, roots.RootError) else "launch", error)

    def _refuse(self, cell_id: str, stage: str, why: Exception | str, number: int = 0) -> None:
        stage, number = getattr(why, "part", stage), getattr(why, "errno", None) or number
        detail = (str(why) or repr(why))[:2000]
        self._host.send({"op": "launch refused", "id": cell_id, "stage": stage, "errno": number, "detail": detail})

    def _keep_time(self, cell: cells.CellProcess, now: float) -> None:
        cell.keep_time(now)
        if now >= cell.next_count and cell.reason is None and cell.id not in self._jobs.waiting:
            self._jobs.run(cell.id, cell.count_files, cell.judge_files)

    # -- messages from the host

    def _receive(self) -> bool:
        """Handle the host's next message. False if none is waiting or the host is gone."""
        try:
            received = self._host.receive()
        except BlockingIOError:
            return False
        if received is None:
            self._serving = False
            return False
        message, fds, is_whole = received
        if is_whole:
            self._attempt(message.get("id", ""), lambda: self._dispatch(message, fds))
        else:
            kernel.close_all(fds.values())
            self._refuse(message["id"], "descriptors", "the supervisor may open no more files", _EMFILE)
        return True

    def _dispatch(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Carry out one message. The handler owns ``fds`` and closes them."""
        match message["op"]:
            case "root":
                self._build_root(message)
            case "ping":
                self._host.send({"op": "pong", "id": ""})
            case "launch":
                self._launch(message, fds)
            case "begin":
                self._do_with(message, lambda cell: self._begin(cell, message, fds), fds)
            case "forget":
                self._jobs.when_free(message["id"], lambda: self._requests.forget(message["id"]))
            case "zygote":
                self._start_zygote(message)
            case "end zygote":
                self._end_zygote(message["key"])
            case "kill" if message["id"] in self._cells:  # at once, even while a job runs for the cell
                self._requests.handle(self._cells[message["id"]], message)
            case _:
                self._do_with(message, lambda cell: self._requests.handle(cell, message), fds)

    def _do_with(self, message: dict[str, Any], do: Callable[[cells.CellProcess], None], fds: dict[str, int]) -> None:
        """Call ``do`` with the message's cell when no job runs for it. Close ``fds`` if the cell does not exist."""

        def do_now() -> None:
            if cell := self._cells.get(message["id"]):
                do(cell)
            else:
                kernel.close_all(fds.values())

        self._jobs.when_free(message["id"], do_now)

    def _build_root(self, message: dict[str, Any]) -> None:
        key = message["key"]
        try:
            self._roots[key] = self._maker.build_root(key, message["entries"])
        except (roots.RootError, OSError) as error:
            self._broken_roots[key] = str(error)

    # -- making cells

    def _launch(self, request: dict[str, Any], fds: dict[str, int]) -> None:
        if request["root"] not in self._roots:
            kernel.close_all(fds.values())
            self._refuse(request["id"], "root", self._broken_roots.get(request["root"], "unknown root"))
            return
        request["cpu_set"] = self._pool.choose_cpus(request["limits"]["cpus"])
        if not request["interpreter"]:
            self._start_cell(request, fds, None, 0)
            return
        zygote = self._zygotes.get(request["zygote"])
        if zygote is None or zygote.data is None:
            kernel.close_all(fds.values())
            self._refuse(request["id"], "zygote", "it has ended")
            return
        try:
            pending = self._pool.new_pending(self._requests.identity(request))
        except OSError as error:
            kernel.close_all(fds.values())
            self._refuse(request["id"], "zygote", error)
            return
        shared = zygote.data
        self._jobs.waiting[request["id"]] = []
        zygote.request_cell(pending, lambda ready: self._finish_fork(request, fds, ready, shared))

    def _finish_fork(
        self, request: dict[str, Any], fds: dict[str, int], ready: pool.ReadyCell | None, shared: int
    ) -> None:
        if ready is None:
            kernel.close_all(fds.values())
            self._refuse(request["id"], "zygote", "it could not make a cell")
            self._jobs.release(request["id"], lambda: None)
        else:
            self._jobs.release(request["id"], lambda: self._start_cell(request, fds, ready, shared))

    def _start_cell(
        self, request: dict[str, Any], fds: dict[str, int], ready: pool.ReadyCell | None, shared: int
    ) -> None:
        """Give a cell's first process what it needs: ``ready`` if a zygote made it, else one from the pool."""
        try:
            first = ready or self._pool.take(self._requests.identity(request))
        except OSError:
            kernel.close_all(fds.values())
            raise
        self._pids.add(first.pid)
        made: list[Scratch] = []

        def prepare() -> None:
            for name in ("stdin", "stdout", "stderr", "control"):
                first.identity.chown_fd(fds[name])
            made.append(self._requests.prepare_scratch(request, fds, first.identity, self._roots[request["root"]]))

        def give_up(error: Exception) -> None:
            self._pids.discard(first.pid)
            first.discard()
            for scratch in made:
                scratch.close()
            raise error

        def go_on() -> None:
            error = jobs.attempt(lambda: self._send_request(request, fds, first, made[0], shared))
            give_up(error) if error else self._take_in(self._cells[request["id"]], fds)

        self._jobs.run(request["id"], prepare, go_on, give_up, fds.values())

    def _take_in(self, cell: cells.CellProcess, fds: dict[str, int]) -> None:
        scratch = cell.scratch
        self._watch(cell.pidfd, lambda: self._note_end(cell), cell.id)
        self._watch(cell.status_fd, lambda: self._read_status(cell), cell.id)
        if cell.group and cell.group.oom_fd is not None:
            self._watch(cell.group.oom_fd, lambda: cell.kill("memory"), cell.id)
        scratch.close_mounts()
        if cell.session and not cell.is_waiting:
            self._requests.begin_session(cell)
        if scratch.program_fd >= 0 and not cell.session:  # a session's requests follow the order in the same pipe
            self._offer(cell, scratch.program_fd, fds["order"])
        scratch.close_program()
        self._maker.attend(cell, lambda fd, handle: self._watch(fd, handle, cell.id), self._unwatch)

    def _offer(self, cell: cells.CellProcess, program: int, order: int) -> None:
        """Let the host deliver this cell's program directly. If that fails, the supervisor delivers it."""
        try:
            cell.offer(order)
            self._host.send({"op": "program", "id": cell.id}, [program])
        except OSError:
            cell.withdraw_offer()

    def _send_request(
        self, request: dict[str, Any], fds: dict[str, int], ready: pool.ReadyCell, scratch: Scratch, shared: int
    ) -> None:
        if request["rlimits"]["DATA"] is not None:
            request["rlimits"]["DATA"] += shared
        cell_request = {name: request[name] for name in _CELL_KEYS}
        cell = cells.CellProcess(request, ready, scratch, shared)
        try:
            cell.limit(request["limits"])
            if request["listeners"]:
                self._requests.listen(cell, request["listeners"])
            ready.send_request(cell_request, scratch, {name: fds[name] for name in _CELL_DESCRIPTORS if name in fds})
        except BaseException:
            cell.close_descriptors()
            raise
        self._cells[cell.id] = cell

    def _begin(self, cell: cells.CellProcess, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Start the program of a waiting cell. Limits are narrowed only after its set-up, which needs more."""
        if "order_file" not in fds:  # the host delivers the program directly
            cell.begin_by_host(message)
            return
        cell.withdraw_offer()
        if cell.reason is not None:
            kernel.close_all(fds.values())  # killed while it waited: `_report_end` reports that
            return
        if message["narrows"] and not cell.is_set_up:
            cell.pending_begin = (message, fds)
            return

        put, begin = partial(cell.scratch.add_program, message, fds), partial(self._begin_program, cell, message, fds)
        self._jobs.run(cell.id, put, begin, fds=fds.values())

    def _begin_program(self, cell: cells.CellProcess, message: dict[str, Any], fds: dict[str, int]) -> None:
        if cell.reason is not None:
            return  # killed in the meantime
        if message["narrows"]:
            cpus = self._pool.choose_cpus(message["limits"]["cpus"])
            cell.narrow(message["limits"], message["rlimits"], cpus)
        if message["listeners"]:
            self._requests.listen(cell, message["listeners"])
        cells.splice_order(fds["order_file"], message["order_size"], fds["order"])
        cell.begin(message["deadline"])
        if cell.session:
            self._requests.begin_session(cell)  # requests follow the order in the same pipe

    # -- zygotes

    def _start_zygote(self, request: dict[str, Any]) -> None:
        key = request["key"]
        zygotes.reap_orphans(self._is_own_process)
        root = self._roots.get(request["root"])
        if root is None:
            why = self._broken_roots.get(request["root"], "unknown root")
            self._host.send({"op": "zygote", "key": key, "problem": why})
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
        zygotes_too = (zygote.pid for zygote in self._zygotes.values())
        return pid in self._pids or pid in zygotes_too or self._pool.is_ready(pid)

    def _end_zygote(self, key: str) -> None:
        """End a zygote, or record that it has ended. Its cells keep running."""
        zygote = self._zygotes.pop(key, None)
        if zygote is None:
            return
        self._unwatch(zygote.pidfd)
        self._unwatch(zygote.socket.fileno())
        self._host.send({"op": "zygote ended", "key": key, "detail": zygote.end()})

    # -- the end of a cell

    def _read_status(self, cell: cells.CellProcess) -> None:
        """Read what a cell's init wrote. Report the end as soon as the program has ended and the cell is empty: init's
        own exit takes the kernel as long again."""
        if not cell.read_status():
            if cell.is_set_up and cell.pending_begin:
                message, fds = cell.pending_begin
                cell.pending_begin = None
                self._do_with(message, lambda cell: self._begin(cell, message, fds), fds)
            if cell.status_is_over:
                self._unwatch(cell.status_fd)
            return
        self._unwatch(cell.status_fd)
        self._hear_begin(cell)
        report, is_free = cell.report or {}, cell.id not in self._jobs.waiting
        if "wait_status" in report and cell.reason is None and is_free and cell.is_empty() and self._take_out(cell):
            self._report_end(cell, report)

    def _hear_begin(self, cell: cells.CellProcess) -> None:
        """Read pending host messages: the host may have delivered the program, so the cell no longer waits."""
        while cell.is_waiting and cell.order_fd >= 0 and self._receive():
            pass

    def _note_end(self, cell: cells.CellProcess) -> None:
        self._unwatch(cell.pidfd)
        self._hear_begin(cell)
        for do in (self._reap, self._close):
            self._jobs.when_free(cell.id, partial(do, cell))

    def _take_out(self, cell: cells.CellProcess) -> bool:
        """Stop tracking a cell, whose pid may be reused from now on. True only the first time."""
        if cell.group and cell.group.oom_fd is not None:
            self._unwatch(cell.group.oom_fd)
        self._schedule.remove(cell.id)
        return self._cells.pop(cell.id, None) is not None

    def _reap(self, cell: cells.CellProcess) -> None:
        is_unreported, used = self._take_out(cell), cell.reap()
        self._pids.discard(cell.pid)
        self._maker.leave(cell)
        if cell.report is None:
            self._unwatch(cell.status_fd)
            cell.read_status()
        if is_unreported:
            self._report_end(cell, {**used, **(cell.report or {})})

    def _close(self, cell: cells.CellProcess) -> None:
        if cell.pending_begin:
            kernel.close_all(cell.pending_begin[1].values())
        if cell.group:
            self._removals.append(cell.group)  # removed after the result is sent: the kernel may delay it
        cell.close()

    def _report_end(self, cell: cells.CellProcess, used: dict[str, Any]) -> None:
        report, outcome = cell.report or {}, cell.outcome(used)
        if "failed" in report:
            self._refuse(cell.id, report["failed"], report["detail"], report["errno"])
        elif not cell.has_begun():
            self._refuse(cell.id, "waiting", cell.problem or "it ended before its program began")
        else:
            count = partial(cell.count_files, lays_out=not self._maker.is_survived(cell))
            send = partial(self._send_end, cell, outcome)
            self._jobs.run(cell.id, count, send, send)

    def _send_end(self, cell: cells.CellProcess, outcome: dict[str, Any], error: Exception | None = None) -> None:
        if error and cell.reason is None:
            cell.reason = wire.FAILED + ascii(error)[:200]
        if cell.session and cell.reason != "closed":
            self._requests.keep_files(cell)
        ending = {**outcome, **cell.left, "reason": cell.reason}
        self._host.send({"op": "ended", "id": cell.id, "ending": ending}, [cell.scratch.tree_fd])

    def _end_all(self) -> None:
        for key in list(self._zygotes):
            self._end_zygote(key)
        self._pool.discard()
        for cell in self._cells.values():
            cell.kill("closed")
        for cell in self._cells.values():
            os.waitpid(cell.pid, 0)
            if cell.group:
                cell.group.remove()
