"""Sending one message with descriptors, also when cells of this user hold very many in flight."""

from __future__ import annotations

import errno
import resource
import socket
from typing import Any


def carry(carrier: socket.socket, data: bytes, rights: list[Any]) -> None:
    """Send one message. Descriptors that cells of this user have in flight count against our own soft limit on open
    files (unix(7), ETOOMANYREFS), which is then raised for the moment of sending."""
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    try:
        carrier.sendmsg([data], rights, flags)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            carrier.sendmsg([data], rights, flags)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
