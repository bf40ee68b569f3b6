"""Keeps one server's processes together. A program of its own: standard library only, imported by nobody.

    python -I -S reaper.py DESCRIPTOR COMMAND ARGUMENT...

It starts the command in a session of its own, with the standard streams that it was given itself, and ends everything
that came of it when the command ends, or when DESCRIPTOR, a pipe that only casemate's process holds, comes to its end:
so nothing of a server outlives casemate, also when that was killed. Whatever a server starts becomes the reaper's
child when its own parent is gone (PR_SET_CHILD_SUBREAPER, prctl(2)), so none can leave by daemonising. Its exit code is
the command's, 128 + N for death by signal N, or 127 where the command cannot be started.
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
_LEAVES_SECONDS = 2.0  # to end by itself when its standard input ended, as MCP asks of servers
_TERM_SECONDS = 2.0  # to end after SIGTERM
_KILL_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_NOT_STARTED = 127
# Ignored here, for it ends with its pipe, or by Python; the command begins with the defaults.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def main(lifeline: int, command: list[str]) -> int:
    """Start ``command``, wait for its end or for casemate's, and give its exit code when nothing of it is left."""
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
    """A descriptor that can be read whenever a child has ended."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def _reap_others(command: int) -> None:
    """Wait for what has ended among the children that were left to us."""
    for pid, parent in _parents(living=False):
        if parent == os.getpid() and pid != command:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _let_go_of_streams() -> None:
    """So that they end when the server's do."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _ends(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def _end_all() -> None:
    """Kill what is left until nothing is; children that have ended are waited for, but the command itself."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := _descendants()) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    """Whatever lives beneath this process, the nearest first."""
    parents = dict(_parents())
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _parents(*, living: bool = True) -> Iterator[tuple[int, int]]:
    """Each process that lives, or that has ended, and its parent (/proc/PID/stat, after the last ')'; proc(5))."""
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
