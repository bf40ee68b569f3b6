"""Sends messages with descriptors, even while cells of this user have very many in flight."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import resource
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from casemate.files.beneath import write_all

if TYPE_CHECKING:
    from casemate.walls.wall import Stream

PIPE = 1 << 16  # bytes; a pipe's usual capacity
ALL = 1 << 62  # bytes; no limit


def carry(carrier: socket.socket, data: bytes, rights: list[Any]) -> None:
    """Send one message. Descriptors that cells of this user have in flight count against our soft limit on open files
    (unix(7), ETOOMANYREFS), so on that error the limit is raised during the second try."""
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
    """A queue of messages for a socket that may be full. Only one thread may use it at a time."""

    def __init__(self, carrier: socket.socket) -> None:
        self._carrier = carrier
        self._messages: deque[tuple[bytes, list[int]]] = deque()

    @property
    def waits(self) -> bool:
        """Whether messages are queued."""
        return bool(self._messages)

    def add(self, data: bytes, fds: list[int]) -> None:
        """Queue a message with ``fds``, which are closed once it is sent."""
        self._messages.append((data, fds))

    def flush(self) -> Iterator[tuple[bytes, OSError]]:
        """Send as much as possible without blocking. Yields messages that the kernel refuses because cells of this user
        have too many descriptors in flight."""
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
                # else the supervisor is gone; the reader notices
            self._messages.popleft()
            close_all(fds)

    def send_now(self, data: bytes) -> bool:
        """Send a message unless it would have to wait. Returns whether it was sent."""
        try:
            if not self._messages:
                carry(self._carrier, data, [])
                return True
        except OSError:
            pass  # the socket is full, or the supervisor is gone, which the reader notices
        return False

    def clear(self) -> None:
        """Drop all messages, because the supervisor is gone."""
        for _, fds in self._messages:
            close_all(fds)
        self._messages.clear()


def what_is_in(fd: int, most: int = ALL) -> bytes | None:
    """Read up to ``most`` bytes from a non-blocking pipe. Returns None if it is empty, and b"" if it has no writer."""
    try:
        return os.read(fd, min(most, fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)))
    except BlockingIOError:
        return None


def close_all(fds: Iterable[int]) -> None:
    """Close these descriptors."""
    for fd in fds:
        os.close(fd)


@contextlib.contextmanager
def closed_on_error(*groups: Iterable[int]) -> Iterator[None]:
    """Close all descriptors in ``groups`` if the block fails, including those added in it."""
    try:
        yield
    except BaseException:
        for fds in groups:
            close_all(fds)
        raise


_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def memory_file(data: bytes) -> int:
    """Make an anonymous file with ``data``, positioned at its start."""
    fd = os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with closed_on_error([fd]):
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    return fd


def seal(fd: int, data: bytes = b"") -> None:
    """Write ``data`` into an anonymous file and make it immutable. A program that can reopen it (its standard input,
    through /proc) would otherwise have memory that no limit counts. See F_ADD_SEALS in fcntl(2)."""
    write_all(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def open_requests(fds: dict[str, int]) -> int:
    """Open a pipe for requests to a session's interpreter. Puts its end into ``fds`` and returns ours.

    Raises ``OSError``, and then closes all of ``fds``.
    """
    with closed_on_error(fds.values()):
        fds["order"], requests = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(requests, False)  # an interpreter that does not read must not block us
    return requests


def open_ways_in(fds: dict[str, int]) -> tuple[int, int]:
    """Open the standard input and the order pipe of a waiting cell. Puts its ends into ``fds`` and returns ours.

    Raises ``OSError``, and then closes all of ``fds``.
    """
    ours: list[int] = []
    with closed_on_error(fds.values(), ours):
        ours.append(os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fds["stdin"] = os.open(f"/proc/self/fd/{ours[0]}", os.O_RDONLY | os.O_CLOEXEC)
        fds["order"], order = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(order, False)  # a cell that does not read must not block the supervisor
    return ours[0], order


def open_pipes(fds: dict[str, int], *others: int) -> dict[int, Stream | None]:
    """Open pipes for a cell's output, except for streams already in ``fds``. Puts the cell's ends into ``fds`` and
    returns ours, by descriptor.

    Raises ``OSError``, and then closes all of ``fds`` and the ``others``.
    """
    pipes: dict[int, Stream | None] = {}
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    with closed_on_error(fds.values(), pipes, others):
        for name in (*streams, "control"):
            if name in fds:
                continue
            read, fds[name] = os.pipe()
            pipes[read] = next((stream for stream in streams if stream == name), None)
            os.set_blocking(read, False)
    return pipes
