"""Putting a filter of system calls in force; what it says is made in `seccomp`, which no cell needs to load.

Sources: seccomp(2), Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1  # SECCOMP_SET_MODE_FILTER
_ALL_THREADS = 1  # SECCOMP_FILTER_FLAG_TSYNC: a thread left out would be a way out
_INSTRUCTION_BYTES = 8  # of struct sock_filter

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def install(program: bytes) -> None:
    """Put the filter in force, for good, for all threads of this process and its children.

    Sets no_new_privs, without which an unprivileged process may not install a filter.
    Raises OSError: EINVAL for a program that the kernel refuses, ENOSYS without seccomp,
    EBUSY when a thread already has a filter that this process has not.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    filter_ = _SockFprog(len(program) // _INSTRUCTION_BYTES, ctypes.addressof(buffer))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        raise _last_error("no_new_privs")
    done = _libc.syscall(
        ctypes.c_long(_SECCOMP[os.uname().machine]),
        ctypes.c_ulong(_SET_MODE_FILTER),
        ctypes.c_ulong(_ALL_THREADS),
        ctypes.byref(filter_),
    )
    if done > 0:
        raise OSError(errno.EBUSY, f"thread {done} has a filter of its own")
    if done < 0:
        raise _last_error("seccomp")


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
