"""The pool: first processes of cells, made before they are needed. Their namespaces exist; they wait for a request.

A ready cell has run no guest code. It serves one request and is never reused. Preforking takes the kernel's slow steps
(a network namespace, entering a cgroup) off every start. A cell is forked from the supervisor or from a zygote; the
supervisor is its parent either way.
"""

from __future__ import annotations

import _socket
import os
import select
import time

from casemate.supervisor import cgroups, init, kernel, sockets, watch, wire
from casemate.supervisor.namespaces import Identity

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

    from casemate.supervisor.maker import Maker
    from casemate.supervisor.scratch import Scratch

_DELAY_AFTER_FIRST = 0.05  # seconds before the second prefork, so that a single run does not pay for it
_NEVER = float("inf")
_TRIAL_MEMORY = 256 << 20  # bytes; more than a ready cell uses


class PendingCell:
    """Everything of a ready cell but its process: identity, our ends of its channel and status pipe, and its cgroup."""

    def __init__(self, identity: Identity, groups: cgroups.Cgroups, name: str) -> None:
        self.identity = identity
        self.channel, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        # The cell's ends of the channel and of the status pipe, and the descriptors by which it enters its cgroups.
        self.ends = [theirs.detach()]
        self.status_fd, self.group = -1, None
        try:
            self.status_fd, status = os.pipe()
            self.ends.append(status)
            self.group = groups.create(name)
            self.ends += self.group.open_procs() if self.group else []
        except OSError:
            self.discard()
            raise

    def close_ends(self) -> None:
        """Close the ends that the process has inherited."""
        kernel.close_all(self.ends)
        self.ends = []

    def discard(self) -> None:
        """Release everything. No process will be made."""
        self.close_ends()
        self.channel.close()
        if self.status_fd >= 0:
            os.close(self.status_fd)
        if self.group:
            self.group.remove()


class ReadyCell:
    """A process that waits to become a cell. ``status_fd`` reports a failed set-up, or later the program's end."""

    has_own_network = True
    is_alone = True  # no other cell shares its processes
    processes: int | None = None  # the most it may have, where the kernel does not count them
    terminals_of: int | None = None  # the cell's user, where the kernel does not limit its pseudo-terminals

    def __init__(self, pid: int, pending: PendingCell) -> None:
        self.pid = pid
        self.identity = pending.identity
        self.channel = pending.channel
        self.status_fd = pending.status_fd
        self.group = pending.group
        self.mount_namespace = self.network_namespace = -1  # descriptors, once the cell has sent them
        self._sockets: sockets.CellSockets | None = None  # if it has many
        pending.close_ends()

    def send_request(self, request: dict[str, Any], scratch: Scratch, fds: dict[str, int]) -> None:
        """Send it its request and all descriptors. Raises ``OSError`` when it is dead."""
        message = init.request_message(request, [target for _, target in scratch.mounts], list(fds))
        all_fds = [*(fd for fd, _ in scratch.mounts), *fds.values()]
        kernel.send_fds(self.channel, message, all_fds, _socket.MSG_NOSIGNAL)

    def socket_memory(self, pids: list[int]) -> int:  # noqa: ARG002
        """Bytes in the buffers of its sockets; 0 if it has few. Raises ``OSError``."""
        if not sockets.are_many(watch.read(f"/proc/{self.pid}/net/sockstat")):
            return 0
        if self._sockets is None:
            self.wait_prepared()
            self._sockets = sockets.CellSockets(self.network_namespace)
        return self._sockets.memory()

    def wait_prepared(self) -> None:
        """Wait until it has entered its cgroups and namespaces. Raises ``OSError`` if it could not."""
        if self.network_namespace >= 0:
            return
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        if not poll.poll(wire.ANSWER_WITHIN):
            raise OSError(110, "a cell did not prepare itself in time")
        data, fds = kernel.receive_fds(self.channel, 1, 2)
        if data != init.PREPARED:
            raise OSError(1, "a cell could not be prepared")
        self.mount_namespace, self.network_namespace = fds

    def close(self) -> None:
        self.channel.close()
        if self._sockets:
            self._sockets.close()
        if self.network_namespace >= 0:
            kernel.close_all((self.mount_namespace, self.network_namespace))

    def bounds(self, rlimits: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The ``rlimits`` to set on its program, adapted to this kind of cell."""
        return rlimits

    def open_pidfd(self) -> int:
        """A descriptor that is readable once its process has ended. Raises ``OSError``."""
        return os.pidfd_open(self.pid)

    def end(self) -> None:
        """Kill its pid 1; the kernel then ends everything in the cell (pid_namespaces(7))."""
        os.kill(self.pid, 9)  # an unreaped child of ours, so the pid is not reused

    def discard(self) -> None:
        """End it unused."""
        self.end()
        os.waitpid(self.pid, 0)
        self.close()
        os.close(self.status_fd)
        if self.group:
            self.group.remove()


class CellPool:
    """Provides each cell's first process, cgroup and cores. ``ahead``: keep one process ready."""

    def __init__(self, maker: Maker, groups: cgroups.Cgroups, *, ahead: bool = True) -> None:
        self._ahead = ahead
        self._maker = maker
        self._groups = groups
        self._programs: dict[bool, bytes] = {}
        self._ready: ReadyCell | None = None
        self._has_handed_out = False
        self._prefork_at = 0.0  # monotonic seconds; 0 when there is nothing to wait for
        self._cpus = sorted(os.sched_getaffinity(0))
        self._next_cpu = 0
        self._count = 0

    def try_cgroups(self) -> dict[str, str | None]:
        """Make the first ready cell and test cgroups on it. Without success, use none from now on."""
        try:
            self._ready = self._prefork()
            if self._ready.group:
                self._ready.wait_prepared()
                self._ready.group.limit(memory=_TRIAL_MEMORY, cpus=1.0)
        except OSError:
            self.discard()
            self._groups = cgroups.Cgroups(None, None)
        return self._groups.describe()

    def prepare(self) -> None:
        """Prefork a cell, `_DELAY_AFTER_FIRST` after the first is taken at the earliest. Failures show when needed."""
        if self._ahead and self._ready is None and time.monotonic() >= self._prefork_at:
            self._prefork_at = 0.0
            try:
                self._ready = self._prefork()
            except OSError:
                self._ready = None

    def next_time(self) -> float:
        """When `prepare` is due even if nothing else happens (monotonic seconds)."""
        return self._prefork_at if self._ahead and self._prefork_at else _NEVER

    def take(self, identity: Identity | None = None) -> ReadyCell:
        """The ready cell if it is alive, else a new one. An ``identity`` always takes a new one. Raises ``OSError``."""
        if identity:
            return self._prefork(identity)
        self._prefork_at = 0.0 if self._has_handed_out else time.monotonic() + _DELAY_AFTER_FIRST
        self._has_handed_out = True
        cell, self._ready = self._ready, None
        if cell is None:
            return self._prefork()
        if os.waitid(os.P_PID, cell.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            cell.discard()
            return self._prefork()
        return cell

    def is_ready(self, pid: int) -> bool:
        """Whether ``pid`` is the ready cell."""
        return self._ready is not None and self._ready.pid == pid

    def discard(self) -> None:
        """End the ready cell."""
        if self._ready:
            self._ready.discard()
        self._ready = None

    def new_pending(self, identity: Identity | None = None) -> PendingCell:
        """Everything of a new cell but its process, which a zygote makes. Raises ``OSError``."""
        self._count += 1
        return PendingCell(identity or self._maker.identities.take(), self._groups, str(self._count))

    def seccomp_program(self) -> bytes:
        counted = self._groups.memory is not None
        if counted not in self._programs:
            self._programs[counted] = self._maker.seccomp_program(memory_is_counted=counted)
        return self._programs[counted]

    def choose_cpus(self, cpus: float) -> list[int]:
        """Without a cpu cgroup: the cores to pin a cell to, in rotation. Best effort; a cell can undo it."""
        wanted = max(1, -int(-cpus // 1))
        if self._groups.cpu or wanted >= len(self._cpus):
            return []
        first = self._next_cpu
        self._next_cpu = (first + wanted) % len(self._cpus)
        return [self._cpus[(first + n) % len(self._cpus)] for n in range(wanted)]

    def _prefork(self, identity: Identity | None = None) -> ReadyCell:
        made: ReadyCell = self._maker.prefork(self.new_pending(identity), self.seccomp_program())
        return made
