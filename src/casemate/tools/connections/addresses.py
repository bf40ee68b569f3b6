"""Where the host of a server's URL leads: what is said of it to whoever allows the server, and kept to afterwards."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from casemate.errors import InvalidArgument

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_MOST_ADDRESSES = 16  # of one name
# Where clouds tell a machine its credentials: as their manuals say.
_METADATA = tuple(
    ipaddress.ip_network(network)
    for network in (
        "169.254.169.0/24",
        "169.254.170.0/24",
        "168.63.129.16/32",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "fd00:ec2::/32",
        "fd20:ce::254/128",
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def addresses_of(host: str) -> tuple[str, ...]:
    """The addresses of a host of a URL, as the system's resolver gives them. Blocks. Raises ``OSError``."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))[:_MOST_ADDRESSES]


def place_of(address: str) -> str:
    """What kind of address it is that is not everybody's, such as "loopback"; "" for a public one."""
    number = _number(address)
    if number.is_loopback or number.is_unspecified:  # Linux takes 0.0.0.0 for the machine itself
        return "loopback"
    if number.is_link_local:
        return "link-local"
    if number.is_multicast:
        return "multicast"
    return "" if number.is_global else "private"


def is_metadata(address: str) -> bool:
    """Whether a cloud answers there with a machine's credentials."""
    return any(_number(address) in network for network in _METADATA)


def vetted(host: str, addresses: Iterable[str]) -> dict[str, str]:
    """The places of those of ``addresses`` that are not public. Raises ``InvalidArgument`` for none, and for a cloud's
    metadata."""
    found = tuple(addresses)
    if not found:
        raise InvalidArgument("url", f"{host} has no address")
    if any(is_metadata(address) for address in found):
        raise InvalidArgument("url", f"{host} is where a cloud tells a machine its credentials, which is no MCP server")
    return {address: place for address in found if (place := place_of(address))}


def _number(address: str) -> Address:
    """The address that is meant, also where an IPv4 address is written inside another (RFC 4291, 2.5.5; RFC 6052)."""
    number = ipaddress.ip_address(address)
    if isinstance(number, ipaddress.IPv6Address):
        if number in _NAT64:
            return ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
        return number.ipv4_mapped or number.sixtofour or number
    return number
