"""Runs host commands, each with its children in its own process namespace.

Each message on our socket is one command: program, arguments and variables as JSON, with the descriptors of ``FDS``.
Its init ends everything when the command ends, or when the host closes its end of ``leash``.
"""

from __future__ import annotations

import _socket
import gc
import json
import os
import select
import signal

from casemate.supervisor import kernel, namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FDS = ("folder", "stdout", "stderr", "status", "leash")
MOST_MESSAGE = 1 << 17  # bytes; a datagram of a Unix socket may be a little longer
_SOCKET = 0
_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)  # what Python changed


def main() -> None:
    """Run as ``python -I -S``. Serves until the host is gone."""
    kernel.close_from(_SOCKET + 3)
    gc.disable()  # a collection in a forked init would copy the whole heap's pages
    socket = _socket.socket(fileno=_SOCKET)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # inits are not waited for: the host learns of their end by a pipe
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel does not deliver it to an init without a handler
    runner = os.getpid()
    while True:
        message, fds = kernel.receive_fds(socket, MOST_MESSAGE, len(FDS))
        if not message:
            os._exit(0)
        try:
            if not _clone():
                _run(json.loads(message), *fds)
        except OSError as error:
            _report(fds[FDS.index("status")], "namespace", error)
            if os.getpid() != runner:
                os._exit(0)  # an init without its command
        kernel.close_all(fds)


def _clone() -> int:
    """Fork into a process namespace, with a user namespace if that is required."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        return kernel.clone(kernel.CLONE_NEWPID)
    except PermissionError:
        pid = kernel.clone(kernel.CLONE_NEWPID | kernel.CLONE_NEWUSER)
    if pid == 0:
        namespaces.write_maps("self", f"{uid} {uid} 1", f"{gid} {gid} 1", deny_setgroups=True)
    return pid


def _run(order: dict[str, Any], folder: int, stdout: int, stderr: int, status: int, leash: int) -> None:
    """Run as the command's init. Never returns."""
    try:
        os.close(_SOCKET)  # or the host would not see that the runner is gone
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # a command that stops us by ptrace(2) would never end
        poll = select.poll()
        poll.register(leash, select.POLLIN)  # reports POLLHUP as well
        if poll.poll(0):
            return  # the host has cancelled the command
        os.fchdir(folder)
        for fd in (folder, stdout, stderr, status, leash):
            os.set_inheritable(fd, False)
        pid = os.posix_spawn(
            order["program"], order["argv"], order["env"], setsid=True, setsigdef=_SIGNALS,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
        )  # fmt: skip
        kernel.close_all((folder, stdout, stderr))
        program = os.pidfd_open(pid)
        poll.register(program, select.POLLIN)
        if any(fd == program for fd, _ in poll.poll()):
            os.write(status, json.dumps({"status": os.waitpid(pid, 0)[1]}).encode())
    except OSError as error:
        _report(status, "program", error)
    finally:
        os._exit(0)


def _report(status: int, at: str, error: OSError) -> None:
    os.write(status, json.dumps({"at": at, "errno": error.errno or 0}).encode())
