"""Private networks that a rule names for a host: it may then be in those, and nowhere else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

# Private use (RFC 1918), and shared address space (RFC 6598), which clouds and overlay networks use alike.
_NAMEABLE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_MOST = 32  # networks of one rule
_LONGEST_TOLD = 50  # characters: more than a network has


def private_networks(given: Any) -> tuple[IPv4Network, ...]:
    """The networks that a list of texts such as ``10.20.0.0/16`` and ``10.20.0.5`` names. Raises ``ValueError``."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not 0 < len(given) <= _MOST:
        raise ValueError(f"write a list of 1 to {_MOST} networks, such as ['10.20.0.0/16']")
    return tuple(map(_network, given))


def is_in(address: IPv4Address, networks: Iterable[IPv4Network]) -> bool:
    """Whether ``address`` is in one of ``networks``, and of those that may be named at all."""
    return any(address in one for one in networks) and any(address in one for one in _NAMEABLE)


def _network(text: Any) -> IPv4Network:
    try:
        found = IPv4Network(text) if isinstance(text, str) else None
    except ValueError as error:
        raise ValueError(f"{text[:_LONGEST_TOLD]!r} is no IPv4 network: {str(error)[-_LONGEST_TOLD:]}") from None
    if found is None:
        raise ValueError(f"{text!r:.{_LONGEST_TOLD}} is no text such as '10.20.0.0/16'")
    if not any(found.subnet_of(one) for one in _NAMEABLE):
        raise ValueError(
            f"'{found}' is not in a private network ({', '.join(map(str, _NAMEABLE))}); public addresses need no "
            "naming, services of this machine are named by allow_local, and others are never dialled"
        )
    return found
