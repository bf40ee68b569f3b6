"""A cell's first process, made before it is needed: its namespaces stand, and it waits for its request.

A spare has run nothing of a guest's, serves one request and is never used again. Making one
ahead takes the kernel's slow steps (a network namespace, entering a cgroup) off every start.
It is forked from the supervisor itself, or from a zygote; either way the supervisor is its parent.
"""

from __future__ import annotations

import _socket
import array
import os
import select

from casemate.supervisor import cell, cgroups, enter, kernel, wire
from casemate.supervisor.identity import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any


class Unborn:
    """Everything of a spare but its process: our ends of its channel and status, its cgroup, and ``ends`` to give it.

    ``ends``: its own end of the channel, of the status pipe, and the doors of its cgroups.
    """

    def __init__(self, groups: cgroups.Cgroups, name: str) -> None:
        self.channel, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.ends = [theirs.detach()]
        self.status_fd, self.group = -1, None
        try:
            self.status_fd, status = os.pipe()
            self.ends.append(status)
            self.group = groups.create(name)
            self.ends += self.group.doors() if self.group else []
        except OSError:
            self.discard()
            raise

    def let_go(self) -> None:
        """Close what the process has been given."""
        for fd in self.ends:
            os.close(fd)
        self.ends = []

    def discard(self) -> None:
        """There will be no process."""
        self.let_go()
        self.channel.close()
        if self.status_fd >= 0:
            os.close(self.status_fd)
        if self.group:
            self.group.remove()


class Spare:
    """A process that waits to become a cell. ``status_fd`` tells of its failure, or later of its program's end."""

    def __init__(self, pid: int, unborn: Unborn) -> None:
        self.pid = pid
        self.channel = unborn.channel
        self.status_fd = unborn.status_fd
        self.group = unborn.group
        self._namespaces: list[int] = []
        unborn.let_go()

    def hand_over(self, request: dict[str, Any], mounts: list[tuple[int, str]], fds: dict[str, int]) -> None:
        """Give it its request and all descriptors. Raises ``OSError`` when it is dead."""
        message = {**request, "targets": [target for _, target in mounts], "fds": list(fds)}
        numbers = array.array("i", [*(fd for fd, _ in mounts), *fds.values()])
        self.channel.sendmsg(
            [wire.encode(message)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)], _socket.MSG_NOSIGNAL
        )

    def wait_prepared(self) -> None:
        """Wait until it is in its cgroups and has prepared itself. Raises ``OSError`` when it could not."""
        if self._namespaces:
            return
        fds = array.array("i")
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        if not poll.poll(wire.ANSWER_WITHIN):
            raise OSError(110, "a cell did not prepare itself in time")
        data, ancillary, _, _ = self.channel.recvmsg(1, _socket.CMSG_SPACE(2 * fds.itemsize))
        for _, _, payload in ancillary:
            fds.frombytes(payload)
        if data != cell.PREPARED:
            raise OSError(1, "a cell could not be prepared")
        self._namespaces = list(fds)

    def namespaces(self) -> list[int]:
        """Its mount and network namespaces, as descriptors, when it has prepared itself. Once.

        They keep the namespaces alive and are the caller's to close. Raises ``OSError``.
        """
        self.wait_prepared()
        fds, self._namespaces = self._namespaces, []
        return fds

    def close(self) -> None:
        """Let go of its channel, and of its namespaces where nobody took them."""
        self.channel.close()
        for fd in self._namespaces:
            os.close(fd)
        self._namespaces = []

    def discard(self) -> None:
        """End it: it is not going to be used."""
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.close()
        os.close(self.status_fd)
        if self.group:
            self.group.remove()


def make(identity: Identity, unborn: Unborn, program: bytes) -> Spare:
    """Fork a spare from this process and let it prepare itself. Raises ``OSError``."""
    try:
        pid = kernel.clone(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    except OSError:
        unborn.discard()
        raise
    if pid == 0:
        channel, status, *doors = unborn.ends
        cell.live(channel, status, doors, program)
    return adopt(pid, unborn, identity)


def adopt(pid: int, unborn: Unborn, identity: Identity) -> Spare:
    """Our child ``pid`` is the process of ``unborn``: map its ids and let it prepare itself.

    Raises ``OSError`` when that fails; then nothing of either is left.
    """
    made = Spare(pid, unborn)
    try:
        uid_map, gid_map = f"{cell.UID} {identity.uid} 1", f"{cell.GID} {identity.gid} 1"
        enter.write_maps(pid, uid_map, gid_map, deny_setgroups=True)
        made.channel.send(cell.MAPPED)
    except BaseException:
        made.discard()
        raise
    return made
