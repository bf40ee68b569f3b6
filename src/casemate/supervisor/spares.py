"""The spares of a supervisor: one is always ready, as long as there is time to make it."""

from __future__ import annotations

import os
import time

from casemate.supervisor import cgroups, kernel, seccomp, spare
from casemate.supervisor.identity import Identity

_SOON = 0.05  # seconds after the first was given away: who runs one program and goes pays for no other
_NEVER = float("inf")
_TRIAL_MEMORY = 256 << 20  # bytes; more than a waiting spare uses


class Spares:
    """Makes what each cell starts from: its first process, its cgroup, its cores."""

    def __init__(self, identity: Identity, groups: cgroups.Cgroups) -> None:
        self._identity = identity
        self._groups = groups
        self._programs: dict[bool, bytes] = {}
        self._ready: spare.Spare | None = None
        self._has_given = False
        self._not_before = 0.0  # another is made
        self._cpus = sorted(os.sched_getaffinity(0))
        self._next_cpu = 0
        self._count = 0

    def try_cgroups(self) -> dict[str, str | None]:
        """Make the first one and try on it whether cgroups can be used; without them from now on where not."""
        try:
            self._ready = self._new()
            if self._ready.group:
                self._ready.wait_prepared()
                self._ready.group.limit(memory=_TRIAL_MEMORY, cpus=1.0)
        except OSError:
            self.discard()
            self._groups = cgroups.Cgroups(None, None)
        return self._groups.describe()

    def prepare(self) -> None:
        """Have one ready; what fails here is told when one is needed. A moment after the first was given away."""
        if self._ready is None and time.monotonic() >= self._not_before:
            self._not_before = 0.0
            try:
                self._ready = self._new()
            except OSError:
                self._ready = None

    def next_time(self) -> float:
        """When `prepare` wants to be called again although nothing happens (monotonic seconds)."""
        return self._not_before or _NEVER

    def take(self) -> spare.Spare:
        """The one that is ready if it lives, else a new one. Raises ``OSError``."""
        self._not_before = 0.0 if self._has_given else time.monotonic() + _SOON
        self._has_given = True
        made, self._ready = self._ready, None
        if made is None:
            return self._new()
        if os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            made.discard()
            return self._new()
        return made

    def is_ready(self, pid: int) -> bool:
        """Whether ``pid`` is that of the one that is ready."""
        return self._ready is not None and self._ready.pid == pid

    def discard(self) -> None:
        """End the one that is ready."""
        if self._ready:
            self._ready.discard()
        self._ready = None

    def unborn(self) -> spare.Unborn:
        """Everything of another but its process, which a zygote will make. Raises ``OSError``."""
        self._count += 1
        return spare.Unborn(self._groups, str(self._count))

    def program(self) -> bytes:
        """The filter of system calls for cells of this machine."""
        counted = self._groups.memory is not None
        if counted not in self._programs:
            self._programs[counted] = seccomp.program(kernel.machine, memory_is_counted=counted)
        return self._programs[counted]

    def choose_cpus(self, cpus: float) -> list[int]:
        """Without a cpu cgroup: the cores to pin a cell to, in turn. Best effort; a cell can undo it."""
        wanted = max(1, -int(-cpus // 1))
        if self._groups.cpu or wanted >= len(self._cpus):
            return []
        first = self._next_cpu
        self._next_cpu = (first + wanted) % len(self._cpus)
        return [self._cpus[(first + n) % len(self._cpus)] for n in range(wanted)]

    def _new(self) -> spare.Spare:
        return spare.make(self._identity, self.unborn(), self.program())
