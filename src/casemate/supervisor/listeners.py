"""Sockets inside a cell's own network, made from outside: whoever holds one answers there."""

from __future__ import annotations

import _socket
import os

from casemate.supervisor import cells, kernel, namespaces

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from casemate.supervisor.maker import Maker

_BACKLOG = 128  # connections that wait for the host
_KINDS = {"tcp": _socket.SOCK_STREAM, "client": _socket.SOCK_STREAM, "udp": _socket.SOCK_DGRAM}
# All addresses of a cell network are the cell's own: set aside for tests of devices (RFC 2544), used by nobody.
_RANGE, _PREFIX = "198.18.0.0", 15
_LOOPBACK_INDEX = 1  # of a network's first interface
_EEXIST = 17
# Sources: rtnetlink(7) and the kernel's uapi header of that name.
_NEWROUTE, _REQUEST, _ACK, _CREATE, _EXCL = 24, 1, 4, 0x400, 0x200
_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL = 255, 3, 254, 2
_DST, _OIF = 1, 4
_AF_NETLINK, _NETLINK_ROUTE = 16, 0


def open_listeners(network: int, sockets: Sequence[Sequence[object]]) -> list[int]:
    """Listen at each of ``sockets``, kind (``"tcp"`` or ``"udp"``), IPv4 address and port, in the network namespace
    ``network``; addresses of the cell network are made the cell's own. A ``"client"`` is a socket of the address's
    family that the host connects: it stays of the network in which it was made.

    Raises ``OSError``.
    """
    return namespaces.open_inside(network, kernel.CLONE_NEWNET, lambda: listen(sockets), "listeners")


def listen(sockets: Sequence[Sequence[object]]) -> list[int]:
    """The same in the network of this process."""
    if any(kind != "client" and not str(address).startswith("127.") for kind, address, _ in sockets):
        _add_route()
    return [open_socket(str(kind), address, port).detach() for kind, address, port in sockets]


def open_socket(kind: str, address: object, port: object) -> _socket.socket:
    """One of them."""
    family = _socket.AF_INET6 if ":" in str(address) else _socket.AF_INET
    sock = _socket.socket(family, _KINDS[kind] | _socket.SOCK_CLOEXEC, 0)
    if kind == "client":
        return sock
    if kind == "tcp":  # over what is left of an earlier one's connections; nobody can bind over one that listens
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    if kind == "tcp":
        sock.listen(_BACKLOG)
    return sock


def _add_route() -> None:
    """The one route: the cell network's addresses are local. Harmless when it is there. Raises ``OSError``."""
    order = "little" if memoryview(b"\1\0").cast("H")[0] == 1 else "big"

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, order)  # type: ignore[arg-type]

    header = bytes([_socket.AF_INET, _PREFIX, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL])
    attributes = number(8, 2) + number(_DST, 2) + _socket.inet_aton(_RANGE)
    attributes += number(8, 2) + number(_OIF, 2) + number(_LOOPBACK_INDEX, 4)
    body = header + number(0, 4) + attributes
    flags = _REQUEST | _ACK | _CREATE | _EXCL
    message = number(16 + len(body), 4) + number(_NEWROUTE, 2) + number(flags, 2) + number(1, 4) + number(0, 4) + body
    netlink = _socket.socket(_AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
    netlink.send(message)
    answer = netlink.recv(4096)  # an error message that begins with its number, 0 when all is well
    netlink.close()
    code = -int.from_bytes(answer[16:20], order, signed=True)  # type: ignore[arg-type]
    if code not in (0, _EEXIST):
        raise OSError(code, os.strerror(code))


class Listeners:
    """``send`` sends the host a message, with descriptors."""

    def __init__(self, send: Callable[..., None], maker: Maker) -> None:
        self._send = send
        self._maker = maker

    def add(self, cell: cells.CellProcess, message: dict[str, Any]) -> None:
        """Make others; the host gets an errno where they cannot be made."""
        number = message["number"]
        try:
            self.make(cell, message["listeners"], number)
        except OSError as error:
            self._send({"op": "listening", "id": cell.id, "number": number, "errno": error.errno or 0})

    def make(self, cell: cells.CellProcess, sockets: list[list[object]], number: int) -> None:
        """Make sockets, 0 those that a cell begins with; their descriptors go to the host, and stay nowhere else.

        Raises ``OSError``.
        """
        fds = self._maker.open_listeners(cell, sockets)
        try:
            self._send({"op": "listening", "id": cell.id, "number": number, "errno": 0, "count": len(fds)}, fds)
        finally:
            kernel.close_all(fds)
