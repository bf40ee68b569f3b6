"""Which IP addresses are public, and what the other ones are. No other module decides this.

The tables follow IANA's special-purpose registries (RFC 6890 and its successors). They are written out because
``is_global`` differs between versions of Python; both must agree that an address is public.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

METADATA = "a cloud's metadata"  # has a machine's credentials
# Where clouds serve a machine's credentials, according to their manuals.
_CLOUDS = "169.254.169.0/24 169.254.170.0/24 168.63.129.16 100.100.100.200 192.0.0.192 fd00:ec2::/32 fd20:ce::254"
_METADATA = tuple(map(ip_network, _CLOUDS.split()))
# The first match names an address. Linux treats 0.0.0.0 and :: as the machine itself.
_NOT_PUBLIC = tuple(
    (ip_network(network), what)
    for what, networks in (
        ("loopback", "127.0.0.0/8 0.0.0.0 ::1 ::"),
        ("link-local", "169.254.0.0/16 fe80::/10"),
        ("multicast", "224.0.0.0/4 ff00::/8"),
        ("private", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10"),
        ("for documentation", "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20"),
        ("for protocols", "0.0.0.0/8 192.0.0.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.175.48.0/24"),
        ("for protocols", "2001::/23 2002::/16 2620:4f:8000::/48"),  # Teredo and 6to4 among them
        ("for benchmarks, and the cell's own", "198.18.0.0/15"),
        ("reserved", "240.0.0.0/4"),
    )
    for network in networks.split()
)
_PUBLIC_IPV6 = IPv6Network("2000::/3")  # RFC 4291, section 2.4
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
# Private use (RFC 1918), and shared address space (RFC 6598), which clouds and overlay networks also use.
_NAMEABLE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_MOST = 32  # networks of one rule
_MOST_SHOWN = 50  # characters: more than a network has


def place_of(address: str) -> str:
    """The kind of an address that is not public, such as "loopback"; "" for a public one. Raises ``ValueError``.

    An IPv6 address that contains an IPv4 address is never public, and has the kind of that.
    """
    number = ip_address(address)
    inner = _inner_of(number)
    if is_metadata(address):
        return METADATA
    for network, what in _NOT_PUBLIC:
        if (inner or number) in network:
            return what
    is_foreign = isinstance(number, IPv6Address) and (inner is not None or number not in _PUBLIC_IPV6)
    return "" if number.is_global and not is_foreign else "not public"


def is_metadata(address: str) -> bool:
    """Whether a cloud serves a machine's credentials there, including by IPv6. Raises ``ValueError``."""
    number = ip_address(address)
    return any((_inner_of(number) or number) in network for network in _METADATA)


def is_loopback(host: str) -> bool:
    """Whether a URL's host is this machine alone, without DNS."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def why_refused(address: str, only: Sequence[IPv4Network] = ()) -> str | None:
    """Why a cell must not be connected to ``address``; None for public IPv4 in dotted-decimal form.

    ``only``: the private networks that a rule names. Then only addresses in those are permitted, and never metadata.
    """
    try:
        number = IPv4Address(address)
    except ValueError:
        return "not an IPv4 address"
    if only and not is_metadata(address):
        is_named = any(number in one for one in only) and any(number in one for one in _NAMEABLE)
        return None if is_named else "not where the rule says"
    return place_of(address) or None


def is_never_public(text: str) -> bool:
    """Whether no address in the network ``text`` is public. Raises ``ValueError``."""
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and not network.overlaps(_PUBLIC_IPV6):
        return True
    places = *_METADATA, *(one for one, _ in _NOT_PUBLIC)
    return any(network[0] in one and network[-1] in one for one in places)


def private_networks(given: Any) -> tuple[IPv4Network, ...]:
    """The networks in a list of texts such as ``10.20.0.0/16`` and ``10.20.0.5``. Raises ``ValueError``."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not 0 < len(given) <= _MOST:
        raise ValueError(f"write a list of 1 to {_MOST} networks, such as ['10.20.0.0/16']")
    return tuple(map(_network, given))


def overlaps(text: str, networks: Iterable[IPv4Network]) -> bool:
    """Whether the network ``text`` shares addresses with one of ``networks``."""
    network = ip_network(text, strict=False)
    return any(one[0] in network or network[0] in one for one in networks)


def _network(text: Any) -> IPv4Network:
    try:
        found = IPv4Network(text) if isinstance(text, str) else None
    except ValueError as error:
        raise ValueError(f"{text[:_MOST_SHOWN]!r} is not an IPv4 network: {str(error)[-_MOST_SHOWN:]}") from None
    if found is None:
        raise ValueError(f"{text!r:.{_MOST_SHOWN}} is not a text such as '10.20.0.0/16'")
    if not any(found.subnet_of(one) for one in _NAMEABLE):
        raise ValueError(
            f"'{found}' is not in a private network ({', '.join(map(str, _NAMEABLE))}); public addresses need no "
            "rule, allow_local names services of this machine, and all other addresses are refused"
        )
    return found


def _inner_of(number: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside an IPv6 one: mapped, compatible, NAT64, 6to4 or Teredo (RFC 4291, 6052, 3056, 4380)."""
    if isinstance(number, IPv4Address):
        return None
    if number in _NAT64 or (number in _COMPATIBLE and int(number) > 1):
        return IPv4Address(int(number) & 0xFFFFFFFF)
    return number.ipv4_mapped or number.sixtofour or (number.teredo[1] if number.teredo else None)
