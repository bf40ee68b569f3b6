"""The shared part of attacks in Python: it reports each attempt by name, with its findings in a safe form.

It runs in a cell and, as the control, bare on the host, and needs only the standard library. Of a file it reports
only canaries (`canary-` and 32 hex digits) and a digest, so that no real secret gets into a log.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import signal
from collections.abc import Callable

CANARY = re.compile(rb"canary-[0-9a-f]{32}")
END = "end of attack"
libc = ctypes.CDLL(None, use_errno=True)


def attempt(name: str, action: Callable[[], object]) -> bool:
    """Do it and tell how it went; whether it went."""
    try:
        told = action()
    except Exception as error:  # noqa: BLE001 - a refusal is what is hoped for
        print(f"tried {name}: {type(error).__name__} {getattr(error, 'errno', '')}", flush=True)
        return False
    print(f"tried {name}: done {found(told) if isinstance(told, bytes) else told}", flush=True)
    return True


def found(data: bytes) -> str:
    """What is in ``data``, without saying it."""
    canaries = " ".join(sorted({one.decode() for one in CANARY.findall(data)}))
    return f"sha256:{hashlib.sha256(data).hexdigest()} {canaries}"


def read(path: str, most: int = 1 << 20) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """A system call by number, with whole words as arguments."""
    words = [ctypes.c_long(one) if isinstance(one, int) else ctypes.c_char_p(one) for one in arguments]
    libc.syscall.restype = ctypes.c_long
    return checked(int(libc.syscall(ctypes.c_long(number), *words)))


def checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def finish() -> None:
    """Tell that every attempt was made; with HOLD, stay for the host to look, at most a minute."""
    print(END, flush=True)
    if os.environ.get("HOLD"):
        signal.alarm(60)
        signal.pause()
