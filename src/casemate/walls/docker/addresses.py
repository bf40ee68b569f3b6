"""Maps cell network addresses to the loopback, because a container has no route to them. All of 127/8 is local."""

from __future__ import annotations

import ipaddress

_HOST = int(ipaddress.IPv4Address("198.18.0.0"))  # of a cell network; see `model.plan`
_CONTAINER = int(ipaddress.IPv4Address("127.76.0.0"))
_SIZE = 1 << 17  # addresses in each range
SENDER = 6  # bytes of an IPv4 address and a port, before each datagram


def to_container(address: str) -> str:
    """Map an address of the cell network into the container. Other addresses are returned unchanged."""
    number = int(ipaddress.IPv4Address(address)) - _HOST
    return str(ipaddress.IPv4Address(_CONTAINER + number)) if 0 <= number < _SIZE else address


def answer_to_container(answer: bytes) -> bytes:
    """Map the address in a resolver's answer. Its only record, if any, is an address at the end."""
    if len(answer) < 16 or int.from_bytes(answer[6:8], "big") != 1:
        return answer
    return answer[:-4] + ipaddress.IPv4Address(to_container(str(ipaddress.IPv4Address(answer[-4:])))).packed
