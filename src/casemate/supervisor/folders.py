"""Folders of the host that are shown in a cell while it lives, read-only, where it has an empty folder for that."""

from __future__ import annotations

import os
import select

from casemate.supervisor import kernel, roots, wire

_SIGKILL = 9


def show(mounts: int, source: str, target: str) -> None:
    """Mount ``source``, a folder of the host, at ``target``, an empty folder of the root of the mount namespace
    ``mounts``: read-only, without setuid programs and devices.

    What is there is looked up on the host, and put there by a child that goes into the cell: an ordinary user's
    supervisor could not come back. The root of a cell is read-only and holds no link of the cell's own making.
    Raises ``OSError``.
    """
    tree = roots.bind(source)
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _attach(mounts, tree, target, theirs)
    os.close(tree)
    os.close(theirs)
    try:
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        if not poll.poll(wire.ANSWER_WITHIN):
            os.kill(pid, _SIGKILL)  # then the answer is its end
        told = os.read(ours, 4)
        os.waitpid(pid, 0)
    finally:
        os.close(ours)
    number = int.from_bytes(told, "big") if len(told) == 4 else 110
    if number:
        raise OSError(number, os.strerror(number), target)


def _attach(mounts: int, tree: int, target: str, told: int) -> None:
    number = 22
    try:
        kernel.setns(mounts, kernel.CLONE_NEWNS)
        kernel.move_mount(tree, target)
        number = 0
    except OSError as error:
        number = error.errno or number
    finally:
        os.write(told, number.to_bytes(4, "big"))
        os._exit(0)
