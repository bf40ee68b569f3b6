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
    """``folder``: of a Unix socket; else ``host`` and ``port``, with ``tls`` or without."""

    folder: Path | None = None
    name: str = SOCKET
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
        """What requests name as their host: the service checks it."""
        return "localhost" if self.folder is not None else str(self).partition("//")[2]


def address_of(url: str, *, insecure: bool = False) -> Address:
    """``unix:///path/of/service.sock``, ``https://host:port``, or ``http://host:port`` of this machine.

    ``insecure``: permits ``http`` to other machines, where everybody on the way reads the token. Raises
    ``InvalidArgument``.
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
            f"{url!r} would send the token over the network for everybody to read",
            remediation="Use https, a tunnel that ends on this machine, or insecure=True where the network is trusted.",
        )
    return Address(host=parts.hostname, port=port, tls=parts.scheme == "https")


def connect(address: Address, seconds: float) -> socket.socket:
    """A connection to a Unix socket, whose folder is this user's alone and whose other end is this user's, too.

    Raises ``OSError`` where nobody listens, and ``Unavailable`` where somebody else does.
    """
    assert address.folder is not None
    folder = open_private(address.folder)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(seconds)
        one.connect(f"/proc/self/fd/{folder}/{address.name}")  # the folder that was looked at, and a name of any length
        if peer_of(one) != os.geteuid():
            raise Unavailable(f"{address} is held by another user, and nothing is said to it")
    except BaseException:
        one.close()
        raise
    finally:
        os.close(folder)
    return one


def peer_of(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel says (SO_PEERCRED of unix(7))."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)
