"""A cell's first process, made before it is needed: its namespaces stand, and it waits for its request.

A spare has run nothing of a guest's, serves one request and is never used again. Making one
ahead takes the kernel's slow steps (a network namespace, entering a cgroup) off every start.
"""

from __future__ import annotations

import _socket
import array
import os

from casemate.supervisor import broker, cell, cgroups, enter, kernel, wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any


class Spare:
    """A process that waits to become a cell. ``status_fd`` tells of its failure, or later of its program's end."""

    def __init__(self, pid: int, channel: _socket.socket, status_fd: int, group: cgroups.Group | None) -> None:
        self.pid = pid
        self.channel = channel
        self.status_fd = status_fd
        self.group = group

    def hand_over(self, request: dict[str, Any], mounts: list[tuple[int, str]], fds: dict[str, int]) -> None:
        """Give it its request and all descriptors. Raises ``OSError`` when it is dead."""
        message = {**request, "targets": [target for _, target in mounts], "fds": list(fds)}
        numbers = array.array("i", [*(fd for fd, _ in mounts), *fds.values()])
        self.channel.sendmsg(
            [wire.encode(message)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)], _socket.MSG_NOSIGNAL
        )


def make(identity: broker.Identity, groups: cgroups.Cgroups, name: str, program: bytes) -> Spare:
    """Fork a spare and let it prepare itself. Raises ``OSError``."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    status_read, status_write = os.pipe()
    group = groups.create(name)
    doors = group.doors() if group else []
    pid = kernel.clone(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    if pid == 0:
        ours.close()
        cell.live(theirs, status_write, doors, program)
    theirs.close()
    for fd in (status_write, *doors):
        os.close(fd)
    made = Spare(pid, ours, status_read, group)
    try:
        uid_map, gid_map = f"{cell.UID} {identity.uid} 1", f"{cell.GID} {identity.gid} 1"
        enter.write_maps(pid, uid_map, gid_map, deny_setgroups=True)
        ours.send(cell.MAPPED)
    except BaseException:
        discard(made)
        raise
    return made


def has_entered(spare: Spare) -> bool:
    """Wait until a spare is in its cgroups and has prepared itself; False when it could not."""
    return spare.channel.recv(1) == cell.PREPARED


def discard(spare: Spare) -> None:
    """End a spare that is not going to be used."""
    os.kill(spare.pid, 9)
    os.waitpid(spare.pid, 0)
    spare.channel.close()
    os.close(spare.status_fd)
    if spare.group:
        spare.group.remove()
