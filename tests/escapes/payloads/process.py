"""Hurt a process that is not ours: VICTIM, its memory at ADDRESS, its descriptor FD."""

from __future__ import annotations

import ctypes
import os
import pathlib
import resource
import signal

from tests.escapes.payloads.attempts import attempt, checked, finish, libc, read, syscall

PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
PIDFD_GETFD, PIDFD_SEND_SIGNAL = 438, 424
X86 = os.uname().machine == "x86_64"
READV, WRITEV, PTRACE, KCMP, IOPRIO_SET = (310, 311, 101, 312, 251) if X86 else (270, 271, 117, 272, 30)

victim, address, descriptor = (int(os.environ[name]) for name in ("VICTIM", "ADDRESS", "FD"))


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def vectors() -> tuple[ctypes.Array[ctypes.c_char], Vector, Vector]:
    buffer = ctypes.create_string_buffer(b"overwritten", 64)
    return buffer, Vector(ctypes.addressof(buffer), 39), Vector(address, 39)


def read_memory() -> bytes:
    buffer, ours, theirs = vectors()
    syscall(READV, victim, ctypes.addressof(ours), 1, ctypes.addressof(theirs), 1, 0)
    return buffer.raw


def write_memory() -> None:
    _buffer, ours, theirs = vectors()
    syscall(WRITEV, victim, ctypes.addressof(ours), 1, ctypes.addressof(theirs), 1, 0)


def write_by_proc() -> None:
    with open(f"/proc/{victim}/mem", "r+b", buffering=0) as file:
        file.seek(address)
        file.write(b"overwritten")


def take_descriptor() -> bytes:
    return os.pread(syscall(PIDFD_GETFD, os.pidfd_open(victim), descriptor, 0), 100, 0)


attempt("read environ", lambda: read(f"/proc/{victim}/environ"))
attempt("read cmdline", lambda: read(f"/proc/{victim}/cmdline"))
attempt("read descriptor", lambda: read(f"/proc/{victim}/fd/{descriptor}"))
attempt("read memory", read_memory)
attempt("take descriptor", take_descriptor)
attempt("kcmp", lambda: syscall(KCMP, os.getpid(), victim, 0, 0, 0))
attempt("renice", lambda: os.setpriority(os.PRIO_PROCESS, victim, 5))
attempt("limit", lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE))
attempt("affinity", lambda: os.sched_setaffinity(victim, os.sched_getaffinity(victim)))
attempt("oom", lambda: pathlib.Path(f"/proc/{victim}/oom_score_adj").write_text("500"))
if os.environ.get("WRITE"):
    attempt("write memory", write_memory)
    attempt("write by /proc", write_by_proc)
attempt("seize", lambda: syscall(PTRACE, PTRACE_SEIZE, victim, 0, 0))
attempt("stop", lambda: os.kill(victim, signal.SIGSTOP))
attempt("stop by thread", lambda: syscall(234 if X86 else 131, victim, victim, signal.SIGSTOP))
attempt("queue", lambda: checked(libc.sigqueue(victim, signal.SIGSTOP, 0)))
attempt("stop by pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGSTOP))
attempt("group", lambda: os.killpg(victim, signal.SIGSTOP))
if os.environ.get("KILL"):
    attempt("terminate", lambda: os.kill(victim, signal.SIGTERM))
    attempt("kill", lambda: os.kill(victim, signal.SIGKILL))
finish()
