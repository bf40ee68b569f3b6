"""The head of the record, kept beside it: a record that was cut, made anew or deleted does not have it any more.

It is one line: how many rows, the last one's hash, and up to which row every execution is known to have its outcome.
Whoever can write both files can change both: note a head elsewhere to notice that, too (``verify(head=...)``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable

from casemate.audit.chain import EMPTY, Head

_LINE = "{count:020d} {last} {settled:020d}\n"
_MOST = 200  # bytes
_AGAIN = 0.01  # seconds: somebody is alone for as long as it takes to look through some rows


class NotedHead:
    """Of the record at ``path``. ``has``: whether the record has such a head; where it has not, what is noted stays as
    it is, so that verifying finds it. ``settled``: up to this row every execution has its outcome. Raises
    ``OSError``."""

    def __init__(self, path: str, has: Callable[[Head], bool]) -> None:
        self._fd = os.open(f"{path}.head", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._last, self.settled = _read(self._fd)
        self._is_kept = has(self._last)

    def is_alone(self) -> bool:
        """Whether nobody else has the record open; others who open it then wait until :meth:`share`."""
        return _lock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def share(self, within: float) -> None:
        """Others may have the record open from now on. Raises ``OSError`` where somebody is alone for longer than so
        many seconds."""
        end = time.monotonic() + within
        while not _lock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB):
            if time.monotonic() > end:
                raise TimeoutError(errno.ETIMEDOUT, "another program has it for itself alone")
            time.sleep(_AGAIN)

    def note(self, head: Head) -> None:
        """The record ends with this now. One that comes late, after another's, is of the record, too."""
        self._last = head
        if self._is_kept:
            line = _LINE.format(count=head.count, last=head.last, settled=self.settled)
            with contextlib.suppress(OSError):  # the disk is full; then an older one stays
                os.pwrite(self._fd, line.encode(), 0)

    def settle(self, head: Head) -> None:
        """The record ends with this, and every execution in it has its outcome."""
        self.settled = head.count
        self.note(head)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


def read_noted(path: str) -> Head:
    """The head that is noted beside the record at ``path``; that of an empty one where none is. Raises ``OSError``."""
    try:
        fd = os.open(f"{path}.head", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return EMPTY
    try:
        return _read(fd)[0]
    finally:
        os.close(fd)


def _read(fd: int) -> tuple[Head, int]:
    words = os.pread(fd, _MOST, 0).decode("ascii", "replace").split()
    if len(words) != 3 or not (words[0].isdigit() and words[2].isdigit()):
        return EMPTY, 0
    return Head(int(words[0]), words[1]), int(words[2])


def _lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    return True
