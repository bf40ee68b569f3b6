"""Sending messages with descriptors, also when cells of this user hold very many in flight."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import resource
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casemate.walls.wall import Stream

PIPE = 1 << 16  # bytes; a pipe's usual capacity
ALL = 1 << 62  # bytes; more than there are


def carry(carrier: socket.socket, data: bytes, rights: list[Any]) -> None:
    """Send one message. Descriptors that cells of this user have in flight count against our own soft limit on open
    files (unix(7), ETOOMANYREFS), which is then raised for the moment of sending."""
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    try:
        carrier.sendmsg([data], rights, flags)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            carrier.sendmsg([data], rights, flags)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Outbox:
    """Messages on their way into a socket that may be full. Its owner lets one thread use it at a time."""

    def __init__(self, carrier: socket.socket) -> None:
        self._carrier = carrier
        self._messages: deque[tuple[bytes, list[int]]] = deque()

    @property
    def waits(self) -> bool:
        """Whether there is something to send."""
        return bool(self._messages)

    def add(self, data: bytes, fds: list[int]) -> None:
        """One more message, with ``fds``, which are closed once they are on their way."""
        self._messages.append((data, fds))

    def flush(self) -> Iterator[tuple[bytes, OSError]]:
        """Send as far as it goes without blocking; gives messages that the kernel does not carry, because cells of
        this user hold too many descriptors in flight."""
        while self._messages:
            data, fds = self._messages[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                carry(self._carrier, data, rights)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    yield data, error
                # else the supervisor is gone, which whoever reads notices
            self._messages.popleft()
            close_all(fds)

    def send_now(self, data: bytes) -> bool:
        """Send a message unless it would have to wait; whether it is on its way."""
        try:
            if not self._messages:
                carry(self._carrier, data, [])
                return True
        except OSError:
            pass  # it is full, or the supervisor gone, which whoever reads notices
        return False

    def clear(self) -> None:
        """Nobody is there to send to."""
        for _, fds in self._messages:
            close_all(fds)
        self._messages.clear()


def what_is_in(fd: int, most: int = ALL) -> bytes | None:
    """What is in a pipe that does not block: ``most`` bytes; None for nothing yet, and b"" where it has no writer."""
    try:
        return os.read(fd, min(most, fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)))
    except BlockingIOError:
        return None


def close_all(fds: Iterable[int]) -> None:
    """Close every one of them."""
    for fd in fds:
        os.close(fd)


_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def memory_file(data: bytes) -> int:
    """An anonymous file that holds ``data``, positioned at its start."""
    fd = os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


def seal(fd: int, data: bytes = b"") -> None:
    """Write ``data`` into an anonymous file, and then let nobody change it: whoever can open it again (a program
    its standard input, through /proc) would have memory that no limit counts. See F_ADD_SEALS in fcntl(2)."""
    write_all(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def open_requests(fds: dict[str, int]) -> int:
    """A fresh pipe for requests to a session's interpreter: its end is put into ``fds``, ours is given.

    Raises ``OSError``, and then closes all of ``fds``.
    """
    try:
        fds["order"], requests = os.pipe2(os.O_CLOEXEC)
    except OSError:
        close_all([*fds.values()])
        raise
    os.set_blocking(requests, False)  # an interpreter that does not read must not hold us up
    return requests


def open_ways_in(fds: dict[str, int]) -> tuple[int, int]:
    """The standard input and the order of a cell that waits: its ends are put into ``fds``, ours are given.

    Raises ``OSError``, and then closes all of ``fds``.
    """
    ours: list[int] = []
    try:
        ours.append(os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fds["stdin"] = os.open(f"/proc/self/fd/{ours[0]}", os.O_RDONLY | os.O_CLOEXEC)
        fds["order"], order = os.pipe2(os.O_CLOEXEC)
    except OSError:
        close_all([*fds.values(), *ours])
        raise
    os.set_blocking(order, False)  # a cell that does not read must not hold the supervisor up
    return ours[0], order


def open_pipes(fds: dict[str, int], *others: int) -> dict[int, Stream | None]:
    """Fresh pipes for what a cell says: their ends for it are put into ``fds``, unless it has some of another's there;
    ours are given, by descriptor.

    Raises ``OSError``, and then closes all of ``fds`` and the ``others``.
    """
    pipes: dict[int, Stream | None] = {}
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    try:
        for name in (*streams, "control"):
            if name in fds:
                continue
            read, fds[name] = os.pipe()
            os.set_blocking(read, False)
            pipes[read] = next((stream for stream in streams if stream == name), None)
    except OSError:
        close_all([*fds.values(), *pipes, *others])
        raise
    return pipes
