"""May this run, and within which limits? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from casemate.errors import InvalidArgument
from casemate.policy.hosts import narrow_hosts

if TYPE_CHECKING:
    from casemate.model.limits import Limits
    from casemate.model.plan import Request
    from casemate.policy.hosts import HostRules


class SandboxBounds(NamedTuple):
    """The most that any run of a sandbox may have. ``hosts``: what it may reach; None where there is no network."""

    limits: Limits
    hosts: HostRules | None


class AdmittedRequest(NamedTuple):
    """A request that may run: with the limits in force, and its ``deadline`` in seconds from the cell's start.

    ``through``: what the egress proxy lets through without asking; None where there is none. ``opens``: it opens with
    the cell.
    """

    request: Request
    limits: Limits
    deadline: float
    through: HostRules | None = None
    opens: bool = False


def admit(request: Request, bounds: SandboxBounds, *, can_ask: bool) -> AdmittedRequest:
    """Narrow the operator's ``bounds`` by what the request asks for; a request never widens them. ``can_ask``: somebody
    may be asked for a host that no rule covers.

    Raises ``InvalidArgument``.
    """
    limits = bounds.limits.narrowed(request.limits)
    deadline = limits.wall if request.timeout is None else min(limits.wall, request.timeout)
    if bounds.hosts is None:
        if request.allowed_domains:
            raise InvalidArgument("allowed_domains", "this sandbox has network='none', which lets nothing through")
        return AdmittedRequest(request, limits, deadline)
    hosts = narrow_hosts(bounds.hosts, request.allowed_domains, can_ask=can_ask)
    return AdmittedRequest(request, limits, deadline, hosts, can_ask or hosts.everything or bool(hosts.allowed))
