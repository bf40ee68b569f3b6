"""What one cell may reach, and what is told of what it did. Nouns."""

from __future__ import annotations

import concurrent.futures
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from casemate.model.plan import NETWORK_SOCKETS
from casemate.policy.hosts import HostRules, RequestRules

if TYPE_CHECKING:
    from casemate.egress.authority import Authority
    from casemate.egress.injection import Injection
    from casemate.egress.stream import TcpStream
    from casemate.model.approval import ApprovalVerdict

ADDRESS_RANGE = (
    "198.18.0.0/15"  # for benchmarks of networks (RFC 2544): nobody has it, and cells are routed nothing else
)
DNS, PROXY = ((one.address, one.port) for one in NETWORK_SOCKETS)


# Gives descriptors of TCP sockets that listen in a cell's network at addresses and ports, in order. From any thread.
Listen = Callable[["Sequence[tuple[str, int]]"], "concurrent.futures.Future[list[int]]"]


class EgressApprovals(Protocol):
    """Whoever is asked about what no rule decides, for one run or step."""

    def decide(self, host: str, port: int, how_often: int) -> concurrent.futures.Future[ApprovalVerdict]:
        """Whether the connection may be made; ``how_often``: this is the so-manieth to it. From any thread."""


class HostService(Protocol):
    """What the host itself offers in a cell, at ``port`` of a ``name`` beneath ``casemate.internal``."""

    @property
    def name(self) -> str:
        """Canonical."""

    @property
    def port(self) -> int:
        """Where its clients find it."""

    async def serve(self, client: TcpStream) -> None:
        """Serve one client, in the proxy's loop, which nothing may hold up. It is cancelled with the cell; what it
        raises ends this client's connection. What it takes and gives is its own to bound."""


@dataclass(frozen=True, slots=True)
class Interception:
    """Whose TLS ends at the egress proxy. ``places``: canonical names, and ports; ``authority``: makes their
    certificates, which the cell trusts; ``servers``: how TLS is spoken to servers."""

    places: frozenset[tuple[str, int]]
    authority: Authority
    servers: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """How much of the egress proxy one cell may use.

    ``connections`` at once (more wait to be accepted); ``bytes`` both ways, in all; ``seconds`` of one connection, and
    ``idle_seconds`` without a byte; ``head_seconds`` until a request or a ClientHello is whole; ``resolve_seconds`` and
    ``connect_seconds`` for each name and address; ``names`` that get an address, ``listeners`` open for them at once;
    ``queries`` of the DNS a second.
    """

    connections: int = 128
    bytes: int = 4 << 30
    seconds: float = 3600.0
    idle_seconds: float = 300.0
    head_seconds: float = 15.0
    resolve_seconds: float = 10.0
    connect_seconds: float = 10.0
    names: int = 1024
    listeners: int = 64
    queries: int = 1000


@dataclass(frozen=True, slots=True)
class EgressTerms:
    """What one cell may reach. ``approvals`` is None where nobody can be asked: then what no rule allows does not
    resolve. ``hosts`` also say which ports of the host's loopback, under the name ``host.casemate.internal``;
    ``services``: the host's own, which no rule is needed for. ``interception``: whose TLS ends at the egress proxy,
    None for nobody's; ``rewrite``: what is done to requests that are read."""

    hosts: HostRules = field(default_factory=HostRules)
    approvals: EgressApprovals | None = None
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    requests: RequestRules = field(default_factory=RequestRules)
    services: tuple[HostService, ...] = ()
    interception: Interception | None = None
    rewrite: Injection | None = None

    def service(self, name: str, port: int) -> HostService | None:
        """The host's own that is at ``port`` of ``name``."""
        return next((one for one in self.services if (one.name, one.port) == (name, port)), None)

    def intercepts(self, name: str, port: int) -> Interception | None:
        """How, if TLS to the canonical ``name`` at ``port`` ends at the egress proxy."""
        found = self.interception
        return found if found is not None and (name, port) in found.places else None
