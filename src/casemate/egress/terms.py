"""The terms of one cell's egress: what it may reach, its limits, and the services of the host."""

from __future__ import annotations

import concurrent.futures
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from casemate.policy.hosts import HostRules, RequestRules

if TYPE_CHECKING:
    from casemate.egress.authority import Authority
    from casemate.egress.injection import Injection
    from casemate.egress.stream import TcpStream
    from casemate.model.approval import ApprovalVerdict

ADDRESS_RANGE = "198.18.0.0/15"  # no public host uses it (RFC 2544); cells have no other route

# Opens TCP listeners in a cell's network. Returns their descriptors in the given order. Callable from any thread.
Listen = Callable[["Sequence[tuple[str, int]]"], "concurrent.futures.Future[list[int]]"]


class EgressApprovals(Protocol):
    """Answers approval requests for hosts that no rule decides, for one run or step."""

    def decide(self, host: str, port: int, how_often: int) -> concurrent.futures.Future[ApprovalVerdict]:
        """Decide on a connection: request number ``how_often`` for its host and port. Callable from any thread."""


class HostService(Protocol):
    """A service that the host runs for a cell, at ``port`` of a ``name`` beneath ``casemate.internal``."""

    @property
    def name(self) -> str:
        """Canonical name."""

    @property
    def port(self) -> int:
        """The port for its clients."""

    async def serve(self, client: TcpStream) -> None:
        """Serve one client in the proxy's event loop, without blocking it. It is cancelled with the cell; an exception
        ends this client's connection. The service must bound its own input and output."""


@dataclass(frozen=True, slots=True)
class Interception:
    places: frozenset[tuple[str, int]]  # canonical names and ports
    authority: Authority  # signs their certificates; the cell trusts it
    servers: ssl.SSLContext  # for TLS with the servers


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    connections: int = 128  # at once; more wait to be accepted
    bytes: int = 4 << 30  # both ways, in all
    seconds: float = 3600.0  # of one connection
    idle_seconds: float = 300.0  # without a byte
    head_seconds: float = 15.0  # until a request's head or a ClientHello is complete
    resolve_seconds: float = 10.0  # for each name
    connect_seconds: float = 10.0  # for each address
    names: int = 1024  # names that get an address
    listeners: int = 64  # open at once
    queries: int = 1000  # DNS queries per second


@dataclass(frozen=True, slots=True)
class EgressTerms:
    """What one cell may reach."""

    hosts: HostRules = field(default_factory=HostRules)  # including the host's loopback, `host.casemate.internal`
    approvals: EgressApprovals | None = None  # without it, names that no rule allows do not resolve
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    requests: RequestRules = field(default_factory=RequestRules)
    services: tuple[HostService, ...] = ()  # need no rule
    interception: Interception | None = None
    rewrite: Injection | None = None  # applies to requests that are read

    def service(self, name: str, port: int) -> HostService | None:
        """Return the host's service at ``port`` of ``name``, or None."""
        return next((one for one in self.services if (one.name, one.port) == (name, port)), None)

    def intercepts(self, name: str, port: int) -> Interception | None:
        """Return the interception of TLS to the canonical ``name`` at ``port``, or None."""
        found = self.interception
        return found if found is not None and (name, port) in found.places else None
