"""The supervisor's entry point: set up, report what this machine can do, serve until the host is gone."""

from __future__ import annotations

import _socket
import array
import gc
import os
import select
import sys

from casemate.supervisor import cgroups, kernel, landlock, namespaced, namespaces, serve, sockets, stage, wire

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

SOCKET = 0  # the host's socket is standard input, so it needs no argument
_END_WITHIN = 1.0  # seconds a supervisor has to end once its host is gone


def main() -> None:
    """Run as ``python -I -S``. This process only waits for pid 1 of the new namespace and makes sure that it ends."""
    socket, groups = enter()
    user = os.stat("/proc/self/ns/user").st_ino
    try:
        mode, cell_ids = namespaces.own_namespaces()
        pid = os.fork()
    except namespaces.SetupError as refused:
        refuse(socket, refused)
        groups.remove()
        sys.exit(1)
    if pid == 0:
        _serve(socket, mode, cell_ids, groups, has_user_namespace=os.stat("/proc/self/ns/user").st_ino != user)
    wait_for_end(pid, socket)
    groups.remove()
    os._exit(0)  # the host waits, and a normal interpreter exit takes as long as all of the above


def enter() -> tuple[_socket.socket, cgroups.Cgroups]:
    """Close inherited descriptors; return the host's socket and this supervisor's cgroups."""
    kernel.close_from(3)
    os.umask(0o022)  # cells run as other users and need to read what the supervisor makes
    socket = _socket.socket(fileno=os.dup(SOCKET))
    os.dup2(os.open(os.devnull, os.O_RDONLY), SOCKET)
    return socket, cgroups.find(f"{os.getpid()}-{os.urandom(3).hex()}")


def _serve(
    socket: _socket.socket, mode: str, cell_ids: range, groups: cgroups.Cgroups, *, has_user_namespace: bool
) -> None:
    try:
        namespaces.set_up_pid1()
        if has_user_namespace:
            namespaces.bound_inotify()
        if mode != "user":
            os.setgroups([])  # cells must not inherit root's groups
        with namespaces.setup_stage("stage"):
            stage.prepare()
        maker = namespaced.NamespaceMaker(mode, cell_ids, bounded=has_user_namespace)
        with namespaces.setup_stage("seccomp"):
            calls = sockets.NetlinkCalls()
        server = serve.SupervisorLoop(HostSocket(socket), maker, groups, calls)
        gc.disable()  # a collection in a forked cell would copy the whole heap's pages
        counted = server.try_cgroups()
        can = {"landlock": landlock.abi(), "native_init": maker.native is not None}
        socket.send(wire.encode({"op": "ready", "mode": mode, **can, **counted}))
        server.run()
    except namespaces.SetupError as refused:
        refuse(socket, refused)
        os._exit(1)
    os._exit(0)


def refuse(socket: _socket.socket, refused: namespaces.SetupError) -> None:
    """Tell the host that this supervisor makes no cells, and why."""
    socket.send(wire.encode({"op": "refused", "stage": refused.stage, "errno": refused.errno, "detail": str(refused)}))


class HostSocket:
    def __init__(self, socket: _socket.socket) -> None:
        self._socket = socket
        self._buffer = memoryview(bytearray(wire.MAX_MESSAGE))
        self._kept: dict[bytes, Any] = {}

    def fileno(self) -> int:
        """The socket's descriptor, for polling."""
        return self._socket.fileno()

    def receive(self) -> tuple[dict[str, Any], dict[str, int], bool] | None:
        """The next message, its descriptors by name, and whether all of them arrived; None when the host is gone.
        Raises ``BlockingIOError`` if no message is waiting."""
        numbers = array.array("i")
        size, ancillary, flags, _ = self._socket.recvmsg_into(
            [self._buffer], _socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * numbers.itemsize), _socket.MSG_DONTWAIT
        )
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
        if not size:
            return None
        for fd in numbers:
            os.set_inheritable(fd, False)
        message = wire.decode(bytes(self._buffer[:size]), self._kept)
        is_whole = not flags & _socket.MSG_CTRUNC
        return message, dict(zip(message.get("fds", ()), numbers, strict=is_whole)), is_whole

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send the host a message. The caller keeps ``fds``."""
        try:
            kernel.send_fds(self._socket, wire.encode(message), fds or ())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the host is gone; the next receive ends the loop


def wait_for_end(supervisor: int, host: _socket.socket) -> None:
    """Wait for the child ``supervisor`` to end. Kill it if it outlives the ``host`` by `_END_WITHIN`."""
    poll = select.poll()
    pidfd = os.pidfd_open(supervisor)
    poll.register(pidfd, select.POLLIN)
    poll.register(host.fileno(), 0)  # POLLHUP alone
    poll.poll()
    if not select.select([pidfd], [], [], _END_WITHIN)[0]:
        os.kill(supervisor, 9)
    os.waitpid(supervisor, 0)
    host.close()
