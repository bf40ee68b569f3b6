"""Starts the supervisor's process. Cheap to import, so that it can start before anything else."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket

from casemate.walls import isolated_python

_NAME = "casemate-supervisor"
_LOG_TAIL = 4096  # bytes of the supervisor's stderr that go into a Fault
_STOP_GRACE = 2.0  # seconds that the supervisor has to end before it is killed

_early: list[Supervisor] = []  # started before the first link


class Supervisor:
    """A new supervisor's process, our end of its socket, and the file with its stderr."""

    def __init__(self, module: str = "main", *arguments: str) -> None:
        """``module``: the supervisor's entry, called with ``arguments``."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = os.memfd_create("casemate-supervisor-log", os.MFD_CLOEXEC)
        self.pid = isolated_python.spawn(module, _NAME, theirs.fileno(), self.log, arguments)
        theirs.close()

    def last_words(self) -> str:
        size = os.fstat(self.log).st_size
        return os.pread(self.log, _LOG_TAIL, max(0, size - _LOG_TAIL)).decode("utf-8", "replace").strip()

    def reap(self) -> None:
        """Wait for it to end, else kill it. Only the first call does: the process id may be reused."""
        pid, self.pid = self.pid, 0
        if not pid:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if not select.select([pidfd], [], [], _STOP_GRACE)[0]:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                select.select([pidfd], [], [], _STOP_GRACE)
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass  # the application reaped it
        finally:
            os.close(pidfd)


def start_early() -> None:
    """Start a supervisor for the first link of this process. It ends with the process, used or not."""
    with contextlib.suppress(OSError):  # the link tries again and reports the error
        _early.append(Supervisor())


def take() -> Supervisor:
    """Return the supervisor that was started early, or a new one."""
    return _early.pop() if _early else Supervisor()
