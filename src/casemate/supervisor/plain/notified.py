"""A system call of a cell that the supervisor answers, with the memory it points to.

Sources: seccomp_unotify(2), and the kernel's ``linux/seccomp.h``, ``linux/un.h`` and ``linux/in6.h``.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import struct

from casemate.supervisor import notifications

_ADD_FD = 0x40182103
_ADDITION = struct.Struct("=QIIII")  # id, flags, source, number, flags of the new one
_ADD_AND_SEND = 2

_UNIX, _INET, _INET6 = _socket.AF_UNIX, _socket.AF_INET, _socket.AF_INET6
_MOST_ADDRESS = 128  # bytes: struct sockaddr_storage
_MOST_PATH = 4096
_MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4-mapped IPv6 address


class NotifiedCall(notifications.WaitingCall):
    """A call whose arguments are read from the caller's memory. The cell may change it meanwhile: read each once."""

    def add(self, fd: int, cloexec: int) -> None:
        """Answer with a copy of ``fd`` for the caller. Raises ``OSError``."""
        addition = _ADDITION.pack(self.id, _ADD_AND_SEND, fd, 0, os.O_CLOEXEC if cloexec else 0)
        fcntl.ioctl(self.listener, _ADD_FD, addition)

    def read(self, address: int, size: int) -> bytes:
        """Read the caller's memory. Raises ``OSError``."""
        fd = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, address)
        finally:
            os.close(fd)

    def is_own(self, number: int) -> bool:
        """Whether ``number`` is the caller's process or thread, whose ids cannot be reused while it waits."""
        with open(f"/proc/{self.pid}/status", "rb") as file:
            own = int(file.read().split(b"\nTgid:\t", 1)[1].split(b"\n", 1)[0])  # a name has no line break
        self.check()
        return number & 0xFFFFFFFF in (own, self.pid)

    def path(self, address: int) -> bytes:
        """The NUL-terminated path at ``address``. Raises ``OSError``."""
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
        """The ``struct sockaddr`` of the second and third arguments. Raises ``OSError``."""
        _, place, length, *_ = self.arguments
        if not 2 <= length & 0xFFFFFFFF <= _MOST_ADDRESS:
            raise OSError(errno.EINVAL, "an address of that length")
        data = self.read(place, length & 0xFFFFFFFF)
        self.check()
        return data

    def socket_inode(self, fd: int) -> int:
        """The inode number of the caller's socket ``fd``. Raises ``OSError``."""
        try:
            kind, _, number = os.readlink(f"/proc/{self.pid}/fd/{fd & 0xFFFFFFFF}").partition(":")
        except FileNotFoundError:
            raise OSError(errno.EBADF, "no such descriptor") from None
        if kind != "socket":
            raise OSError(errno.ENOTSOCK, "no socket")
        return int(number[1:-1])


def to_int(number: int) -> int:
    """An argument as a C int."""
    low = number & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def inet(address: bytes) -> tuple[str, int] | None:
    """The IPv4 address and port in a ``struct sockaddr``, or None. IPv6's ``::`` and ``::1`` count as 127.0.0.1."""
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
    """The path in a ``struct sockaddr``. Raises ``OSError`` if it has no path."""
    if int.from_bytes(address[:2], "little") != _UNIX:
        raise OSError(errno.EAFNOSUPPORT, "no path")
    path = address[2:].partition(b"\0")[0]
    if not path:
        raise PermissionError(errno.EACCES, "an abstract name")
    return path
