"""Connections of a cell, as they come: from a listening socket in the cell's own network, or, where a cell has none,
from the supervisor, which sends each over one end of a pair of sockets."""

from __future__ import annotations

import errno
import os
import socket

from casemate.egress.stream import bound_buffers


def is_pair(one: socket.socket) -> bool:
    """Whether connections come over ``one`` from the supervisor."""
    return one.family == socket.AF_UNIX


def accept(listener: socket.socket) -> socket.socket:
    """The next connection. Raises ``OSError``, and ``EOFError`` where there will be none any more."""
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
