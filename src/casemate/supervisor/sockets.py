"""The memory in socket buffers of a cell, measured through the kernel where no memory cgroup counts it.

Sources: sock_diag(7), netlink(7), and the kernel's ``linux/unix_diag.h``, ``linux/inet_diag.h``, ``linux/sock_diag.h``
and ``net/core/sock.c`` (/proc/net/protocols).
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import struct

from casemate.supervisor import kernel, namespaces, notifications, seccomp, watch

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Container

FEW = 64  # sockets too few to measure: their buffers are about 200 KiB each at most
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
_MOST_NETLINK, _MOST_NETLINK_BYTES = 16, 64 << 20  # sockets per network, and bytes that may wait in all of them
_LARGEST = 0x7FFFFFFF  # of a buffer; the kernel lowers it to what the machine allows
_WITHIN = 1.0  # seconds for one answer; the kernel needs microseconds


class CellSockets:
    """Queries one network namespace (-1: our own) through a socket in it. Raises ``OSError``."""

    def __init__(self, network: int) -> None:
        fds = _open() if network < 0 else namespaces.open_inside(network, kernel.CLONE_NEWNET, _open, "sock_diag")
        self._socket = _socket.socket(fileno=fds[0])
        self._socket.settimeout(_WITHIN)

    def memory(self, inodes: Container[int] | None = None) -> int:
        """Bytes in the buffers of all sockets, or of those in ``inodes``. If the sender of a unix socket is gone, its
        data counts for the receiver; of datagrams the kernel then reports only the first in each queue."""
        unix = self._dump(_UNIX, 16, 4, inodes)
        sent, received = sum(one.get(_UNIX_MEMORY, 0) for one in unix), sum(one.get(_QUEUED, 0) for one in unix)
        return max(sent, received) + sum(
            one.get(_INET_MEMORY, 0) for request in _INET for one in self._dump(request, 72, 68, inodes)
        )

    def close(self) -> None:
        self._socket.close()

    def _dump(self, request: bytes, fixed: int, place: int, inodes: Container[int] | None) -> list[dict[int, int]]:
        """The sizes of each socket by attribute. A message starts with ``fixed`` bytes, with the inode at ``place``."""
        self._socket.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        found: list[dict[int, int]] = []
        while True:
            data, at = self._socket.recv(_ANSWER), 0
            while at < len(data):
                length, kind, *_ = _HEAD.unpack_from(data, at)
                if kind in (_DONE, _ERROR):
                    return found  # a family that the kernel lacks is used by no cell
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
    """Limits how many rtnetlink sockets a cell has. Programs use them to list the interfaces of the cell's network.

    No cgroup counts the data that waits in such a socket, and a filter cannot count sockets, so a filter that every
    child inherits has the supervisor decide on each. The arguments are in registers, which the caller cannot change
    while it waits. Below the limit, the kernel goes on and makes the socket."""

    def __init__(self) -> None:
        """All are refused if the kernel cannot notify us (before 5.19, gVisor, below another notifying filter)."""
        self.listener, self._most = -1, 0
        self._allowed: list[tuple[int, notifications.WaitingCall]] = []  # network and call, until the caller continues
        try:
            self.listener = kernel.install_notifying_filter(seccomp.netlink_program(kernel.machine))
        except OSError:
            kernel.install_filter(seccomp.netlink_program(kernel.machine, refused=True))
        else:
            self._most = min(_MOST_NETLINK, _MOST_NETLINK_BYTES // _most_waiting())

    def answer(self) -> None:
        """Answer the next call. A cell cannot cause an error here."""
        with contextlib.suppress(OSError):
            if notification := notifications.receive(self.listener):
                self._answer(notifications.WaitingCall(self.listener, notification))

    def _answer(self, call: notifications.WaitingCall) -> None:
        # Before the count: a socket made in between counts twice, but is never missed.
        self._allowed = [(network, one) for network, one in self._allowed if not one.has_gone_on()]
        network, count = _count_netlink(call.pid)
        is_free = count + sum(one == network for one, _ in self._allowed) < self._most
        if is_free:
            self._allowed.append((network, call))
        call.send(0 if is_free else errno.ENOBUFS, go_on=is_free)


def _count_netlink(pid: int) -> tuple[int, int]:
    """The network of ``pid`` as a number, and its count of netlink sockets; at the limit if the count is unknown."""
    path = f"/proc/{pid}/net/protocols"  # a different file in each network
    try:
        rows = [line.split() for line in watch.read(path).splitlines()]
        return os.stat(path).st_ino, next(int(row[2]) for row in rows if row[:1] == [b"NETLINK"])
    except (OSError, StopIteration):
        return 0, _MOST_NETLINK


def _most_waiting() -> int:
    """The most bytes that can wait in one netlink socket here: a full receive buffer and one more message."""
    one, total = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM), 0
    for buffer in (_socket.SO_RCVBUF, _socket.SO_SNDBUF):
        default = one.getsockopt(_socket.SOL_SOCKET, buffer)
        one.setsockopt(_socket.SOL_SOCKET, buffer, _LARGEST)
        total += max(default, one.getsockopt(_socket.SOL_SOCKET, buffer))
    one.close()
    return total


def are_many(sockstat: bytes) -> bool:
    """Whether /proc/net/sockstat shows enough sockets to be worth measuring."""
    words = sockstat.split(maxsplit=3)
    return len(words) > 2 and words[2].isdigit() and int(words[2]) > FEW
