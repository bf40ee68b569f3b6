"""pid 1 of a cell: starts the program, reaps what is orphaned, and ends the cell with the program.

It runs under everything the program runs under and cannot be traced by it. The supervisor
trusts nothing it says: its report only refines what wait(2) shows from outside.
"""

from __future__ import annotations

import fcntl
import os
import resource
import struct

from casemate.supervisor import kernel, wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Mark, wait status of the program, its peak resident memory in bytes, microseconds of cpu of it and its children.
IN_PLACE = b"w"  # written where a cell was made ready: everything stands, and the program's process is there
REPORT = struct.Struct("<cIQQ")
_IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ: a program expects their default actions
_SIGNALS = 65
_MAX_PAYLOAD = 64 << 20


def look_after(pid: int, status: int, not_ours: tuple[int, ...], *, waits: bool) -> NoReturn:
    """Wait for the end of the program ``pid``, report it on ``status`` and exit as it did.

    ``not_ours``: the program's descriptors, of which we must hold none; ``waits``: whether its program is to come.
    """
    if waits:
        os.write(status, IN_PLACE)
    for fd in not_ours:
        close(fd)
    for number in range(1, _SIGNALS):
        kernel.default_signal(number)  # what a preloaded module handles must not run in here
    code = _reap_until(pid)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = int((used.ru_utime + used.ru_stime) * 1e6)
    os.write(status, REPORT.pack(b"x", code, used.ru_maxrss * 1024, cpu))
    os._exit(os.WEXITSTATUS(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code))


def close(fd: int) -> None:
    """Close a descriptor that this cell may not have."""
    try:
        os.close(fd)
    except OSError:
        return


def start_program(payload: int, control: int | None) -> int:
    """Start the command in ``payload``, a descriptor that only this cell holds; its pid.

    posix_spawn(3) shares our memory until the exec, which is faster than a fork.
    """
    command = _read_command(payload)
    if control is None:
        fcntl.fcntl(3, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    os.chdir(command["cwd"])
    return os.posix_spawn(
        command["argv"][0], command["argv"], command["env"], setsid=True, setsigdef=_IGNORED_BY_PYTHON
    )


def _reap_until(pid: int) -> int:
    """Reap every child; the wait status of ``pid`` when it ends."""
    while True:
        ended, code = os.wait()
        if ended == pid:
            return code


def _read_command(payload: int) -> dict[str, Any]:
    data = os.pread(payload, _MAX_PAYLOAD, 0)
    command: dict[str, Any] = wire.decode(data)
    return command
