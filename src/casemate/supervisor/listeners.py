"""Sockets inside a cell's own network, made from outside: whoever holds one answers there."""

from __future__ import annotations

import _socket

from casemate.supervisor import cells, kernel, namespaces

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from casemate.supervisor.maker import Maker

_BACKLOG = 128  # connections that wait for the host
_KINDS = {"tcp": _socket.SOCK_STREAM, "client": _socket.SOCK_STREAM, "udp": _socket.SOCK_DGRAM}


def open_listeners(network: int, sockets: Sequence[Sequence[object]]) -> list[int]:
    """Listen at each of ``sockets``, kind (``"tcp"`` or ``"udp"``), IPv4 address and port, in the network namespace
    ``network``. A ``"client"`` is a socket of the address's family that the host connects: it stays of the network in
    which it was made.

    Raises ``OSError``.
    """
    return namespaces.open_inside(network, kernel.CLONE_NEWNET, lambda: listen(sockets), "listeners")


def listen(sockets: Sequence[Sequence[object]]) -> list[int]:
    """The same in the network of this process."""
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
