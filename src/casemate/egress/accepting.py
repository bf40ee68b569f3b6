"""Accepts a cell's connections: from a listening socket in the cell's own network, or, if the cell has none, from the
supervisor, which sends each over a socket pair."""

from __future__ import annotations

import errno
import os
import socket

from casemate.egress.stream import bound_buffers


def is_pair(one: socket.socket) -> bool:
    """Whether ``one`` is a socket pair to the supervisor."""
    return one.family == socket.AF_UNIX


def accept(listener: socket.socket) -> socket.socket:
    """Return the next connection. Raises ``OSError``, and ``EOFError`` if no more will come."""
    if not is_pair(listener):
        return listener.accept()[0]
    data, fds, _, _ = socket.recv_fds(listener, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError("the cell has ended")
    if not fds:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    connection = socket.socket(fileno=fds[0])
    bound_buffers(connection)
    return connection
