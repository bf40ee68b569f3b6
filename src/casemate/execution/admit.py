"""May this run, and within which limits? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.errors import InvalidArgument
from casemate.model.call_options import USUAL_TIMES
from casemate.model.limits import LIMIT_BOUNDS, Limits, format_size
from casemate.policy.hosts import narrow_hosts

if TYPE_CHECKING:
    from casemate.model.plan import Request
    from casemate.policy.hosts import HostRules
    from casemate.policy.policy import Policy


class SandboxBounds(NamedTuple):
    """The most that any run of a sandbox may have. ``hosts``: what it may reach; None where there is no network."""

    limits: Limits
    hosts: HostRules | None


class AdmittedRequest(NamedTuple):
    """A request that may run: with the limits in force, and its ``deadline`` in seconds from the cell's start.

    ``through``: what the egress proxy lets through without asking; None where there is none. ``opens``: something may
    be reached, or asked for.
    """

    request: Request
    limits: Limits
    deadline: float
    through: HostRules | None = None
    opens: bool = False

    @property
    def has_network(self) -> bool:
        """Whether the egress proxy opens with the cell. Where a policy allows no host it does, too: what is tried there
        comes to be on record."""
        return self.opens or (self.through is not None and self.through.is_bound)


def admit(request: Request, bounds: SandboxBounds, *, can_ask: bool) -> AdmittedRequest:
    """Narrow the operator's ``bounds`` by what the request asks for; a request never widens them. ``can_ask``: somebody
    may be asked for a host that no rule covers.

    Raises ``InvalidArgument``.
    """
    limits = bounds.limits.narrowed(request.limits)
    deadline = min(limits.wall, deadline_of(bounds.limits, request.timeout))
    if bounds.hosts is None:
        if request.allowed_domains:
            raise InvalidArgument("allowed_domains", "this sandbox has none as network, which lets nothing through")
        return AdmittedRequest(request, limits, deadline)
    hosts = narrow_hosts(bounds.hosts, request.allowed_domains, can_ask=can_ask)
    return AdmittedRequest(request, limits, deadline, hosts, can_ask or hosts.everything or bool(hosts.allowed))


def deadline_of(limits: Limits, timeout: float | None) -> float:
    """Seconds that a run or a step has. Raises ``InvalidArgument`` for more than there may be; a usual timeout, which
    nobody need have asked for, is less then."""
    if timeout is not None and timeout > limits.wall and timeout not in USUAL_TIMES:
        raise InvalidArgument(
            "timeout",
            f"{timeout:g} s is beyond limits.wall, {limits.wall:g} s",
            remediation="Give less; or allow more as limits.wall where the sandbox is made, in its policy, or in the "
            "configuration (CASEMATE_LIMITS_WALL).",
        )
    return limits.wall if timeout is None else min(limits.wall, timeout)


@dataclass(frozen=True, slots=True)
class Cap:
    """The most: ``limits``, and the ``policy`` that may have made them so."""

    limits: Limits
    policy: Policy

    def change(self, now: Limits, given: Mapping[str, Any]) -> Limits:
        """``now`` with what is ``given``. Raises ``InvalidArgument`` for what is no limit, or beyond the most."""
        values = {one.name: getattr(now, one.name) for one in fields(Limits)}
        none_of_its_own = given.get("cpu_time") == 0 and type(given["cpu_time"]) in (int, float)
        wanted = Limits(**{**values, **given, **({"cpu_time": None} if none_of_its_own else {})})
        for name in given:
            most, value = getattr(self.limits, name), getattr(wanted, name)
            if most is not None and (value is None or value > most):
                raise InvalidArgument(
                    f"limits.{name}",
                    f"{_format_limit(name, value)} is beyond the most, {_format_limit(name, most)} "
                    f"({self._origin(name)})",
                    remediation=f"More is allowed as limits.{name} where the sandbox is made, in its policy, or in the "
                    f"configuration (CASEMATE_LIMITS_{name.upper()}).",
                )
        return wanted

    def _origin(self, name: str) -> str:
        """Where the most comes from."""
        if self.policy.limits.get(name) == getattr(self.limits, name):
            return self.policy.where(f"limits.{name}")
        return "what the sandbox was made with"


def _format_limit(name: str, value: float | None) -> str:
    if value is None:
        return "no limit"
    return format_size(int(value)) if LIMIT_BOUNDS[name].form == "size" else f"{value:g}"
