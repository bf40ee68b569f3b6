"""A living cell, as the supervisor sees it: its limits, its clock, and how it ended."""

from __future__ import annotations

import contextlib
import os
import resource
import time

from casemate.supervisor import broker, init, pauses, spare, standstill, watch, wire
from casemate.supervisor.identity import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

_SIGKILL = 9
_FIRST_LOOK = 0.01  # seconds after the start
_STUBBORN_REST = 1.0  # seconds until a cell that could not be stopped is tried again: trying takes `standstill` 30 ms
_TIMES_REST = 10  # as long as a look took, it rests
_PIPE_READ = 4096
_LOOSE = 256 << 20  # bytes above the limit from which RLIMIT_DATA holds a process to nothing: Node reserves gigabytes
_NEVER = float("inf")
_SIGINT = 2
_IDLE_LOOK = 5.0  # seconds between looks at a session in which no step runs, and nothing but its interpreter


class Cell:
    """A cell from its request to its end.

    ``id``: the host's name for it; ``shared``: bytes that it holds in common with its zygote from the start;
    ``held_alone``: whether the kernel keeps a single process of it near the memory limit.
    While ``waits`` is true its program is not known yet and no clock runs.
    """

    def __init__(self, request: dict[str, Any], made: spare.Spare, scratch: broker.Scratch, shared: int) -> None:
        self.id: str = request["id"]
        self.limits: dict[str, Any] = request["limits"]
        self.shared = shared
        data = request["rlimits"]["DATA"]
        self.held_alone = data is not None and data - shared - self.limits["memory"] < _LOOSE
        self.pid = made.pid
        self.pidfd = os.pidfd_open(made.pid)
        self.scratch = scratch
        self.group = made.group
        self.status_fd = made.status_fd
        self.made = made  # its channel is kept until the result is told; see cell.PREPARED
        self.mounts = self.network = -1  # its namespaces, where the host has sockets or folders in it
        self.waits: bool = request["order"]
        self.session: bool = request["session"]
        self.grace = 0.0  # seconds from the interrupt of a step to the end of the cell
        self.interrupted = False
        self.again = self.repeat = _NEVER  # when it is interrupted once more: an interpreter may have missed it
        self.in_step = False
        self.step_began = 0.0
        self.frozen: standstill.Standstill | None = None  # while its files are taken
        self.paused: pauses.Pause | None = None  # while it waits for somebody's answer
        self.keeps_files = False  # at its end, for the session's next cell
        self.started = time.monotonic()
        self.deadline = self.next_look = _NEVER
        if not self.waits:
            self.begin(request["deadline"])
        self.reason: str | None = None
        self.problem = ""  # why its program could not begin
        self.reported: dict[str, Any] | None = None  # by its init
        self.in_place = not self.waits
        self.to_begin: tuple[dict[str, Any], dict[str, int]] | None = None  # once it is in place
        self.memory = self.peak_memory = 0
        self.tasks = self.peak_tasks = 0
        self.cpu_seconds = self.cpu_before = 0.0

    def begin(self, deadline: float) -> None:
        """Its program starts now and has ``deadline`` seconds."""
        self.waits = False
        self.started = time.monotonic()
        self.deadline = self.started + deadline
        self.next_look = self.started + _FIRST_LOOK

    def keep_namespaces(self) -> None:
        """Keep its mounts and its network at hand. Waits until it has prepared itself. Raises ``OSError``."""
        if self.network < 0:
            self.mounts, self.network = self.made.namespaces()

    def limit(self, limits: dict[str, Any]) -> None:
        """Hold it to ``limits``, which are the request's, as far as a cgroup counts them. Raises ``OSError``."""
        self.limits = limits
        if self.group:
            # tmpfs pages count as memory
            self.group.limit(memory=limits["memory"] + limits["disk"], cpus=limits["cpus"])

    def narrow(
        self, limits: dict[str, Any], rlimits: dict[str, int | None], cpus: list[int], identity: Identity
    ) -> None:
        """Hold a cell that waits to less than it was made with. Raises ``OSError``.

        Its init first: what it forks from then on is held already.
        """
        self.limit(limits)
        with identity.as_cell():
            self._lower(self.pid, rlimits, cpus)
            for pid in watch.children(self.pid):
                self._lower(pid, rlimits, cpus)

    def _lower(self, pid: int, rlimits: dict[str, int | None], cpus: list[int]) -> None:
        for name, value in rlimits.items():
            if value is not None:
                kind = getattr(resource, f"RLIMIT_{name}")
                most = value + self.shared if name == "DATA" else value
                hardest = resource.prlimit(pid, kind)[1]
                least = most if hardest == resource.RLIM_INFINITY else min(most, hardest)
                resource.prlimit(pid, kind, (least, least))
        if cpus:
            os.sched_setaffinity(pid, cpus)

    def kill(self, reason: str) -> None:
        """End the cell: with its pid 1 the kernel ends everything in it (pid_namespaces(7))."""
        if self.reason is None:
            self.reason = reason
        os.kill(self.pid, _SIGKILL)  # our own child, not yet reaped, so the number is still its
        if self.group:
            self.group.let_die()

    # -- limits that nothing enforces by itself

    def next_time(self) -> float:
        """When it wants to be looked at again (monotonic seconds)."""
        if self.paused:
            return self.next_look
        deadline = self.deadline if self.reason is None else _NEVER  # one that is being ended needs no second end
        return min(deadline, self.next_look, self.again)

    def begin_step(self, seconds: float, grace: float, repeat: float) -> None:
        """A step of a session begins: after ``seconds`` it is interrupted, again each ``repeat``, and ``grace`` later
        the cell is ended."""
        self.go_on()
        now = time.monotonic()
        self.in_step, self.interrupted, self.grace, self.again = True, False, grace, _NEVER
        self.repeat = repeat
        self.deadline = now + seconds
        self.step_began = now
        self.next_look = now + _FIRST_LOOK
        self.peak_memory, self.peak_tasks, self.cpu_before = self.memory, self.tasks, self.cpu_seconds

    def end_step(self) -> None:
        """The step is over; nothing runs that has a deadline."""
        self.go_on()
        self.in_step = False
        self.deadline = self.again = _NEVER
        self.next_look = time.monotonic() + watch.SELDOM

    def interrupt(self, grace: float) -> None:
        """Interrupt the step that runs, if one does; the cell ends ``grace`` seconds later where that was of no use."""
        if not self.in_step:
            return
        self.go_on()
        now = time.monotonic()
        if not self.interrupted:
            self.interrupted = True
            self.deadline = now + grace
            self.again = now + self.repeat
        self.signal(_SIGINT)

    def signal(self, number: int) -> None:
        """Send a signal to the program and what it runs in its foreground: the group that it leads, for its life."""
        for pid in watch.children(self.pid)[:1]:  # the first child of init is the program, the others orphans
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(pid, number)

    def pass_on(self, number: int) -> None:
        """The same from outside; where its program has not begun yet, that is its end."""
        if watch.has_no_children(self.pid):
            self.kill("cancelled")
        else:
            self.signal(number)

    def freeze(self) -> bool:
        """Stop everything in it but its init, so that nothing changes its files; whether all of it stands still."""
        self.go_on()
        self.frozen = standstill.Standstill(self.pid)
        return self.frozen.stop()

    def thaw(self) -> bool:
        """Let go on what was stopped, and nothing that stood still before; whether all of it has stood still since."""
        frozen, self.frozen = self.frozen, None
        if frozen is None:
            return False
        held = frozen.holds()
        frozen.end()
        return held

    def stand(self, still: bool) -> None:
        """Pause, or go on."""
        if still:
            self.pause()
        else:
            self.go_on()

    def pause(self) -> None:
        """It waits for somebody's answer and for nothing else: stop it and its clock until `go_on`.

        Not when it has been interrupted: then its time is its last. And not where the kernel does not tell whether it
        stands still: its time would go by all the same.
        """
        has_clock = self.in_step if self.session else not self.waits
        can_stand = has_clock and not (self.interrupted or self.reason or self.paused or self.frozen)
        if can_stand and standstill.can_be_known():
            self.paused = pauses.Pause(self.pid)
            self._keep_paused(time.monotonic())

    def go_on(self) -> None:
        """Let it and its clock go on. Harmless when it was not paused."""
        if self.paused:
            now = time.monotonic()
            self.deadline += self.paused.end(now)
            self.paused = None
            self.next_look = now + _FIRST_LOOK

    def _keep_paused(self, now: float) -> None:
        """What runs in a cell that is paused, by a timer of its own, has the clock against it, and is stopped again."""
        assert self.paused
        self.deadline += self.paused.credit(now)
        if self.paused.stands:
            # If it wakes now, that is noticed when its time is up, or soon after.
            counted = self.group is not None and self.group.counts_memory
            self.next_look = now + min(_IDLE_LOOK if counted else watch.SELDOM, max(watch.SELDOM, self.deadline - now))
        else:
            self._look(now)
            if not self.paused.stop():
                self.next_look = time.monotonic() + _STUBBORN_REST

    def keep_time(self, now: float) -> None:
        """End it when its time is up, and look at it when that is due."""
        if self.paused:
            self._keep_paused(now)
            if now < self.deadline:
                return
            self.go_on()
        if self.reason is None and now >= self.deadline:
            if self.in_step and not self.interrupted:
                self.interrupt(self.grace)
            else:
                self.kill("timeout")
        elif now >= self.again:
            self.again = now + self.repeat
            self.signal(_SIGINT)
        elif now >= self.next_look:
            self._look(now)
            self._rest_after(now)

    def _rest_after(self, began: float) -> None:
        """A cell whose looks take long is looked at less often: the others' time must not go into it."""
        ended = time.monotonic()
        self.next_look = max(self.next_look, ended + _TIMES_REST * (ended - began))

    def _look(self, now: float) -> None:
        sight = watch.look(self.pid)
        self.next_look = now + self._rest(sight)
        self.tasks = sight.tasks
        self.peak_tasks = max(self.peak_tasks, self.tasks)
        self.cpu_seconds = max(self.cpu_seconds, sight.cpu)
        memory = self.memory = self._memory_in_use(sight, now)
        self.peak_memory = max(self.peak_memory, memory)
        if memory > self.limits["memory"]:
            self.kill("memory")
        cpu_time = self.limits["cpu_time"]
        if cpu_time is not None and sight.cpu > cpu_time:
            self.kill("cpu")

    def _rest(self, sight: watch.Sight) -> float:
        """Seconds until the next look, by how much memory could be taken meanwhile."""
        counted = self.group is not None and self.group.counts_memory
        if self.session and not self.in_step and (counted or (self.held_alone and sight.tasks <= 1)):
            return _IDLE_LOOK
        if self.limits["cpu_time"] is not None:
            return watch.OFTEN
        return watch.SELDOM if self.held_alone and not counted and len(sight.pids) == 1 else watch.OFTEN

    def _memory_in_use(self, sight: watch.Sight, now: float) -> int:
        files = self.scratch.files_bytes()
        if self.group and self.group.counts_memory:
            return self.group.memory_in_use(files)
        alone = len(sight.pids) == 1 and not self.shared
        if sight.most_memory() <= self.limits["memory"] or alone:
            return sight.memory(files)
        self.next_look = now + watch.SELDOM  # the exact look takes longer
        return watch.proportional(sight, files)

    # -- the end

    def hear(self) -> bool:
        """Take what its init, or a failed set-up, has written; whether that is a report, which is then in `reported`.

        Anything else that was written counts as a report that says nothing: `reported` is then empty.
        """
        data = _read_now(self.status_fd)
        if not self.in_place and data[:1] == init.IN_PLACE:
            self.in_place, data = True, data[1:]
        if data:
            self.reported = _report_in(data)
        return bool(data)

    def is_empty(self) -> bool:
        """Whether nothing but its init is left in it. Orphans become init's children before their parent counts as
        dead (exit(2)), so that there is nothing that its children do not lead to."""
        return watch.has_no_children(self.pid)

    def outcome(self, report: dict[str, Any]) -> dict[str, Any]:
        """How it ended and what it used, as told to the host: a session's, what the step used in which it ended."""
        peak = self.peak_memory if self.session and self.peak_memory else max(self.peak_memory, report.get("peak", 0))
        return {
            "main": report.get("main"),
            "seconds": time.monotonic() - self.started,
            "cpu": max(report.get("cpu", 0.0), self.cpu_seconds) - self.cpu_before,
            "tasks": self.peak_tasks,
            "reason": self.reason,
            "peak": peak,
            "oom": self.group.out_of_memory() if self.group else False,
            **self.scratch.space_left(),
        }

    def usage(self) -> dict[str, Any]:
        """What it has used in a step that is over, and goes on using, and what is left of its limits, for the host.

        A step of more than a moment is looked at for that, and ends with its cell where that has too much.
        """
        now = time.monotonic()
        if now - self.step_began > _FIRST_LOOK:
            self._look(now)
        return {
            "cpu": self.cpu_seconds - self.cpu_before,
            "peak": self.peak_memory,
            "tasks": self.peak_tasks,
            "memory_left": self.memory,
            "tasks_left": self.tasks,
            "interrupted": self.interrupted,
            **self.scratch.space_left(),
        }

    def reap(self) -> dict[str, Any]:
        """Reap its first process, which has ended; what the kernel says that it and all below it used."""
        _, _, usage = os.wait4(self.pid, 0)
        return {"peak": usage.ru_maxrss * 1024, "cpu": usage.ru_utime + usage.ru_stime}

    def close(self) -> None:
        """Let go of everything but the cgroup, which may take the kernel a moment."""
        self.let_go()
        os.close(self.status_fd)
        if not self.keeps_files:
            self.scratch.close()
        self.made.close()

    def let_go(self) -> None:
        """Close what it holds of the process, its mounts and its network."""
        os.close(self.pidfd)
        if self.network >= 0:
            close_all((self.mounts, self.network))


def _read_now(fd: int) -> bytes:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, _PIPE_READ)
    except BlockingIOError:
        return b""


def _report_in(data: bytes) -> dict[str, Any]:
    if len(data) == init.REPORT.size and data[:1] == b"x":
        _, code, peak, cpu = init.REPORT.unpack(data)
        return {"main": code, "peak": peak, "cpu": cpu / 1e6}
    if data[-init.REPORT.size :][:1] == b"x":
        data = data[: -init.REPORT.size]  # the program's own process failed to become it, and init reported that end
    try:
        report = wire.decode(data)
    except wire.WireError:
        return {}
    return report if isinstance(report, dict) and set(report) == {"failed", "errno", "detail"} else {}


def close_all(fds: Any) -> None:
    """Close every descriptor of an iterable."""
    for fd in fds:
        os.close(fd)


def pass_on(source: int, size: int, pipe: int) -> None:
    """Move the first ``size`` bytes of the file ``source`` into the pipe of a cell that reads. Raises ``OSError``.

    Inside the kernel (splice(2)): they hold secrets, and what this process has held every later cell inherits.
    """
    at = 0
    while at < size:
        moved = os.splice(source, pipe, size - at, offset_src=at, flags=os.SPLICE_F_NONBLOCK)
        if moved == 0:
            raise OSError(5, "the order ended early")
        at += moved
