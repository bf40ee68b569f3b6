"""System calls that a seccomp filter sends to the supervisor to answer.

Sources: seccomp_unotify(2), and the kernel's ``linux/seccomp.h``.
"""

from __future__ import annotations

import errno
import fcntl
import select
import struct

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; number, architecture, instruction, arguments
_ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
_CONTINUE = 1


class WaitingCall:
    """A system call that waits for an answer."""

    def __init__(self, listener: int, notification: bytearray) -> None:
        self.listener = listener
        self.id, self.pid, _, self.number, _, _, *arguments = _NOTIFICATION.unpack(notification)
        self.arguments = tuple(arguments)

    def check(self) -> None:
        """Raise ``OSError`` if the caller is gone, so that its pid may now belong to another process."""
        fcntl.ioctl(self.listener, _IS_VALID, struct.pack("=Q", self.id))

    def is_waiting(self) -> bool:
        """Whether the caller still waits for an answer."""
        try:
            self.check()
        except OSError:
            return False
        return True

    def has_gone_on(self) -> bool:
        """Whether the caller has left the wait after it was answered. Until it wakes up, a second answer gives
        EINPROGRESS, and from then on ENOENT."""
        try:
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(self.id, 0, -errno.EPERM, 0))
        except OSError as error:
            return error.errno != errno.EINPROGRESS
        return True

    def send(self, number: int, *, go_on: bool = False) -> None:
        """Answer with an errno, or 0 for success. ``go_on`` lets the kernel make the call instead."""
        answer = _ANSWER.pack(self.id, 0, 0 if go_on else -number, _CONTINUE if go_on else 0)
        try:
            fcntl.ioctl(self.listener, _SEND, answer)
        except OSError as error:
            if error.errno != errno.ENOENT:  # the caller has ended
                raise


def receive(listener: int) -> bytearray | None:
    """The next call on ``listener``, or None. Raises ``OSError`` if no process is left to call."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    events = poll.poll(0)
    if not events:
        return None  # a read would block
    if not events[0][1] & select.POLLIN:
        raise OSError(errno.ESRCH, "no process is left to call")
    notification = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, notification, True)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None  # the caller has ended
        raise
    return notification
