"""The pool: a cell's first process, made before it is asked for. Its namespaces exist, and it waits for its request.

A ready cell has run nothing of a guest's, serves one request and is never used again. To prefork one takes the kernel's
slow steps (a network namespace, entering a cgroup) off every start. It is forked from the supervisor itself, or from a
zygote; either way the supervisor is its parent. One is always ready, as long as there is time to make it.
"""

from __future__ import annotations

import _socket
import os
import select
import time

from casemate.supervisor import cgroups, init, kernel, namespaces, wire
from casemate.supervisor.namespaces import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

    from casemate.supervisor.maker import Maker
    from casemate.supervisor.native_init import NativeInit
    from casemate.supervisor.scratch import Scratch

_DELAY_AFTER_FIRST = 0.05  # seconds after the first was handed out: who runs one program and goes pays for no other
_NEVER = float("inf")
_TRIAL_MEMORY = 256 << 20  # bytes; more than a ready cell uses


class PendingCell:
    """Everything of a ready cell but its process: who it is, our ends of its channel and status, its cgroup, ``ends``.

    ``ends``: its own end of the channel, of the status pipe, and descriptors by which it enters its cgroups.
    """

    def __init__(self, identity: Identity, groups: cgroups.Cgroups, name: str) -> None:
        self.identity = identity
        self.channel, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
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
        """Close what the process has been given."""
        kernel.close_all(self.ends)
        self.ends = []

    def discard(self) -> None:
        """There will be no process."""
        self.close_ends()
        self.channel.close()
        if self.status_fd >= 0:
            os.close(self.status_fd)
        if self.group:
            self.group.remove()


class ReadyCell:
    """A process that waits to become a cell. ``status_fd`` reports its failure, or later its program's end."""

    has_own_network = True
    is_alone = True  # the end of its processes is the end of no other cell's
    processes: int | None = None  # how many it may have, where the kernel does not count
    terminals_of: int | None = None  # the user whose pseudo-terminals are its own, where the kernel does not bound them

    def __init__(self, pid: int, pending: PendingCell) -> None:
        self.pid = pid
        self.identity = pending.identity
        self.channel = pending.channel
        self.status_fd = pending.status_fd
        self.group = pending.group
        self._namespaces: list[int] = []
        pending.close_ends()

    def send_request(self, request: dict[str, Any], scratch: Scratch, fds: dict[str, int]) -> None:
        """Give it its request and all descriptors. Raises ``OSError`` when it is dead."""
        message = init.request_message(request, [target for _, target in scratch.mounts], list(fds))
        all_fds = [*(fd for fd, _ in scratch.mounts), *fds.values()]
        kernel.send_fds(self.channel, message, all_fds, _socket.MSG_NOSIGNAL)

    def socket_memory(self, pids: list[int]) -> int:  # noqa: ARG002
        """Bytes in the buffers of the sockets that ``pids`` have, where there is no network of its own. Raises
        ``OSError``."""
        return 0

    def wait_prepared(self) -> None:
        """Wait until it is in its cgroups and has prepared itself. Raises ``OSError`` when it could not."""
        if self._namespaces:
            return
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        if not poll.poll(wire.ANSWER_WITHIN):
            raise OSError(110, "a cell did not prepare itself in time")
        data, fds = kernel.receive_fds(self.channel, 1, 2)
        if data != init.PREPARED:
            raise OSError(1, "a cell could not be prepared")
        self._namespaces = fds

    def take_namespaces(self) -> list[int]:
        """Its mount and network namespaces, as descriptors, when it has prepared itself. Works once.

        They keep the namespaces alive and are the caller's to close. Raises ``OSError``.
        """
        self.wait_prepared()
        fds, self._namespaces = self._namespaces, []
        return fds

    def close(self) -> None:
        """Let go of its channel, and of its namespaces where nobody took them."""
        self.channel.close()
        kernel.close_all(self._namespaces)
        self._namespaces = []

    def bounds(self, rlimits: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Which of ``rlimits`` bind its program, and what besides."""
        return rlimits

    def open_pidfd(self) -> int:
        """A descriptor that can be read when its process has ended. Raises ``OSError``."""
        return os.pidfd_open(self.pid)

    def end(self) -> None:
        """End it, and with its pid 1 the kernel ends everything in it (pid_namespaces(7))."""
        os.kill(self.pid, 9)  # our own child, not yet reaped, so the number is still its

    def discard(self) -> None:
        """End it: it is not going to be used."""
        self.end()
        os.waitpid(self.pid, 0)
        self.close()
        os.close(self.status_fd)
        if self.group:
            self.group.remove()


def prefork(
    pending: PendingCell, program: bytes, prepared: bytes, native: NativeInit | None, *, is_owner: bool
) -> ReadyCell:
    """Fork a ready cell from this process and let it prepare itself: by `init.run`, or the same in machine code.

    ``is_owner``: the cell's own user owns its user namespace, instead of us. Raises ``OSError``.
    """
    do, flags = (kernel.bare_clone if native else kernel.clone), kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID
    try:
        pid = kernel.clone_owned(pending.identity.uid, do, flags) if is_owner else do(flags)
    except OSError:
        pending.discard()
        raise
    if pid == 0:
        if native:
            native.run(pending.ends, program, prepared)
        channel, status, *cgroup_fds = pending.ends
        init.run(channel, status, cgroup_fds, program, prepared)
    return adopt_process(pid, pending)


def adopt_process(pid: int, pending: PendingCell) -> ReadyCell:
    """Our child ``pid`` is the process of ``pending``: map its ids and let it prepare itself.

    Raises ``OSError`` when that fails; then nothing of either is left.
    """
    cell = ReadyCell(pid, pending)
    try:
        uid_map, gid_map = f"{init.UID} {cell.identity.uid} 1", f"{init.GID} {cell.identity.gid} 1"
        namespaces.write_maps(pid, uid_map, gid_map, deny_setgroups=True)
        cell.channel.send(init.MAPPED)
    except BaseException:
        cell.discard()
        raise
    return cell


class CellPool:
    """Holds one ready cell, and makes what each cell starts from: its first process, its cgroup, its cores."""

    def __init__(self, maker: Maker, groups: cgroups.Cgroups) -> None:
        self._maker = maker
        self._groups = groups
        self._programs: dict[bool, bytes] = {}
        self._ready: ReadyCell | None = None
        self._has_handed_out = False
        self._prefork_at = 0.0  # not before; 0 when there is nothing to wait for
        self._cpus = sorted(os.sched_getaffinity(0))
        self._next_cpu = 0
        self._count = 0

    def try_cgroups(self) -> dict[str, str | None]:
        """Make the first one and try on it whether cgroups can be used; without them from now on where not."""
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
        """Have one ready, but no sooner than a moment after the first was handed out.

        A failure here shows when one is needed.
        """
        if self._ready is None and time.monotonic() >= self._prefork_at:
            self._prefork_at = 0.0
            try:
                self._ready = self._prefork()
            except OSError:
                self._ready = None

    def next_time(self) -> float:
        """When `prepare` wants to be called again although nothing happens (monotonic seconds)."""
        return self._prefork_at or _NEVER

    def take(self, identity: Identity | None = None) -> ReadyCell:
        """The one that is ready if it lives, else a new one, as where ``identity`` says who it must be.

        Raises ``OSError``.
        """
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
        """Whether ``pid`` is that of the one that is ready."""
        return self._ready is not None and self._ready.pid == pid

    def discard(self) -> None:
        """End the one that is ready."""
        if self._ready:
            self._ready.discard()
        self._ready = None

    def new_pending(self, identity: Identity | None = None) -> PendingCell:
        """Everything of another but its process, which a zygote will make. Raises ``OSError``."""
        self._count += 1
        return PendingCell(identity or self._maker.identities.take(), self._groups, str(self._count))

    def seccomp_program(self) -> bytes:
        """The filter of system calls for cells of this machine."""
        counted = self._groups.memory is not None
        if counted not in self._programs:
            self._programs[counted] = self._maker.seccomp_program(memory_is_counted=counted)
        return self._programs[counted]

    def choose_cpus(self, cpus: float) -> list[int]:
        """Without a cpu cgroup: the cores to pin a cell to, one after the other. Best effort; a cell can undo it."""
        wanted = max(1, -int(-cpus // 1))
        if self._groups.cpu or wanted >= len(self._cpus):
            return []
        first = self._next_cpu
        self._next_cpu = (first + wanted) % len(self._cpus)
        return [self._cpus[(first + n) % len(self._cpus)] for n in range(wanted)]

    def _prefork(self, identity: Identity | None = None) -> ReadyCell:
        made: ReadyCell = self._maker.prefork(self.new_pending(identity), self.seccomp_program())
        return made
