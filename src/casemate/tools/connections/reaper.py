"""Keeps one server's processes together. This is a separate program that uses only the standard library.

    python -I -S reaper.py DESCRIPTOR COMMAND ARGUMENT...

It starts the command in a new session with its own standard streams. It ends all processes of the command when the
command ends, or when DESCRIPTOR, a pipe that only casemate holds, is closed. So no process outlives casemate, even if
casemate is killed. A process whose parent has ended becomes the reaper's child (PR_SET_CHILD_SUBREAPER, prctl(2)), so
daemons cannot escape. The exit code is the command's, 128 + N for death by signal N, or 127 if it cannot be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36
_LEAVES_SECONDS = 2.0  # to exit after the end of its standard input, as MCP requires
_TERM_SECONDS = 2.0  # to end after SIGTERM
_KILL_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_NOT_STARTED = 127
# The reaper ignores these and ends with its pipe. The command starts with the defaults.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def main(lifeline: int, command: list[str]) -> int:
    """Start ``command``, wait until it or casemate ends, end all its processes and return its exit code."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(lifeline, False)
    woken = _wakes_at_each_end()
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsid=True, setsigdef=_IGNORED)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return _NOT_STARTED
    _let_go_of_streams()
    ended = os.pidfd_open(child)
    while not (ready := select.select([lifeline, ended, woken], [], [])[0]) or ready == [woken]:
        os.read(woken, 4096)
        _reap_others(child)
    if ended not in ready and not _ends(ended, _LEAVES_SECONDS):
        _signal([child, *_descendants()], signal.SIGTERM)
        _ends(ended, _TERM_SECONDS)
    _end_all()
    _, status = os.waitpid(child, 0)
    _end_all()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _wakes_at_each_end() -> int:
    """A descriptor that becomes readable when a child ends."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def _reap_others(command: int) -> None:
    for pid, parent in _parents(living=False):
        if parent == os.getpid() and pid != command:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _let_go_of_streams() -> None:
    """Close the standard streams, so that they end when the server's do."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _ends(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def _end_all() -> None:
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := _descendants()) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    parents = dict(_parents())
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _parents(*, living: bool = True) -> Iterator[tuple[int, int]]:
    """Each living process, or each zombie, and its parent (/proc/PID/stat, after the last ')'; proc(5))."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if living == (state not in (b"Z", b"X")):
                    yield int(name), int(parent)


if __name__ == "__main__":
    for ignored in _IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
