"""The entry of a supervisor that makes cells without namespaces: say what this machine can do, serve, clean up."""

from __future__ import annotations

import _socket
import contextlib
import gc
import os
import sys

from casemate.supervisor import cgroups, kernel, landlock, namespaces, serve, wire
from casemate.supervisor import main as entry
from casemate.supervisor.plain import maker
from casemate.supervisor.trees.remove import remove_folder

_OLDEST_LANDLOCK = 6  # which keeps signals inside


def main() -> None:
    """Run as ``python -I -S``; the last argument is the folder for those of cells."""
    (socket, groups), base = entry.enter(), sys.argv[-1]
    if os.geteuid() == 0:
        os.setgroups([])  # what root is a member of, its cells are not
    if landlock.abi() < _OLDEST_LANDLOCK:
        detail = f"Landlock has version {landlock.abi()} here"
        socket.send(wire.encode({"op": "refused", "stage": "landlock", "errno": 0, "detail": detail}))
        groups.remove()
        sys.exit(1)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        _serve(socket, base, groups)
    entry.wait_for_end(pid, socket)
    with contextlib.suppress(ChildProcessError):
        while True:  # the inits of a supervisor that was killed end their cells
            os.waitpid(-1, 0)
    groups.remove()
    for name in os.listdir(base):
        remove_folder(f"{base}/{name}")
    os._exit(0)


def _serve(socket: _socket.socket, base: str, groups: cgroups.Cgroups) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    server = serve.SupervisorLoop(entry.HostSocket(socket), maker.PlainMaker(base, _identities()), groups, threads=True)
    gc.disable()  # a collection in a forked cell would copy the whole heap's pages
    sys.setswitchinterval(0.0005)  # seconds that a thread may hold the interpreter's lock while the loop waits for it
    counted = server.try_cgroups()
    hello = {"op": "ready", "mode": "plain root" if os.geteuid() == 0 else "plain user", "landlock": landlock.abi()}
    socket.send(wire.encode({**hello, **counted}))
    server.run()
    os._exit(0)


def _identities() -> namespaces.Identities:
    """Who cells are: as root each somebody else, else who we are."""
    if os.geteuid() == 0:
        return namespaces.Identities(namespaces.cell_ids(), mapped=True)
    return namespaces.Identities(range(os.geteuid(), os.geteuid() + 1), mapped=False)
