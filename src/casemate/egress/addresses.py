"""Which resolved addresses may be dialled: public IPv4 unicast, or the private ones that a rule names, and none of the
host's own."""

from __future__ import annotations

import errno
import ipaddress
import socket

from casemate.policy.networks import is_in

# Of clouds' machines, where they are told their credentials: refused whatever network a rule names.
_METADATA = tuple(
    (ipaddress.IPv4Network(network), what)
    for network, what in (("100.100.100.200/32", "Alibaba's metadata"), ("168.63.129.16/32", "Azure's metadata"))
)
# IANA's special-purpose registry (RFC 6890 and its successors) and multicast, spelled out because ``is_global`` differs
# from one Python to the next.
_REFUSED = tuple(
    (ipaddress.IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local, cloud metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.31.196.0/24", "for AS112"),
        ("192.52.193.0/24", "for multicast tunnels"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "for AS112"),
        ("198.18.0.0/15", "for benchmarks, and the cell's own"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved, or broadcast"),
    )
)
_NOBODYS = "192.0.2.1"  # for documentation (RFC 5737): no interface has it


def why_refused(address: str, only: tuple[ipaddress.IPv4Network, ...] = ()) -> str | None:
    """Why ``address`` must not be dialled, or None for a public IPv4 address in its usual form of four numbers.
    ``only``: the private networks that a rule names; then None for addresses in those alone.

    IPv6 is not dialled at all, so no form that carries an IPv4 address inside (mapped, NAT64, 6to4, Teredo) is either.
    """
    try:
        number = ipaddress.IPv4Address(address)
    except ValueError:
        return "not an IPv4 address"
    for network, what in _METADATA:
        if number in network:
            return what
    if only:
        return None if is_in(number, only) else "not where the rule says"
    for network, what in _REFUSED:
        if number in network:
            return what
    return None if number.is_global else "not public"


def is_own(address: str) -> bool:
    """Whether ``address`` is one of this host: then, and only then, a socket can be bound to it.

    Where ``net.ipv4.ip_nonlocal_bind`` lets sockets be bound to any address, nothing can be told and everything is
    taken for the host's own.
    """
    return _can_bind(address)


def own_is_unknown() -> bool:
    """Whether this host lets sockets be bound to addresses that it does not have."""
    return _can_bind(_NOBODYS)


def _can_bind(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True
