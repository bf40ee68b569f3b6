"""pid 1 of a cell: starts the program, reaps what is orphaned, and ends the cell with the program.

It runs under everything the program runs under and cannot be traced by it. The supervisor
trusts nothing it says: its report only refines what wait(2) shows from outside.
"""

from __future__ import annotations

import fcntl
import os
import resource
import struct
from typing import Any, NoReturn

from casemate.supervisor import kernel, wire

REPORT = struct.Struct("<cIQ")  # mark, wait status of the program, its peak resident memory in bytes
_IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ: a program expects their default actions
_MAX_PAYLOAD = 64 << 20


def run(status: int, payload: int, control: int | None) -> NoReturn:
    """Fork the program, wait for its end, report it on ``status`` and exit as it did."""
    pid = os.fork()
    if pid == 0:
        _become_program(status, payload, control)
    for fd in (0, 1, 2, 3, payload):
        os.close(fd)
    code = _reap_until(pid)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    os.write(status, REPORT.pack(b"x", code, peak))
    os._exit(os.WEXITSTATUS(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code))


def _reap_until(pid: int) -> int:
    """Reap every child; the wait status of ``pid`` when it ends."""
    while True:
        ended, code = os.wait()
        if ended == pid:
            return code


def _become_program(status: int, payload: int, control: int | None) -> NoReturn:
    """Read the command from ``payload``, a descriptor nobody else reads, and become it."""
    try:
        command = _read_command(payload)
        os.setsid()
        for number in _IGNORED_BY_PYTHON:
            kernel.default_signal(number)
        if control is None:
            fcntl.fcntl(3, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        os.chdir(command["cwd"])
        os.execve(command["argv"][0], command["argv"], command["env"])
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        os.write(status, wire.encode({"failed": "exec", "errno": number, "detail": str(error)[:500]}))
    os._exit(125)


def _read_command(payload: int) -> dict[str, Any]:
    data = os.pread(payload, _MAX_PAYLOAD, 0)
    command: dict[str, Any] = wire.decode(data)
    return command
