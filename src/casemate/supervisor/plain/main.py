"""The entry point of a supervisor that makes cells without namespaces."""

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

_OLDEST_LANDLOCK = 6  # the first version that confines signals


def main() -> None:
    """Run as ``python -I -S``; the last argument is the folder for the cells' folders."""
    (socket, groups), base = entry.enter(), sys.argv[-1]
    try:
        identities = _identities()
    except namespaces.SetupError as refused:
        entry.refuse(socket, refused)
        groups.remove()
        sys.exit(1)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        _serve(socket, base, identities, groups)
    entry.wait_for_end(pid, socket)
    with contextlib.suppress(ChildProcessError):
        while True:  # inits whose supervisor was killed end their cells
            os.waitpid(-1, 0)
    groups.remove()
    for name in os.listdir(base):
        remove_folder(f"{base}/{name}")
    os._exit(0)


def _serve(socket: _socket.socket, base: str, identities: namespaces.Identities, groups: cgroups.Cgroups) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    server = serve.SupervisorLoop(entry.HostSocket(socket), maker.PlainMaker(base, identities), groups, threads=True)
    gc.disable()  # a collection in a forked cell would copy the whole heap's pages
    sys.setswitchinterval(0.0005)  # seconds that a thread may hold the GIL while the loop waits for it
    counted = server.try_cgroups()
    hello = {
        "op": "ready",
        "mode": "plain root" if identities.first.mapped else "plain user",
        "landlock": landlock.abi(),
    }
    socket.send(wire.encode({**hello, **counted}))
    server.run()
    os._exit(0)


def _identities() -> namespaces.Identities:
    """Root's cells get an id each; other users' cells have the user's own id, and the supervisor no capability. Raises
    ``SetupError`` if Landlock is too old, or root has no other id for its cells."""
    if (version := landlock.abi()) < _OLDEST_LANDLOCK:
        raise namespaces.SetupError("landlock", OSError(0, f"Landlock has version {version} here"))
    if os.geteuid() != 0 or namespaces.is_only_id():
        kernel.give_up_rights(None)  # root of a user namespace has them all, and zygotes and helpers would inherit them
        return namespaces.Identities(range(os.geteuid(), os.geteuid() + 1), mapped=False)
    os.setgroups([])  # cells must not inherit root's groups
    return namespaces.Identities(namespaces.cell_ids(), mapped=True)
