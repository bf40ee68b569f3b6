"""Bytes in anonymous files, on their way to the supervisor or to a program's standard input."""

from __future__ import annotations

import fcntl
import os

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def memory_file(data: bytes) -> int:
    """An anonymous file that holds ``data``, positioned at its start."""
    fd = os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


def seal(fd: int, data: bytes = b"") -> None:
    """Write ``data`` into an anonymous file, and then let nobody change it: whoever can open it again (a program
    its standard input, through /proc) would have memory that no limit counts. See F_ADD_SEALS in fcntl(2)."""
    _write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
