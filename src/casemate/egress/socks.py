"""SOCKS5 (RFC 1928), as much of it as an egress proxy needs that offers CONNECT without credentials. Pure, sans-io.

Whose connection it is, the egress proxy knows by the socket it came through: that lies in the cell's own network, so
there is no password that another cell could use.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

VERSION = 5
ACCEPTED = b"\x05\x00"  # no authentication
NO_METHOD = b"\x05\xff"
# Replies, RFC 1928, section 6.
SUCCEEDED, FAILURE, NOT_ALLOWED, HOST_UNREACHABLE, COMMAND_NOT_SUPPORTED, ADDRESS_NOT_SUPPORTED = 0, 1, 2, 4, 7, 8
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4


class BadSocks(ValueError):
    """Not SOCKS5, or something of it that is not offered. ``reply`` is what to send before closing."""

    def __init__(self, message: str, reply: bytes = b"") -> None:
        super().__init__(message)
        self.reply = reply


@dataclass(frozen=True, slots=True)
class SocksRequest:
    """Where a client wants to go. ``is_address``: ``host`` is an address. ``size``: bytes of the request."""

    host: str
    port: int
    is_address: bool
    size: int


def read_greeting(data: bytes) -> int | None:
    """How many bytes the greeting at the beginning of ``data`` has; None if there has to come more.

    Raises :class:`BadSocks`, also where the client will not go without credentials.
    """
    if data[:1] and data[0] != VERSION:
        raise BadSocks("not SOCKS5")
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    if 0 not in data[2 : 2 + data[1]]:
        raise BadSocks("no method but 'no authentication' is offered", NO_METHOD)
    return 2 + data[1]


def read_request(data: bytes) -> SocksRequest | None:
    """The request at the beginning of ``data``; None if there has to come more. Raises :class:`BadSocks`."""
    if len(data) < 5:
        return None
    version, command, reserved, kind, length = data[:5]
    if version != VERSION or reserved:
        raise BadSocks("not a request of SOCKS5", reply(FAILURE))
    if command != _CONNECT:
        raise BadSocks(f"command {command} is not offered: only CONNECT is", reply(COMMAND_NOT_SUPPORTED))
    sizes = {_IPV4: (4, 4), _IPV6: (4, 16), _NAME: (5, length)}
    if kind not in sizes or (kind == _NAME and not length):
        raise BadSocks(f"an address of kind {kind}", reply(ADDRESS_NOT_SUPPORTED))
    start, size = sizes[kind]
    end = start + size
    if len(data) < end + 2:
        return None
    raw = data[start:end]
    host = raw.decode("latin-1") if kind == _NAME else str(ipaddress.ip_address(raw))
    return SocksRequest(host, int.from_bytes(data[end : end + 2]), kind != _NAME, end + 2)


def reply(code: int) -> bytes:
    """The answer to a request; the address in it says nothing, since none of the host's is a cell's business."""
    return bytes((VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))
