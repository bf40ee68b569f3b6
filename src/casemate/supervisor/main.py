"""The supervisor's entry: come into place, say what this machine can do, serve until the host is gone."""

from __future__ import annotations

import _socket
import gc
import os
import sys

from casemate.supervisor import cgroups, kernel, landlock, namespaced, namespaces, serve, stage, wire

SOCKET = 0  # the host's socket is our standard input: nothing else needs a number, an argument or a name


def main() -> None:
    """Run as ``python -I -S``: this process only waits for pid 1 of the new namespace, so that the host has a child."""
    kernel.close_from(3)
    os.umask(0o022)  # what it makes is for cells, which are other users than the one who has made it
    socket = _socket.socket(fileno=os.dup(SOCKET))
    os.dup2(os.open(os.devnull, os.O_RDONLY), SOCKET)
    groups = cgroups.find(f"{os.getpid()}-{os.urandom(3).hex()}")
    try:
        mode, cell_ids = namespaces.own_namespaces()
        pid = os.fork()
    except namespaces.SetupError as refused:
        _refuse(socket, refused)
        groups.remove()
        sys.exit(1)
    if pid == 0:
        _serve(socket, mode, cell_ids, groups)
    socket.close()
    os.waitpid(pid, 0)
    groups.remove()
    os._exit(0)  # taking the interpreter apart takes as long as all of that, and the host waits for it


def _serve(socket: _socket.socket, mode: str, cell_ids: range, groups: cgroups.Cgroups) -> None:
    try:
        namespaces.set_up_pid1()
        if mode != "user":
            os.setgroups([])  # what root is a member of, its cells are not
        with namespaces.setup_stage("stage"):
            stage.prepare()
        maker = namespaced.NamespaceMaker(mode, cell_ids)
        server = serve.SupervisorLoop(serve.HostSocket(socket), maker, groups)
        gc.disable()  # a collection in a forked cell would copy the whole heap's pages
        counted = server.try_cgroups()
        can = {"landlock": landlock.abi(), "native_init": maker.native is not None}
        socket.send(wire.encode({"op": "ready", "mode": mode, **can, **counted}))
        server.run()
    except namespaces.SetupError as refused:
        _refuse(socket, refused)
        os._exit(1)
    os._exit(0)


def _refuse(socket: _socket.socket, refused: namespaces.SetupError) -> None:
    socket.send(wire.encode({"op": "refused", "stage": refused.stage, "errno": refused.errno, "detail": str(refused)}))
