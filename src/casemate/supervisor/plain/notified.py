"""One call of a cell's that the filter has notified: what it asks, and its answer.

Sources: seccomp_unotify(2), and ``linux/seccomp.h``, ``linux/un.h`` and ``linux/in6.h`` of the kernel.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import struct

_RECEIVE, _SEND, _IS_VALID, _ADD_FD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; number, architecture, instruction, arguments
_ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
_ADDITION = struct.Struct("=QIIII")  # id, flags, source, number, flags of the new one
_CONTINUE, _ADD_AND_SEND = 1, 2

_UNIX, _INET, _INET6 = _socket.AF_UNIX, _socket.AF_INET, _socket.AF_INET6
_MOST_ADDRESS = 128  # bytes: struct sockaddr_storage
_MOST_PATH = 4096
_MAPPED = bytes(10) + b"\xff\xff"  # what an IPv4 address follows in an IPv6 one


class NotifiedCall:
    """One call that waits for its answer."""

    def __init__(self, listener: int, notification: bytearray) -> None:
        self._listener = listener
        self._id, self.pid, _, self.number, _, _, *arguments = _NOTIFICATION.unpack(notification)
        self.arguments = tuple(arguments)

    def check(self) -> None:
        """Whoever called is still there, so that what was read of it was its. Raises ``OSError``."""
        fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", self._id))

    def send(self, number: int, *, go_on: bool = False) -> None:
        """Answer with an errno, 0 for success; with ``go_on`` the kernel does it."""
        answer = _ANSWER.pack(self._id, 0, 0 if go_on else -number, _CONTINUE if go_on else 0)
        try:
            fcntl.ioctl(self._listener, _SEND, answer)
        except OSError as error:
            if error.errno != errno.ENOENT:  # it has ended
                raise

    def add(self, fd: int, cloexec: int) -> None:
        """Answer with a copy of ``fd``. Raises ``OSError``."""
        addition = _ADDITION.pack(self._id, _ADD_AND_SEND, fd, 0, os.O_CLOEXEC if cloexec else 0)
        fcntl.ioctl(self._listener, _ADD_FD, addition)

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the caller's memory. Raises ``OSError``."""
        fd = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, address)
        finally:
            os.close(fd)

    def is_own(self, number: int) -> bool:
        """Whether a process or thread is the caller: as long as it waits, no other gets that number."""
        with open(f"/proc/{self.pid}/status", "rb") as file:
            own = int(file.read().split(b"\nTgid:\t", 1)[1].split(b"\n", 1)[0])  # no name has a line's end
        self.check()
        return number & 0xFFFFFFFF in (own, self.pid)

    def path(self, address: int) -> bytes:
        """A text that ends with NUL. Raises ``OSError``."""
        page = 4096 - address % 4096
        data = self.read(address, page)
        if b"\0" not in data:
            data += self.read(address + page, _MOST_PATH)
        text, end, _ = data.partition(b"\0")
        if not end or len(text) >= _MOST_PATH:
            raise OSError(errno.ENAMETOOLONG, "too long")
        if not text:
            raise FileNotFoundError(errno.ENOENT, "an empty path")
        return text

    def address(self) -> bytes:
        """Of a socket, what the second and third arguments say. Raises ``OSError``."""
        _, place, length, *_ = self.arguments
        if not 2 <= length & 0xFFFFFFFF <= _MOST_ADDRESS:
            raise OSError(errno.EINVAL, "an address of that length")
        data = self.read(place, length & 0xFFFFFFFF)
        self.check()
        return data

    def socket_inode(self, fd: int) -> int:
        """The number of the socket ``fd`` of the caller. Raises ``OSError``."""
        try:
            kind, _, number = os.readlink(f"/proc/{self.pid}/fd/{fd & 0xFFFFFFFF}").partition(":")
        except FileNotFoundError:
            raise OSError(errno.EBADF, "no such descriptor") from None
        if kind != "socket":
            raise OSError(errno.ENOTSOCK, "no socket")
        return int(number[1:-1])


def receive(listener: int) -> NotifiedCall | None:
    """The next call; None where none waits, or whoever called has ended. Raises ``OSError`` when there will be none."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    events = poll.poll(0)
    if not events:
        return None  # to receive it would wait
    if not events[0][1] & select.POLLIN:
        raise OSError(errno.ESRCH, "nobody is left to call")
    notification = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, notification, True)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    return NotifiedCall(listener, notification)


def to_int(number: int) -> int:
    """An argument as the C int that the kernel takes it for."""
    low = number & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def inet(address: bytes) -> tuple[str, int] | None:
    """IPv4 address and port in a ``struct sockaddr``; the loopback and the unspecified address of IPv6 are those of
    IPv4. None for what is neither."""
    family, port = int.from_bytes(address[:2], "little"), int.from_bytes(address[2:4], "big")
    if family == _INET and len(address) >= 8:
        return _socket.inet_ntoa(address[4:8]), port
    if family == _INET6 and len(address) >= 24:
        there = address[8:24]
        if there[:15] == bytes(15) and there[15] in (0, 1):
            return "127.0.0.1", port
        return (_socket.inet_ntoa(there[12:]) if there.startswith(_MAPPED) else "::", port)
    return None


def unix_path(address: bytes) -> bytes:
    """The path in a ``struct sockaddr``. Raises ``OSError`` for what has none."""
    if int.from_bytes(address[:2], "little") != _UNIX:
        raise OSError(errno.EAFNOSUPPORT, "no path")
    path = address[2:].partition(b"\0")[0]
    if not path:
        raise PermissionError(errno.EACCES, "an abstract name")
    return path
