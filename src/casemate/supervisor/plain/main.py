"""The entry of a supervisor that makes cells without namespaces: say what this machine can do, serve, clean up."""

from __future__ import annotations

import _socket
import gc
import os
import sys

from casemate.supervisor import cgroups, kernel, landlock, namespaces, serve, wire
from casemate.supervisor.plain import files, maker

_OLDEST_LANDLOCK = 6  # which keeps signals inside
SOCKET = 0  # the host's socket is our standard input


def main() -> None:
    """Run as ``python -I -S``; the last argument is the folder for those of cells."""
    kernel.close_from(3)
    os.umask(0o022)  # what it makes is for cells, which are other users than the one who has made it
    socket = _socket.socket(fileno=os.dup(SOCKET))
    os.dup2(os.open(os.devnull, os.O_RDONLY), SOCKET)
    base = sys.argv[-1]
    if os.geteuid() == 0:
        os.setgroups([])  # what root is a member of, its cells are not
    if landlock.abi() < _OLDEST_LANDLOCK:
        detail = f"Landlock has version {landlock.abi()} here"
        socket.send(wire.encode({"op": "refused", "stage": "landlock", "errno": 0, "detail": detail}))
        sys.exit(1)
    groups = cgroups.find(f"{os.getpid()}-{os.urandom(3).hex()}")
    try:
        server = serve.SupervisorLoop(serve.HostSocket(socket), maker.PlainMaker(base, _identities()), groups)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        gc.disable()  # a collection in a forked cell would copy the whole heap's pages
        counted = server.try_cgroups()
        hello = {"op": "ready", "mode": "plain root" if os.geteuid() == 0 else "plain user", "landlock": landlock.abi()}
        socket.send(wire.encode({**hello, **counted}))
        server.run()
    finally:
        groups.remove()
        for name in os.listdir(base):
            files.remove(f"{base}/{name}")
    os._exit(0)


def _identities() -> namespaces.Identities:
    """Who cells are: as root each somebody else, else who we are."""
    if os.geteuid() == 0:
        return namespaces.Identities(namespaces.cell_ids(), mapped=True)
    return namespaces.Identities(range(os.geteuid(), os.geteuid() + 1), mapped=False)
