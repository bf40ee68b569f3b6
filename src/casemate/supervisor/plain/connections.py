"""What a cell connects to: the host, which takes the accepted ends, and its own loopback.

A connection to the host ends at a listener of ours, whose peer is compared with the copy; the accepted end goes to the
host, which knows it by address and port. So no other program of the machine can connect there.

A cell's loopback is an address of the machine's that no other cell has. At each port that the cell binds there a guard
of ours listens, too, and drops what comes (IP_MINTTL). The kernel prefers the cell's socket: IPv4 before IPv6, and in
one family what the guard's program says. Where the cell's has closed, even during a connect, the guard has the port: a
server of the machine that listens at all addresses never has it.

Sources: ip(7), tcp(7), socket(7), epoll(7), proc_pid_fdinfo(5), and ``net/ipv4/inet_hashtables.c`` of the kernel.
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

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Way = tuple[Callable[..., int], tuple[int, ...]]  # what connects, to be called again if EAGAIN; its descriptors

BEGUN = (0, errno.EINPROGRESS)
_INET6, _SOCKET, _REUSEPORT = _socket.AF_INET6, _socket.SOL_SOCKET, _socket.SO_REUSEPORT
_STREAM = _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
_IP_MINTTL, _IPV6_V6ONLY, _ATTACH_REUSEPORT_CBPF, _TCP_INFO, _ESTABLISHED = 21, 26, 51, 11, 1
BACKLOG = 128
_MOST_PORTS, _MOST_BOUND, _TRIES = 256, 512, 100  # each look goes through all that are bound
_SECOND = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 1))  # BPF_RET 1: of a group the guard is the first
_NOWHERE = ctypes.create_string_buffer(16)  # struct sockaddr: AF_UNSPEC
_PROGRAM = struct.pack("@HP", 1, ctypes.addressof(_SECOND))  # struct sock_fprog


class Loopback:
    """The one of a cell. Its methods raise ``OSError``."""

    def __init__(self) -> None:
        self._guards: dict[int, _socket.socket] = {}  # by port
        self._bound: dict[int, list[tuple[str, int, int]]] = {}  # there, inode number, family and SO_REUSEPORT of each
        self._kept: set[int] = set()  # ports to which a connection may be on its way until the cell ends
        self._host = ""

    def bind(self, copy: _socket.socket, port: int) -> None:
        """Have ``copy`` listen at a port, 0 for any."""
        if not self._host:
            self._claim_address()
        self._look()
        family, shares = copy.family, copy.getsockopt(_SOCKET, _REUSEPORT)
        if any(one[1] == family and not (one[2] and shares) for one in self._bound.get(port, ())):
            raise OSError(errno.EADDRINUSE, "it listens there already")
        if sum(map(len, self._bound.values())) >= _MOST_BOUND:
            raise OSError(errno.ENOBUFS, "too many sockets that listen")
        port = port if port in self._guards else self._guard(port)
        copy.setsockopt(_SOCKET, _REUSEPORT, 1)
        self._epoll.register(copy.fileno(), 0)  # which forgets it when the cell's last descriptor of it is closed
        copy.bind(self._at(copy, port))
        copy.listen(BACKLOG)
        self._bound[port].append((f"ino:{os.fstat(copy.fileno()).st_ino:x}", family, shares))

    def find(self, port: int) -> tuple[str, int]:
        """The address and port of what the cell itself listens at."""
        if port in self._bound:
            self._look()
        if not self._bound.get(port):
            raise OSError(errno.ECONNREFUSED, "no port of the cell's")
        return self._host, port

    def note(self, copy: _socket.socket, port: int) -> None:
        """Guard a port until the cell ends if ``copy`` is still to be connected."""
        if copy.getsockopt(_socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _ESTABLISHED:
            self._kept.add(port)

    def close(self) -> None:
        """Let go of everything: the cell has ended."""
        for one in (*self._guards.values(), *((self._epoll, self._claim) if self._host else ())):
            one.close()

    def _claim_address(self) -> None:
        """Who has an address holds a name that says so, which is one of this network as the address is."""
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
        """Forget what the cell has closed, and with the last socket of a port its guard."""
        with open(f"/proc/self/fdinfo/{self._epoll.fileno()}", encoding="ascii") as file:
            words = set(file.read().split())
        for port, bound in list(self._bound.items()):
            self._bound[port] = [one for one in bound if one[0] in words]
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
        one.setsockopt(_socket.IPPROTO_IPV6, _IPV6_V6ONLY, 0)  # else it has no address of IPv4
        return f"::ffff:{self._host}", port


class HostConnections:
    """What of the host a cell can reach: by kind, address and port, one end of a pair of sockets over which accepted
    connections go to the host."""

    def __init__(self) -> None:
        self.ends: dict[tuple[object, object, object], _socket.socket] = {}
        self.loopback = Loopback()

    def open(self, sockets: Sequence[Sequence[object]]) -> list[int]:
        """The host's ends, for kind, address and port of each. Raises ``OSError``, also for what would connect to the
        cell: it has no network of its own, and another server of this machine might answer in its place."""
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
        """Give the host a connection; False where it takes none."""
        try:
            kernel.send_fds(end, b"c", [fd], _socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def names_end(self) -> _socket.socket | None:
        """Where the host answers names."""
        return next((end for (kind, _, _), end in self.ends.items() if kind == "udp"), None)

    def way(self, copy: _socket.socket, end: _socket.socket) -> Way:
        """Connect ``copy`` to a listener of ours and hand the accepted end over ``end``."""
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
        """Connect ``copy`` to what the cell itself listens at. Raises ``OSError``."""
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
        """Let go of everything."""
        for end in self.ends.values():
            end.close()
        self.ends.clear()
        self.loopback.close()


def give_up(copy: _socket.socket) -> None:
    """Stop a connect that is still under way: the kernel would try on, and reach the next server at that port."""
    kernel.raw_call(numbers(kernel.machine)["connect"], copy.fileno(), ctypes.addressof(_NOWHERE), len(_NOWHERE))


def _begin(copy: _socket.socket, address: tuple[str, int], *, wait: bool) -> int:
    """connect(2), and its errno. Without ``wait`` it does not, whatever flags the cell sets meanwhile: MSG_DONTWAIT is
    of this call alone. EAGAIN where the machine has that switched off (tcp(7), tcp_fastopen)."""
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
