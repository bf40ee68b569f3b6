"""May this run, and within which limits? Pure."""

from __future__ import annotations

from dataclasses import dataclass

from casemate.model.limits import Limits
from casemate.model.request import Request
from casemate.policy.hosts import HostRules
from casemate.policy.narrowing import narrowed


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that any run of a sandbox may have. ``can_ask``: somebody may be asked for a host that no rule has."""

    limits: Limits
    hosts: HostRules
    can_ask: bool


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may run: with the limits in force, and its ``deadline`` in seconds from the cell's start.

    ``through``: what its door lets through; None where it has no door.
    """

    request: Request
    limits: Limits
    deadline: float
    through: HostRules | None = None


def admit(request: Request, bounds: Bounds) -> Admitted:
    """Narrow the operator's ``bounds`` by what the request asks for; a request never widens them.

    Raises ``InvalidArgument``.
    """
    limits = bounds.limits.narrowed(request.limits)
    deadline = limits.wall if request.timeout is None else min(limits.wall, request.timeout)
    hosts = narrowed(bounds.hosts, request.allowed_domains, can_ask=bounds.can_ask)
    is_door = bounds.can_ask or hosts.everything or bool(hosts.allowed)
    return Admitted(request, limits, deadline, hosts if is_door else None)
