"""Run as a program: make this machine refuse what a cell needs, then try to run one. Prints what casemate said.

Arguments: the kind of refusal, the path of a record. Everything is done in namespaces of this process's own.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER = 0x00020000, 0x10000000
BIND, REC, PRIVATE = 4096, 16384, 1 << 18
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
REAL_UID, REAL_GID = os.geteuid(), os.getegid()


def check(result: int) -> None:
    """Raise what a C function set."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def filter_unshare() -> None:
    """A seccomp filter, as a container's: unshare(2) is EPERM, all else is allowed."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, UNSHARE), (0x06, 0, 0, 0x00050000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("HBBI", *one) for one in code)
    buffer = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)))
    check(libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    check(libc.prctl(SET_SECCOMP, FILTER, header))


def enter(uid: int, flags: int = 0) -> None:
    """A user namespace in which this user is ``uid``."""
    check(libc.unshare(NEWUSER | flags))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {REAL_UID} 1")
    Path("/proc/self/gid_map").write_text(f"{uid} {REAL_GID} 1")


def forbid_more() -> None:
    """In a namespace of our own, no further user namespace can be made."""
    enter(1000)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def mask_proc() -> None:
    """Cover some of /proc, as container engines do."""
    enter(1000, NEWNS)
    check(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
    for name in (b"/proc/kcore", b"/proc/keys", b"/proc/timer_list"):
        if os.path.exists(name):
            check(libc.mount(b"/dev/null", name, None, BIND, None))


PROVOCATIONS: dict[str, Callable[[], None]] = {
    "seccomp": filter_unshare,
    "userns_limit": forbid_more,
    "masked_proc": mask_proc,
    "root of a user namespace": lambda: enter(0),
    "nothing": lambda: None,
}


def become_ordinary() -> None:
    """Run once more by exec, without the rights that a new namespace gave."""
    os.execv(sys.executable, [sys.executable, __file__, "try", *sys.argv[2:]])


def attempt(audit: str, isolation: str) -> None:
    """Run a program behind a wall, and print how that went."""
    from casemate import CasemateError, WallUnavailable, sync

    told: dict[str, object]
    try:
        with sync.Sandbox(audit=audit, isolation=isolation) as sandbox:
            done = sandbox.run("print('ran')")
            told = {"ran": done.stdout, "wall": done.isolation.wall}
    except WallUnavailable as error:
        told = {"reason": error.reason, "remedy": error.remediation, "message": error.message}
    except CasemateError as error:
        told = {"other": type(error).__name__, "message": error.message}
    print(json.dumps(told))


if __name__ == "__main__":
    if sys.argv[1] == "try":
        attempt(*sys.argv[2:])
    else:
        PROVOCATIONS[sys.argv[1]]()
        become_ordinary()
