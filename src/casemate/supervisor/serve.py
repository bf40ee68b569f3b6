"""The supervisor's loop: launch cells, watch their limits and deadlines, say how each ended."""

from __future__ import annotations

import _socket
import array
import os
import resource
import select
import time

from casemate.supervisor import broker, cell, cgroups, enter, init, kernel, roots, seccomp, spare, watch, wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

_SIGKILL = 9
_EPERM = 1
_EMFILE = 24
_FOR_THE_CELL = ("layers", "rlimits", "cpu_set", "readable", "control", "listeners")  # of a launch request
_TRIAL_MEMORY = 256 << 20  # bytes; more than a waiting spare uses
_MAX_WAIT = 3600.0  # seconds; only so that a wait has a bound
_REMOVE_AGAIN = 0.02  # seconds until a cgroup that the kernel still holds is tried again
_FIRST_LOOK = 0.01  # seconds after the start
_PIPE_READ = 4096


class Cell:
    """A living cell, as the supervisor sees it."""

    def __init__(self, request: dict[str, Any], made: spare.Spare, scratch: broker.Scratch) -> None:
        self.id: str = request["id"]
        self.limits: dict[str, Any] = request["limits"]
        self.pid = made.pid
        self.pidfd = os.pidfd_open(made.pid)
        self.scratch = scratch
        self.group = made.group
        self.status_fd = made.status_fd
        self.channel = made.channel  # kept until the result is told; see cell.PREPARED
        self.started = time.monotonic()
        self.deadline = self.started + request["deadline"]
        self.next_look = self.started + _FIRST_LOOK
        self.reason: str | None = None
        self.peak_memory = 0
        self.peak_tasks = 0
        self.cpu_seconds = 0.0

    def kill(self, reason: str) -> None:
        """End the cell: with its pid 1 the kernel ends everything in it (pid_namespaces(7))."""
        if self.reason is None:
            self.reason = reason
        os.kill(self.pid, _SIGKILL)  # our own child, not yet reaped, so the number is still its
        if self.group:
            self.group.let_die()


class Server:
    """Serves one host over one socket, alone in its thread."""

    def __init__(self, socket: _socket.socket, mode: str, cell_id: int, groups: cgroups.Cgroups) -> None:
        self._socket = socket
        self._groups = groups
        self._identity = broker.Identity(cell_id, cell_id, mapped=mode != "user")
        self._roots: dict[str, str] = {}
        self._broken_roots: dict[str, str] = {}
        self._programs: dict[bool, bytes] = {}
        self._spare: spare.Spare | None = None
        self._cells: dict[int, Cell] = {}  # by pidfd
        self._ooms: dict[int, Cell] = {}  # by eventfd
        self._channels: dict[int, Cell] = {}  # of cells whose listeners are to come
        self._removals: list[cgroups.Group] = []
        self._epoll = select.epoll()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # Descriptors that cells of this user have in flight count against us (unix(7), ETOOMANYREFS).
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._cpus = sorted(os.sched_getaffinity(0))
        self._next_cpu = 0
        self._count = 0

    def try_cgroups(self) -> dict[str, str | None]:
        """Make the first spare and try on it whether cgroups can be used; without them from now on where not."""
        try:
            self._spare = self._new_spare()
            if self._spare.group:
                if not spare.has_entered(self._spare):
                    raise OSError(_EPERM, "a cgroup cannot be entered")
                self._spare.group.limit(memory=_TRIAL_MEMORY, cpus=1.0)
        except OSError:
            if self._spare:
                spare.discard(self._spare)
            self._spare, self._groups = None, cgroups.Cgroups(None, None)
        return self._groups.describe()

    def run(self) -> None:
        """Serve until the host closes its end; then return, and with us every cell ends."""
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)
        while True:
            for fd, _ in self._next_events():
                if fd == self._socket.fileno():
                    if not self._receive():
                        return self._end_all()
                elif fd in self._cells:
                    self._ended(self._cells[fd])
                elif fd in self._ooms:
                    self._ooms[fd].kill("memory")
                elif fd in self._channels:
                    self._pass_on_listeners(self._channels[fd])
            self._keep_time()

    def _next_events(self) -> list[tuple[int, int]]:
        happened = self._epoll.poll(0)
        if happened:
            return happened
        # There is nothing else to do.
        self._removals = [group for group in self._removals if not group.remove()]
        self._make_spare()
        return self._epoll.poll(self._wait())

    # -- what the host says

    def _receive(self) -> bool:
        names = array.array("i")
        data, ancillary, flags, _ = self._socket.recvmsg(
            wire.MAX_MESSAGE, _socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * names.itemsize)
        )
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                names.frombytes(payload[: len(payload) - len(payload) % names.itemsize])
        if not data:
            return False
        fds = list(names)
        try:
            message = wire.decode(data)
            if flags & _socket.MSG_CTRUNC:
                self._refuse(message["id"], "descriptors", _EMFILE, "the supervisor may open no more files")
            else:
                self._obey(message, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _obey(self, message: dict[str, Any], fds: list[int]) -> None:
        for fd in fds:
            os.set_inheritable(fd, False)
        match message["op"]:
            case "root":
                self._build_root(message)
            case "launch":
                self._launch(message, dict(zip(message["fds"], fds, strict=True)))
            case "kill":
                for known in self._cells.values():
                    if known.id == message["id"]:
                        known.kill(message["reason"])

    def _build_root(self, message: dict[str, Any]) -> None:
        key = message["key"]
        try:
            self._roots[key] = roots.build(key, message["entries"])
        except (roots.RootError, OSError) as error:
            self._broken_roots[key] = str(error)

    # -- launching

    def _launch(self, request: dict[str, Any], fds: dict[str, int]) -> None:
        try:
            self._start(request, fds)
        except broker.BrokerError as error:
            self._refuse(request["id"], error.part, error.errno, str(error))
        except roots.RootError as error:
            self._refuse(request["id"], "environment", 0, str(error))
        except (OSError, enter.Refused) as error:
            self._refuse(request["id"], "launch", getattr(error, "errno", 0) or 0, str(error))

    def _start(self, request: dict[str, Any], fds: dict[str, int]) -> None:
        root = self._roots.get(request["root"])
        if root is None:
            self._refuse(request["id"], "root", 0, self._broken_roots.get(request["root"], "unknown root"))
            return
        request["cpu_set"] = self._choose_cpus(request["limits"]["cpus"])
        for name in ("stdin", "stdout", "stderr", "control"):
            self._identity.give_fd(fds[name])
        scratch = broker.prepare(request, fds, self._identity)
        try:
            scratch.mounts.insert(0, (kernel.open_tree(root), ""))
            self._hand_over(request, fds, scratch)
        except BaseException:
            scratch.close()
            raise
        scratch.close_mounts()

    def _hand_over(self, request: dict[str, Any], fds: dict[str, int], scratch: broker.Scratch) -> None:
        made = self._take_spare()
        known = None
        try:
            known = Cell(request, made, scratch)
            if made.group:
                # tmpfs pages count as memory
                limits = request["limits"]
                made.group.limit(memory=limits["memory"] + limits["disk"], cpus=limits["cpus"])
            told = {name: request[name] for name in _FOR_THE_CELL}
            its_own = {name: fds[name] for name in ("stdin", "stdout", "stderr", "control", "payload")}
            made.hand_over(told, scratch.mounts, its_own)
        except BaseException:
            if known:
                os.close(known.pidfd)
            spare.discard(made)
            raise
        self._cells[known.pidfd] = known
        self._epoll.register(known.pidfd, select.EPOLLIN)
        if request["listeners"]:
            self._channels[made.channel.fileno()] = known
            self._epoll.register(made.channel.fileno(), select.EPOLLIN)
        if known.group and known.group.oom_fd is not None:
            self._ooms[known.group.oom_fd] = known
            self._epoll.register(known.group.oom_fd, select.EPOLLIN)

    def _pass_on_listeners(self, known: Cell) -> None:
        """A cell has made its listeners: their descriptors go to the host, and stay nowhere else."""
        fds = array.array("i")
        data, ancillary, _, _ = known.channel.recvmsg(1, _socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * fds.itemsize))
        for _, _, payload in ancillary:
            fds.frombytes(payload)
        if data == cell.LISTENING:
            self._say({"op": "listening", "id": known.id}, list(fds))
        for fd in fds:
            os.close(fd)
        if data != cell.PREPARED:
            self._epoll.unregister(known.channel.fileno())
            del self._channels[known.channel.fileno()]

    def _make_spare(self) -> None:
        """Have a spare ready while nothing else is to be done; what fails here is told when one is needed."""
        if self._spare is None:
            try:
                self._spare = self._new_spare()
            except OSError:
                self._spare = None

    def _take_spare(self) -> spare.Spare:
        """The spare if it lives, else a new one."""
        made, self._spare = self._spare, None
        if made is None:
            return self._new_spare()
        if os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            spare.discard(made)
            return self._new_spare()
        return made

    def _new_spare(self) -> spare.Spare:
        self._count += 1
        counted = self._groups.memory is not None
        if counted not in self._programs:
            self._programs[counted] = seccomp.program(kernel.machine, memory_is_counted=counted)
        return spare.make(self._identity, self._groups, str(self._count), self._programs[counted])

    def _choose_cpus(self, cpus: float) -> list[int]:
        """Without a cpu cgroup: pin the cell to so many cores, in turn. Best effort; a cell can undo it."""
        wanted = max(1, -int(-cpus // 1))
        if self._groups.cpu or wanted >= len(self._cpus):
            return []
        first = self._next_cpu
        self._next_cpu = (first + wanted) % len(self._cpus)
        return [self._cpus[(first + n) % len(self._cpus)] for n in range(wanted)]

    def _refuse(self, cell_id: str, where: str, number: int, detail: str) -> None:
        self._say({"op": "unlaunched", "id": cell_id, "stage": where, "errno": number, "detail": detail[:2000]})

    # -- time and limits

    def _wait(self) -> float:
        if self._removals:
            return _REMOVE_AGAIN
        times = [min(known.deadline, known.next_look) for known in self._cells.values()]
        return min(max(0.0, min(times, default=_MAX_WAIT + time.monotonic()) - time.monotonic()), _MAX_WAIT)

    def _keep_time(self) -> None:
        now = time.monotonic()
        for known in list(self._cells.values()):
            if known.reason is None and now >= known.deadline:
                self._look(known, now)
                known.kill("timeout")
            elif now >= known.next_look:
                self._look(known, now)

    def _look(self, known: Cell, now: float) -> None:
        sight = watch.look(known.pid)
        counted = known.group is not None and known.group.counts_memory
        known.next_look = now + (watch.OFTEN if counted or len(sight.pids) > 1 else watch.SELDOM)
        known.peak_tasks = max(known.peak_tasks, sight.tasks)
        known.cpu_seconds = max(known.cpu_seconds, sight.cpu)
        memory = self._memory_in_use(known, sight, now)
        known.peak_memory = max(known.peak_memory, memory)
        if memory > known.limits["memory"]:
            known.kill("memory")
        cpu_time = known.limits["cpu_time"]
        if cpu_time is not None and sight.cpu > cpu_time:
            known.kill("cpu")

    def _memory_in_use(self, known: Cell, sight: watch.Sight, now: float) -> int:
        files = _files(known.scratch.tree_fd)
        if known.group and known.group.counts_memory:
            return known.group.memory_in_use(files)
        memory = sight.memory(files)
        if memory <= known.limits["memory"] or len(sight.pids) == 1:
            return memory
        known.next_look = now + watch.SELDOM  # the exact look takes longer
        return watch.proportional(sight) - files

    # -- the end of a cell

    def _ended(self, known: Cell) -> None:
        _, code, usage = os.wait4(known.pid, 0)
        ended = time.monotonic()
        self._epoll.unregister(known.pidfd)
        del self._cells[known.pidfd]
        os.close(known.pidfd)
        report = _read_report(known.status_fd)
        outcome = {
            "init": code,
            "seconds": ended - known.started,
            "cpu": max(usage.ru_utime + usage.ru_stime, known.cpu_seconds),
            "tasks": known.peak_tasks,
            "reason": known.reason,
            **self._memory(known, report, usage.ru_maxrss * 1024),
            **_space(known.scratch.tree_fd),
        }
        if "failed" in report:
            self._refuse(known.id, report["failed"], report["errno"], report["detail"])
        else:
            told = {"op": "ended", "id": known.id, "main": report.get("main"), **outcome}
            self._say(told, [known.scratch.tree_fd])
        known.scratch.close()
        if known.channel.fileno() in self._channels:
            del self._channels[known.channel.fileno()]
            self._epoll.unregister(known.channel.fileno())
        known.channel.close()

    def _memory(self, known: Cell, report: dict[str, Any], fallback: int) -> dict[str, Any]:
        peak = max(known.peak_memory, report.get("peak", fallback))
        oom = False
        if known.group:
            oom = known.group.out_of_memory()
            if known.group.oom_fd is not None:
                self._epoll.unregister(known.group.oom_fd)
                del self._ooms[known.group.oom_fd]
            self._removals.append(known.group)  # after the result is on its way: it may wait in the kernel
        return {"peak": peak, "oom": oom}

    def _end_all(self) -> None:
        if self._spare:
            spare.discard(self._spare)
        for known in self._cells.values():
            known.kill("closed")
        for known in self._cells.values():
            os.waitpid(known.pid, 0)
            if known.group:
                known.group.remove()

    def _say(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        try:
            self._socket.sendmsg([wire.encode(message)], rights)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the host is gone; the next receive ends us


def _read_report(fd: int) -> dict[str, Any]:
    """What init or a failed set-up wrote; {} when it said nothing that can be understood."""
    os.set_blocking(fd, False)
    try:
        data = os.read(fd, _PIPE_READ)
    except BlockingIOError:
        data = b""
    finally:
        os.close(fd)
    if len(data) == init.REPORT.size and data[:1] == b"x":
        _, code, peak = init.REPORT.unpack(data)
        return {"main": code, "peak": peak}
    if data[-init.REPORT.size :][:1] == b"x":
        data = data[: -init.REPORT.size]  # the program's own process failed to become it, and init reported that end
    try:
        report = wire.decode(data)
    except wire.WireError:
        return {}
    return report if isinstance(report, dict) and set(report) == {"failed", "errno", "detail"} else {}


def _files(tree_fd: int) -> int:
    """Bytes of memory that the files of a scratch take."""
    used = os.fstatvfs(tree_fd)
    return (used.f_blocks - used.f_bfree) * used.f_frsize


def _space(tree_fd: int) -> dict[str, int]:
    left = os.fstatvfs(tree_fd)
    return {"space_left": left.f_bavail * left.f_frsize, "inodes_left": left.f_favail}
