"""A cell's connections without a network namespace: to the host, which gets the accepted ends, and to its own loopback.

A connection to the host ends at a temporary listener here. Its peer is compared with our copy of the socket, so no
other program can connect. The accepted end goes to the host, which knows it by address and port.

A cell's loopback is an address in 127.0.0.0/8 that no other cell has. At each port that the cell binds there, a guard
socket of ours listens too and drops what comes (IP_MINTTL). The kernel prefers the cell's socket: IPv4 before IPv6, and
within a family by the guard's BPF program. Once the cell's socket closes, even during a connect, the guard has the
port, so a server that listens on all addresses of the machine never gets the connection.

Sources: ip(7), tcp(7), socket(7), epoll(7), proc_pid_fdinfo(5), and the kernel's ``net/ipv4/inet_hashtables.c``.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import errno
import os
import select
import struct

from casemate.supervisor import kernel
from casemate.supervisor.syscall_numbers import numbers

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Way = tuple[Callable[..., int], tuple[int, ...]]  # connects, to be called again on EAGAIN; its descriptors

BEGUN = (0, errno.EINPROGRESS)
_INET6, _SOCKET, _REUSEPORT = _socket.AF_INET6, _socket.SOL_SOCKET, _socket.SO_REUSEPORT
_STREAM = _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
_IP_MINTTL, _IPV6_V6ONLY, _ATTACH_REUSEPORT_CBPF, _TCP_INFO, _ESTABLISHED = 21, 26, 51, 11, 1
BACKLOG = 128
_MOST_PORTS, _MOST_BOUND, _TRIES = 256, 512, 100  # each look visits all bound sockets
_MOST_LISTENING = 65_536  # remembered listening sockets of a cell
_SECOND = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 1))  # BPF_RET 1: not the guard, which is 0
_NOWHERE = ctypes.create_string_buffer(16)  # struct sockaddr: AF_UNSPEC
_PROGRAM = struct.pack("@HP", 1, ctypes.addressof(_SECOND))  # struct sock_fprog


class Loopback:
    """A cell's own loopback. Methods raise ``OSError``."""

    def __init__(self) -> None:
        self._guards: dict[int, _socket.socket] = {}  # by port
        self._bound: dict[int, list[tuple[int, int, int]]] = {}  # by port: inode, family and SO_REUSEPORT of each
        self._listening: dict[int, None] = {}  # inode numbers of listening sockets, Unix ones too
        self._kept: set[int] = set()  # ports with a possibly pending connection, until the cell ends
        self._host = ""

    def bind(self, copy: _socket.socket, port: int) -> None:
        """Bind ``copy`` to ``port``, or to any for 0."""
        if copy.getsockname()[1]:
            raise OSError(errno.EINVAL, "it is bound")
        if not self._host:
            self._claim_address()
        self._look()
        family, shares = copy.family, copy.getsockopt(_SOCKET, _REUSEPORT)
        if any(one[1] == family and not (one[2] and shares) for one in self._bound.get(port, ())):
            raise OSError(errno.EADDRINUSE, "a socket of the cell has that port")
        if sum(map(len, self._bound.values())) >= _MOST_BOUND:
            raise OSError(errno.ENOBUFS, "too many bound sockets")
        port = port if port in self._guards else self._guard(port)
        copy.setsockopt(_SOCKET, _REUSEPORT, 1)
        copy.bind(self._at(copy, port))
        self._epoll.register(copy.fileno(), 0)  # epoll drops it when its last descriptor closes
        self._bound[port].append((os.fstat(copy.fileno()).st_ino, family, shares))

    def listen(self, copy: _socket.socket, backlog: int) -> None:
        """Make ``copy`` listen at its port, or at any port if it is not bound."""
        if not copy.getsockname()[1]:
            self.bind(copy, 0)
        copy.listen(backlog)

    def note_listening(self, inode: int) -> None:
        """Record that the socket with that inode number listens."""
        self._listening[inode] = None
        if len(self._listening) > _MOST_LISTENING:
            del self._listening[next(iter(self._listening))]

    def listens(self, inode: int) -> bool:
        """Whether the socket with that inode number listens."""
        return inode in self._listening

    def find(self, port: int) -> tuple[str, int]:
        """The real address and port where the cell itself listens."""
        if port in self._bound:
            self._look()
        if not any(map(self.listens, (one[0] for one in self._bound.get(port, ())))):
            raise OSError(errno.ECONNREFUSED, "no port of the cell's")
        return self._host, port

    def note(self, copy: _socket.socket, port: int) -> None:
        """Keep guarding ``port`` until the cell ends if ``copy`` is not connected yet."""
        if copy.getsockopt(_socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _ESTABLISHED:
            self._kept.add(port)

    def close(self) -> None:
        for one in (*self._guards.values(), *((self._epoll, self._claim) if self._host else ())):
            one.close()

    def _claim_address(self) -> None:
        """Claim an unused address. The claim is an abstract Unix name, which has the network namespace's scope too."""
        self._epoll, self._claim = select.epoll(), _socket.socket(_socket.AF_UNIX)
        for _ in range(_TRIES):
            random = os.urandom(3)
            host = f"127.{64 + random[0] % 64}.{random[1]}.{random[2]}"
            with contextlib.suppress(OSError):
                self._claim.bind(f"\0casemate-{host}")
                self._host = host
                return
        raise OSError(errno.EADDRNOTAVAIL, "no address is free")

    def _look(self) -> None:
        """Drop the sockets that the cell has closed, and the guards of ports without sockets."""
        with open(f"/proc/self/fdinfo/{self._epoll.fileno()}", encoding="ascii") as file:
            words = set(file.read().split())
        for port, bound in list(self._bound.items()):
            self._bound[port] = [one for one in bound if f"ino:{one[0]:x}" in words]
            if not self._bound[port] and port not in self._kept:
                self._guards.pop(port).close()
                del self._bound[port]

    def _guard(self, port: int) -> int:
        if len(self._guards) >= _MOST_PORTS:
            raise OSError(errno.ENOBUFS, "too many ports")
        family = _INET6 if os.path.exists("/proc/net/if_inet6") else _socket.AF_INET
        guard = _socket.socket(family, _STREAM)
        guard.setsockopt(_SOCKET, _REUSEPORT, 1)
        guard.setsockopt(_socket.IPPROTO_IP, _IP_MINTTL, 255)
        guard.bind(self._at(guard, port))
        guard.listen(1)
        guard.setsockopt(_SOCKET, _ATTACH_REUSEPORT_CBPF, _PROGRAM)
        port = guard.getsockname()[1]
        self._guards[port], self._bound[port] = guard, []
        return port

    def _at(self, one: _socket.socket, port: int) -> tuple[str, int]:
        if one.family != _INET6:
            return self._host, port
        one.setsockopt(_socket.IPPROTO_IPV6, _IPV6_V6ONLY, 0)  # needed for IPv4 addresses
        return f"::ffff:{self._host}", port


class HostConnections:
    """The host's ends that a cell can reach. Accepted connections go to the host over their socket pairs."""

    def __init__(self) -> None:
        self.ends: dict[tuple[object, object, object], _socket.socket] = {}
        self.loopback = Loopback()

    def open(self, sockets: Sequence[Sequence[object]]) -> list[int]:
        """The host's ends, for kind, address and port of each. Raises ``OSError``, also for ``client``: without a
        network namespace, another server of this machine might answer instead of the cell."""
        if any(kind == "client" for kind, _, _ in sockets):
            raise OSError(errno.EOPNOTSUPP, "no network of its own")
        theirs = []
        for kind, address, port in sockets:
            ours, end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            self.ends[kind, address, port] = ours
            theirs.append(end.detach())
        return theirs

    def hand_over(self, end: _socket.socket, fd: int) -> bool:
        """Send the host a connection. False if that fails."""
        try:
            kernel.send_fds(end, b"c", [fd], _socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def names_end(self) -> _socket.socket | None:
        """The end at which the host answers name queries."""
        return next((end for (kind, _, _), end in self.ends.items() if kind == "udp"), None)

    def way(self, copy: _socket.socket, end: _socket.socket) -> Way:
        """Prepare to connect ``copy`` to one of our listeners and to send the accepted end over ``end``."""
        listener = _socket.socket(_socket.AF_INET, _STREAM | _socket.SOCK_NONBLOCK)
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)

        def connect(*, wait: bool) -> int:
            number = _begin(copy, listener.getsockname(), wait=wait)
            while number in BEGUN and _is_ready(listener, select.POLLIN, wait=wait):
                fd, peer = listener._accept()  # type: ignore[attr-defined]
                accepted = _socket.socket(fileno=fd)
                if peer == (copy.getsockname()[0].removeprefix("::ffff:"), copy.getsockname()[1]):
                    if not self.hand_over(end, accepted.fileno()):
                        return errno.ECONNREFUSED
                    return 0 if os.get_blocking(copy.fileno()) else number
            return errno.EAGAIN if number in BEGUN else number

        return connect, (end.fileno(), listener.fileno())

    def own_way(self, copy: _socket.socket, port: int) -> Way:
        """Prepare to connect ``copy`` to a port where the cell itself listens. Raises ``OSError``."""
        place = self.loopback.find(port)

        def connect(*, wait: bool) -> int:
            number = _begin(copy, place, wait=wait)
            self.loopback.note(copy, port)
            if number not in BEGUN or not os.get_blocking(copy.fileno()):
                return number
            is_over = _is_ready(copy, select.POLLOUT, wait=wait)
            return copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR) if is_over else errno.EAGAIN

        return connect, ()

    def close(self) -> None:
        for end in self.ends.values():
            end.close()
        self.ends.clear()
        self.loopback.close()


def give_up(copy: _socket.socket) -> None:
    """Abort a pending connect: the kernel would retry, and could reach another server at that port."""
    kernel.raw_call(numbers(kernel.machine)["connect"], copy.fileno(), ctypes.addressof(_NOWHERE), len(_NOWHERE))


def _begin(copy: _socket.socket, address: tuple[str, int], *, wait: bool) -> int:
    """connect(2), as an errno. Without ``wait`` it never blocks, whatever flags the cell sets on the socket, because
    MSG_DONTWAIT is per call. EAGAIN if the machine has TCP Fast Open disabled (tcp(7), tcp_fastopen)."""
    if copy.family == _INET6:
        address = (f"::ffff:{address[0]}", address[1])
    try:
        copy.sendto(b"", _socket.MSG_FASTOPEN | _socket.MSG_DONTWAIT, address)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return copy.connect_ex(address) if wait else errno.EAGAIN
        return errno.EINPROGRESS if error.errno == errno.EALREADY else error.errno or errno.EACCES
    return 0


def _is_ready(one: _socket.socket, event: int, *, wait: bool) -> bool:
    poll = select.poll()
    poll.register(one.fileno(), event)
    return bool(poll.poll(None if wait else 0))
