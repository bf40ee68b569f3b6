"""A running cell, as the supervisor sees it: its limits, its clock, and how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import sys
import time

from casemate.supervisor import init, pause, pool, scratch, watch, wire

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

_FIRST_LOOK = 0.01  # seconds after the start
_RETRY_PAUSE = 1.0  # seconds before another attempt to stop a cell; an attempt takes `pause` 30 ms
_REST_FACTOR = 10  # a cell rests this many times as long as its look took, so that other cells do not wait
_LONGEST_REST = 2.0  # seconds; a bound, because a cell can make its looks slow
_PIPE_READ = 4096
_LOOSE_BYTES = 256 << 20  # bytes; RLIMIT_DATA that exceeds the limit by more bounds nothing: Node reserves gigabytes
_NEVER = float("inf")
_SIGINT, _SIGKILL = 2, 9
_FIONREAD = 0x541B  # asm-generic/ioctls.h
_GIVEN_WITHIN = 100  # milliseconds for the host to deliver a program it has announced; it takes 0.1
_PAUSED_LOOK = 5.0  # seconds between looks at a cell that is paused for an answer
_IDLE_LOOK = 10.0  # seconds between looks at a session with only its idle interpreter


class CellProcess:
    def __init__(self, request: dict[str, Any], ready: pool.ReadyCell, scratch: scratch.Scratch, shared: int) -> None:
        self.id: str = request["id"]  # the host's name for it
        self.limits: dict[str, Any] = request["limits"]
        self.shared = shared  # bytes that it shares with its zygote from the start
        # Whether RLIMIT_DATA keeps each single process near the memory limit.
        data = request["rlimits"]["DATA"]
        self.is_bounded_by_rlimit = data is not None and data - shared - self.limits["memory"] < _LOOSE_BYTES
        self.pid = ready.pid
        self.pidfd = ready.open_pidfd()
        self.scratch = scratch
        self.group = ready.group
        self.status_fd = ready.status_fd
        self.ready = ready  # its channel stays open until the result is sent; see init.PREPARED
        self.shown: dict[str, str] = {}  # sources of shown folders, by place
        self.is_waiting: bool = request["awaits_order"]  # its program is not known yet, and no clock runs
        self.order_fd = -1  # where its order goes, while the host may deliver the program
        self.order_size = 0  # once the host delivers it
        self.session: bool = request["session"]
        self.grace = 0.0  # seconds from the interrupt of a step to the end of the cell
        self.interrupted = False
        self.next_interrupt = self.interrupt_interval = _NEVER  # repeated: an interpreter may miss the first one
        self.in_step = False
        self.step_began = 0.0
        self.files_pause: pause.Pause | None = None  # while the host reads its files
        self.answer_pause: pause.Pause | None = None  # while it waits for an approver's answer
        self.keeps_files = False  # its files outlive it, for the session's next cell
        self.started = time.monotonic()
        self.deadline = self.next_look = _NEVER
        if not self.is_waiting:
            self.begin(request["deadline"])
        self.reason: str | None = None
        self.problem: Exception | None = None  # why its program could not begin
        self.report: dict[str, Any] | None = None  # from init
        self.status_is_over = False  # no writer is left
        self.init_status = 0  # init's wait status
        self.is_set_up = not self.is_waiting
        self.pending_begin: tuple[dict[str, Any], dict[str, int]] | None = None  # begin request during set-up
        self.left = {"space_left": 0, "inodes_left": 0}  # at the last count of its files
        self.next_count = 0.0
        self.memory = self.peak_memory = self.tasks = self.peak_tasks = 0
        self.cpu_seconds = self.cpu_before = 0.0

    def begin(self, deadline: float, started: float | None = None) -> None:
        """Start the clock: the program starts now or at ``started`` (monotonic seconds), with ``deadline`` seconds."""
        self.is_waiting = False
        self.started = time.monotonic() if started is None else started
        self.deadline = self.started + deadline
        self.next_look = self.started + _FIRST_LOOK

    def offer(self, order: int) -> None:
        """Let the host deliver the program and then its order on ``order`` directly. Raises ``OSError``."""
        self.order_fd = os.dup(order)

    def withdraw_offer(self) -> None:
        """End the offer. Does nothing if there is none."""
        if self.order_fd >= 0:
            os.close(self.order_fd)
        self.order_fd = -1

    def begin_by_host(self, message: dict[str, Any]) -> None:
        """Record that the host delivers the program directly."""
        self.order_size = message["order_size"]
        if self.reason is None:
            self.begin(message["deadline"], message["started"])

    def has_begun(self) -> bool:
        """Whether the program of an ended cell may have started. False means it is safe to run it elsewhere."""
        if not self.order_size:
            return not self.is_waiting
        if self.reason is not None and not self.is_waiting:
            return True
        if not os.WIFEXITED((self.report or {}).get("wait_status", _SIGKILL)):
            given = select.poll()
            given.register(self.order_fd, 0)
            given.poll(_GIVEN_WITHIN)  # until the host has closed its end, and so written everything
        unread = fcntl.ioctl(self.order_fd, _FIONREAD, bytes(4))
        return int.from_bytes(unread, sys.byteorder) != self.order_size

    def limit(self, limits: dict[str, Any]) -> None:
        """Apply the request's ``limits`` through the cell's cgroup, if it has one. Raises ``OSError``."""
        self.limits = limits
        if self.group:
            # tmpfs pages count as memory
            self.group.limit(memory=limits["memory"] + limits["disk"], cpus=limits["cpus"])

    def narrow(self, limits: dict[str, Any], rlimits: dict[str, int | None], cpus: list[int]) -> None:
        """Lower the limits of a waiting cell, init's first: its new children inherit them. Raises ``OSError``."""
        self.limit(limits)
        rlimits = self.ready.bounds(rlimits, limits)
        identity = self.scratch.identity
        identity.set_real_ids(identity.uid, identity.gid)
        try:
            self._lower(self.pid, rlimits, cpus)
            for pid in watch.children(self.pid):
                self._lower(pid, rlimits, cpus)
        finally:
            identity.set_real_ids(0, 0)

    def _lower(self, pid: int, rlimits: dict[str, int | None], cpus: list[int]) -> None:
        for name, value in rlimits.items():
            if value is not None:
                kind = getattr(resource, f"RLIMIT_{name}")
                most = value + self.shared if name == "DATA" else value
                maximum = resource.prlimit(pid, kind)[1]
                least = most if maximum == resource.RLIM_INFINITY else min(most, maximum)
                resource.prlimit(pid, kind, (least, least))
        if cpus:
            os.sched_setaffinity(pid, cpus)

    def kill(self, reason: str) -> None:
        """End the cell. The first ``reason`` is kept. The kernel ends everything with pid 1 (pid_namespaces(7))."""
        if self.reason is None:
            self.reason = reason
        self.ready.end()
        if self.group:
            self.group.lift_cpu_limit()

    # -- limits that only the supervisor enforces

    def next_time(self) -> float:
        """When the cell is due for a check (monotonic seconds)."""
        if self.answer_pause:
            return self.next_look
        deadline = self.deadline if self.reason is None else _NEVER  # a cell that is ending is not ended twice
        return min(deadline, self.next_look, self.next_interrupt)

    def begin_step(self, seconds: float, grace: float, repeat: float) -> None:
        """Start a step's clock: interrupt after ``seconds`` and then every ``repeat``, end the cell ``grace`` later."""
        self.resume()
        now = time.monotonic()
        self.in_step, self.interrupted, self.grace, self.next_interrupt = True, False, grace, _NEVER
        self.interrupt_interval = repeat
        self.deadline, self.step_began = now + seconds, now
        self.next_look = now + _FIRST_LOOK
        self._count_anew()

    def _count_anew(self) -> None:
        self.peak_memory, self.peak_tasks, self.cpu_before = self.memory, self.tasks, self.cpu_seconds

    def end_step(self) -> None:
        self.resume()
        self.in_step, self.deadline, self.next_interrupt = False, _NEVER, _NEVER
        self.next_look = time.monotonic() + watch.SELDOM

    def interrupt(self, grace: float) -> None:
        """Interrupt the running step, if any. The cell ends ``grace`` seconds later unless the step ends."""
        if not self.in_step:
            return
        self.resume()
        now = time.monotonic()
        if not self.interrupted:
            self.interrupted = True
            self.deadline = now + grace
            self.next_interrupt = now + self.interrupt_interval
        self.signal(_SIGINT)

    def signal(self, number: int) -> None:
        """Signal the program's process group: the program and what it runs in the foreground."""
        for pid in watch.children(self.pid)[:1]:  # the first child of init is the program; later ones are orphans
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(pid, number)

    def forward_signal(self, number: int) -> None:
        """Pass on a signal from the caller. It ends a cell whose program has not started."""
        if watch.has_no_children(self.pid):
            self.kill("cancelled")
        else:
            self.signal(number)

    def pause_for_files(self) -> bool:
        """Stop everything but init, so that the files stay as they are. Returns whether all of it is stopped."""
        if self.files_pause is None:
            self.resume()
            self.files_pause = pause.Pause(self.pid)
        return self.files_pause.stop(pause.FILES_WITHIN)

    def resume_after_files(self) -> bool:
        """Resume what `pause_for_files` stopped. Returns whether nothing has run in between."""
        file_pause, self.files_pause = self.files_pause, None
        if file_pause is None:
            return False
        is_unbroken = file_pause.is_unbroken()
        file_pause.resume()
        return is_unbroken

    def pause(self) -> None:
        """Stop the cell and its clock until `resume`, while it waits for an approver's answer. Does nothing after an
        interrupt, or if the kernel cannot show that it stays stopped: its time must then count."""
        has_clock = self.in_step if self.session else not self.is_waiting
        can_pause = has_clock and not (self.interrupted or self.reason or self.answer_pause or self.files_pause)
        if can_pause and pause.can_be_verified():
            self.answer_pause = pause.Pause(self.pid)
            self._account_pause(time.monotonic())

    def resume(self) -> None:
        if self.answer_pause:
            now = time.monotonic()
            self.deadline += self.answer_pause.take_credit(now)
            self.answer_pause.resume()
            self.answer_pause = None
            self.next_look = now + _FIRST_LOOK

    def _account_pause(self, now: float) -> None:
        """Extend the deadline by the time that nothing ran. Stop again what a timer in the cell has woken."""
        assert self.answer_pause
        self.deadline += self.answer_pause.take_credit(now)
        if self.answer_pause.is_complete:
            # If it wakes, the next look notices, at its deadline or soon after.
            counted = self.group is not None and self.group.counts_memory
            longest = _PAUSED_LOOK if counted else watch.SELDOM
            self.next_look = now + min(longest, max(watch.SELDOM, self.deadline - now))
        else:
            self._look()
            if not self.answer_pause.stop():
                self.next_look = time.monotonic() + _RETRY_PAUSE

    def keep_time(self, now: float) -> None:
        """Enforce the deadline, and look at the cell when that is due."""
        if self.answer_pause:
            self._account_pause(now)
            if now < self.deadline:
                return
            self.resume()
        if self.reason is None and now >= self.deadline:
            if self.in_step and not self.interrupted:
                self.interrupt(self.grace)
            else:
                self.kill("timeout")
        elif now >= self.next_interrupt:
            self.next_interrupt = now + self.interrupt_interval
            self.signal(_SIGINT)
        elif now >= self.next_look:
            self._look()

    def _look(self) -> None:
        """Measure the cell. The rest until the next look depends on how long this look took."""
        began = time.monotonic()
        self._measure(began)
        ended = time.monotonic()
        self.next_look = max(self.next_look, ended + min(_LONGEST_REST, _REST_FACTOR * (ended - began)))

    def _measure(self, now: float) -> None:
        usage = watch.measure(self.pid)
        self.next_look = now + self._measure_interval(usage)
        self.cpu_seconds = max(self.cpu_seconds, usage.cpu)
        self._count_tasks(usage.tasks)
        user = self.ready.terminals_of
        if user is not None and watch.terminals(user) > init.MOST_TERMINALS:
            self.kill("terminals")
        if self.reason is not None:
            return  # already ending, and reading memory would wait for processes that fork
        memory = self.memory = self._memory_in_use(usage, now)
        self.peak_memory = max(self.peak_memory, memory)
        if memory > self.limits["memory"]:
            self.kill("memory")
        cpu_time = self.limits["cpu_time"]
        if cpu_time is not None and usage.cpu > cpu_time:
            self.kill("cpu")

    def _count_tasks(self, tasks: int) -> None:
        """Record the number of tasks. End the cell if there are too many and the kernel does not limit them."""
        self.tasks = tasks
        self.peak_tasks = max(self.peak_tasks, tasks)
        if self.ready.processes is not None and tasks > self.ready.processes:
            self.kill("processes")

    def _may_grow(self) -> bool:
        if self.ready.processes is not None:
            self._count_tasks(watch.measure(self.pid).tasks)
        return self.reason is None

    def _measure_interval(self, usage: watch.CellUsage) -> float:
        """Seconds until the next look, depending on how much memory the cell could take by then."""
        counted = self.group is not None and self.group.counts_memory
        if self.session and not self.in_step and (counted or (self.is_bounded_by_rlimit and usage.tasks <= 1)):
            return _IDLE_LOOK
        if self.limits["cpu_time"] is not None or self.ready.terminals_of is not None:
            return watch.OFTEN
        return watch.SELDOM if self.is_bounded_by_rlimit and not counted and len(usage.pids) == 1 else watch.OFTEN

    def _memory_in_use(self, usage: watch.CellUsage, now: float) -> int:
        files = self.scratch.files_bytes()
        if self.group and self.group.counts_memory:
            # Sockets that the supervisor made for the cell count for the supervisor.
            return self.group.memory_in_use(files) + (
                0 if self.ready.has_own_network else self._socket_memory(usage.pids)
            )
        buffers = self._socket_memory(usage.pids)
        alone = len(usage.pids) == 1 and not self.shared
        if usage.most_memory() + buffers <= self.limits["memory"] or alone:
            return usage.memory(files) + buffers
        self.next_look = now + watch.SELDOM  # the exact measurement takes longer
        return watch.proportional(usage, files, self._may_grow) + buffers

    def _socket_memory(self, pids: list[int]) -> int:
        try:
            return self.ready.socket_memory(pids)
        except OSError:
            return 0

    def lay_out(self) -> bool:
        """Lay out the files of a paused cell for the host. False if that failed or something has run."""
        try:
            self.scratch.lay_out()
        except OSError:
            return False
        return not self.scratch.lays_out or (self.files_pause is not None and self.files_pause.is_unbroken())

    def count_files(self, *, lays_out: bool = False) -> None:
        """Count what is left of the disk limits. ``lays_out``: lay out the files first."""
        if lays_out:
            self.lay_out()
        began = time.monotonic()
        self.left = self.scratch.space_left()
        self.next_count = began + watch.SELDOM + 2 * _REST_FACTOR * (time.monotonic() - began)

    def judge_files(self) -> None:
        """End the cell if its files exceed the limits and the file system does not enforce them."""
        if self.scratch.is_watched and min(self.left.values()) <= 0:
            self.kill("disk")

    # -- the end

    def read_status(self) -> bool:
        """Read what init, or a failed set-up, wrote. True for a report: `report` then has it, empty if malformed."""
        available = _read_available(self.status_fd)
        self.status_is_over = available == b""
        data = available or b""
        if not self.is_set_up and data[:1] == init.SET_UP:
            self.is_set_up, data = True, data[1:]
        if data:
            self.report = _parse_report(data)
        return bool(data)

    def is_empty(self) -> bool:
        """Whether only init is left. An orphan becomes init's child before its parent counts as dead (exit(2))."""
        return self.ready.is_alone and watch.has_no_children(self.pid)

    def outcome(self, report: dict[str, Any]) -> dict[str, Any]:
        """How the cell ended and what it used, for the host. A session reports the use of its last step."""
        peak = (
            self.peak_memory
            if self.session and self.peak_memory
            else max(self.peak_memory, report.get("peak_memory", 0))
        )
        return {
            "wait_status": report.get("wait_status"),
            "seconds": time.monotonic() - self.started,
            "cpu_seconds": max(report.get("cpu_seconds", 0.0), self.cpu_seconds) - self.cpu_before,
            "tasks": self.peak_tasks,
            "begun": report.get("begun", 0),
            "reason": self.reason,
            "peak_memory": peak,
            "oom": self.group.out_of_memory() if self.group else False,
        }

    def usage(self) -> dict[str, Any]:
        """What the finished step used and what is left of the limits. May end a cell that is over its limits."""
        if time.monotonic() - self.step_began > _FIRST_LOOK:
            self._look()
        usage = {
            "cpu_seconds": self.cpu_seconds - self.cpu_before,
            "peak_memory": self.peak_memory,
            "tasks": self.peak_tasks,
            "memory_left": self.memory,
            "tasks_left": self.tasks,
            "interrupted": self.interrupted,
            **self.left,
        }
        self._count_anew()  # the next step may end the cell before its start is known here
        return usage

    def reap(self) -> dict[str, Any]:
        """Reap the first process. Returns what it and its descendants used, according to the kernel."""
        _, self.init_status, usage = os.wait4(self.pid, 0)
        return {"peak_memory": usage.ru_maxrss * 1024, "cpu_seconds": usage.ru_utime + usage.ru_stime}

    def close(self) -> None:
        """Close everything but the cgroup, whose removal may take the kernel a moment."""
        self.close_descriptors()
        os.close(self.status_fd)
        if not self.keeps_files:
            self.scratch.close()
        self.ready.close()

    def close_descriptors(self) -> None:
        """Close the pidfd and end the offer."""
        os.close(self.pidfd)
        self.withdraw_offer()


def _read_available(fd: int) -> bytes | None:
    """What can be read now: empty at the end of the pipe, None if nothing has come yet."""
    os.set_blocking(fd, False)
    try:
        return os.read(fd, _PIPE_READ)
    except BlockingIOError:
        return None


def _parse_report(data: bytes) -> dict[str, Any]:
    if len(data) == init.REPORT.size and data[:1] == b"x":
        _, code, peak, cpu, begun = init.REPORT.unpack(data)
        return {"wait_status": code, "peak_memory": peak, "cpu_seconds": cpu / 1e6, "begun": begun}
    if data[-init.REPORT.size :][:1] == b"x":
        data = data[: -init.REPORT.size]  # the program's process failed before exec, and init reported its end as well
    try:
        report = wire.decode(data)
    except wire.WireError:
        return {}
    return report if isinstance(report, dict) and set(report) == {"failed", "errno", "detail"} else {}


def splice_order(source: int, size: int, pipe: int) -> None:
    """Move ``size`` bytes of the file ``source`` into a cell's pipe. Raises ``OSError``. They hold secrets, so
    splice(2) keeps them out of this process's memory, which later cells inherit."""
    at = 0
    while at < size:
        moved = os.splice(source, pipe, size - at, offset_src=at, flags=os.SPLICE_F_NONBLOCK)
        if moved == 0:
            raise OSError(5, "the order ended early")
        at += moved
