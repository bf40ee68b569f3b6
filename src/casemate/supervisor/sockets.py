"""The memory that the buffers of a cell's sockets take: where no memory cgroup counts it, the kernel is asked for it.

Sources: sock_diag(7), netlink(7), and ``linux/unix_diag.h``, ``linux/inet_diag.h``, ``linux/sock_diag.h`` and
``net/core/sock.c`` (/proc/net/protocols) of the kernel.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import struct

from casemate.supervisor import kernel, namespaces, seccomp, watch

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Container

FEW = 64  # sockets, whose buffers are not worth the question: some 200 KiB each at most
_SOCK_DIAG, _DUMP = 4, 0x301  # the protocol of netlink; NLM_F_REQUEST | NLM_F_DUMP
_BY_FAMILY, _ERROR, _DONE = 20, 2, 3
_HEAD = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_MEMORY = struct.Struct("=6I")  # SK_MEMINFO_*
_ALL_STATES = 0xFFFF_FFFF
_UNIX = struct.pack("=BBHIIIII", _socket.AF_UNIX, 0, 0, _ALL_STATES, 0, 0x30, 0, 0)  # show queues and memory
_INET = [
    struct.pack("=BBBBI48x", family, protocol, 1 << 6, 0, _ALL_STATES)  # INET_DIAG_SKMEMINFO
    for family in (_socket.AF_INET, _socket.AF_INET6)
    for protocol in (_socket.IPPROTO_TCP, _socket.IPPROTO_UDP)
]
_QUEUED, _UNIX_MEMORY, _INET_MEMORY = 4, 5, 7  # attributes
_ANSWER = 1 << 16
MOST_NETLINK = 16  # of a network, besides those that its tasks are just making: some hundred KiB each
_WITHIN = 1.0  # seconds for one answer, which takes the kernel microseconds


class CellSockets:
    """Asks for one cell, by a socket in its network namespace, -1 for ours. Raises ``OSError``."""

    def __init__(self, network: int) -> None:
        fds = _open() if network < 0 else namespaces.open_inside(network, kernel.CLONE_NEWNET, _open, "sock_diag")
        self._socket = _socket.socket(fileno=fds[0])
        self._socket.settimeout(_WITHIN)

    def memory(self, inodes: Container[int] | None = None) -> int:
        """Bytes in the buffers of all sockets, or of those with these numbers. Of what a unix socket has sent, the
        receiver counts it where the sender has gone; of datagrams then the first in each queue alone, more the kernel
        does not tell."""
        unix = self._dump(_UNIX, 16, 4, inodes)
        sent, received = sum(one.get(_UNIX_MEMORY, 0) for one in unix), sum(one.get(_QUEUED, 0) for one in unix)
        return max(sent, received) + sum(
            one.get(_INET_MEMORY, 0) for request in _INET for one in self._dump(request, 72, 68, inodes)
        )

    def close(self) -> None:
        """Let go of its socket."""
        self._socket.close()

    def _dump(self, request: bytes, fixed: int, place: int, inodes: Container[int] | None) -> list[dict[int, int]]:
        """The sizes of each socket by attribute; a message begins with ``fixed`` bytes of other things, with the
        socket's number at ``place``."""
        self._socket.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        found: list[dict[int, int]] = []
        while True:
            data, at = self._socket.recv(_ANSWER), 0
            while at < len(data):
                length, kind, *_ = _HEAD.unpack_from(data, at)
                if kind in (_DONE, _ERROR):
                    return found  # a family that this kernel has not is one that no cell uses
                begin = at + _HEAD.size
                if inodes is None or int.from_bytes(data[begin + place : begin + place + 4], "little") in inodes:
                    found.append(_sizes(data[begin + fixed : at + length]))
                at += length + 3 & ~3


def _sizes(data: bytes) -> dict[int, int]:
    sizes, at = {}, 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        value = data[at + _ATTRIBUTE.size : at + length]
        if kind in (_UNIX_MEMORY, _INET_MEMORY) and len(value) >= _MEMORY.size:
            received, _, sent, _, kept, queued = _MEMORY.unpack_from(value)
            sizes[kind] = received + max(sent, queued) + kept
        elif kind == _QUEUED:
            sizes[kind] = int.from_bytes(value[:4], "little")
        at += max(length, _ATTRIBUTE.size) + 3 & ~3
    return sizes


def _open() -> list[int]:
    return [_socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _SOCK_DIAG).detach()]


class NetlinkCalls:
    """Sockets of rtnetlink, by which programs list the interfaces of the cell's own network: a few at a time.

    What waits in them the kernel counts for nobody, in no cgroup either. So a filter of the supervisor's, which all
    that it starts inherits, asks it about each. It is asked by registers, which the caller cannot change meanwhile, and
    has the kernel make the socket.
    """

    def __init__(self) -> None:
        """Where the kernel cannot ask (before 5.19, gVisor, in a filter that asks), there are no such sockets."""
        self.listener = -1
        try:
            self.listener = kernel.install_notifying_filter(seccomp.netlink_program(kernel.machine))
        except OSError:
            kernel.install_filter(seccomp.netlink_program(kernel.machine, refused=True))

    def answer(self) -> None:
        """Answer the next call, for whom it may concern: nothing that a cell does is an error of ours."""
        with contextlib.suppress(OSError):
            if notification := kernel.receive_call(self.listener):
                call = kernel.WaitingCall(self.listener, notification)
                is_free = _count_netlink(call.pid) < MOST_NETLINK
                call.send(0 if is_free else errno.ENOBUFS, go_on=is_free)


def _count_netlink(pid: int) -> int:
    """How many sockets of netlink the network of ``pid`` has, bound or not; too many where the kernel does not tell."""
    try:
        rows = [line.split() for line in watch.read(f"/proc/{pid}/net/protocols").splitlines()]
        return next(int(row[2]) for row in rows if row[:1] == [b"NETLINK"])
    except (OSError, StopIteration):
        return MOST_NETLINK


def are_many(sockstat: bytes) -> bool:
    """Whether a cell has so many sockets, by its /proc/net/sockstat, that it is worth asking."""
    words = sockstat.split(maxsplit=3)
    return len(words) > 2 and words[2].isdigit() and int(words[2]) > FEW
