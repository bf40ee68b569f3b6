"""Addresses of a service, and connections to them."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from casemate.errors import InvalidArgument, Unavailable
from casemate.model.addresses import is_loopback
from casemate.remote.places import SOCKET, open_private

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a service: a Unix socket in ``folder``, or a host and port."""

    folder: Path | None = None
    name: str = SOCKET  # of the socket
    host: str = ""
    port: int = 0
    tls: bool = False

    def __str__(self) -> str:
        if self.folder is not None:
            return f"unix://{self.folder / self.name}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def host_header(self) -> str:
        """The Host header of requests, which the service checks."""
        return "localhost" if self.folder is not None else str(self).partition("//")[2]


def address_of(url: str, *, insecure: bool = False) -> Address:
    """Parse ``unix:///path/of/service.sock``, ``https://host:port``, or ``http://host:port`` of this machine.

    ``insecure``: permit ``http`` to other machines, which exposes the token to the network. Raises ``InvalidArgument``.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix" and not parts.netloc and os.path.isabs(parts.path):
        path = Path(parts.path)
        return Address(folder=path.parent, name=path.name)
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None or parts.path.strip("/"):
        raise InvalidArgument("url", f"{url!r} is not unix:///path, http://host:port or https://host:port")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise InvalidArgument("url", f"{url!r}: {error}") from None
    if parts.scheme == "http" and not is_loopback(parts.hostname) and not insecure:
        raise InvalidArgument(
            "url",
            f"{url!r} would expose the token to the network",
            remediation="Use https, a tunnel that ends on this machine, or insecure=True if the network is trusted.",
        )
    return Address(host=parts.hostname, port=port, tls=parts.scheme == "https")


def connect(address: Address, seconds: float) -> socket.socket:
    """Connect to a Unix socket. Its folder must be private to this user, and its other end must belong to this user.

    Raises ``OSError`` if no process listens, and ``Unavailable`` if another user's does.
    """
    assert address.folder is not None
    folder = open_private(address.folder)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(seconds)
        one.connect(f"/proc/self/fd/{folder}/{address.name}")  # the checked folder, and no limit on the path's length
        if peer_of(one) != os.geteuid():
            raise Unavailable(f"{address} belongs to another user, so nothing was sent to it")
    except BaseException:
        one.close()
        raise
    finally:
        os.close(folder)
    return one


def peer_of(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, from the kernel (SO_PEERCRED of unix(7))."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)
