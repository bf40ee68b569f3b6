"""Addresses of a cell's network where a container has no route to them: the loopback's instead, all of 127/8 being
local. Pure."""

from __future__ import annotations

import ipaddress

_HOST = int(ipaddress.IPv4Address("198.18.0.0"))  # of a cell network, as `model.plan` has it
_CONTAINER = int(ipaddress.IPv4Address("127.76.0.0"))
_SIZE = 1 << 17  # addresses of each
SENDER = 6  # bytes of an IPv4 address and a port, before each datagram


def to_container(address: str) -> str:
    """Where an address of the cell network lies in the container; others stay."""
    number = int(ipaddress.IPv4Address(address)) - _HOST
    return str(ipaddress.IPv4Address(_CONTAINER + number)) if 0 <= number < _SIZE else address


def answer_to_container(answer: bytes) -> bytes:
    """An answer of the resolver's, whose only record is an address at its end, if it has one."""
    if len(answer) < 16 or int.from_bytes(answer[6:8], "big") != 1:
        return answer
    return answer[:-4] + ipaddress.IPv4Address(to_container(str(ipaddress.IPv4Address(answer[-4:])))).packed
