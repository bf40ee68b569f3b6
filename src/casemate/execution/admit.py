"""Request → AdmittedRequest: whether a request may run, and its limits."""

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


class AdmittedRequest(NamedTuple):
    """A request that may run, with the limits in force."""

    request: Request
    limits: Limits
    deadline: float  # seconds from the cell's start
    through: HostRules | None = None  # hosts allowed without a request; None without a network
    opens: bool = False  # a host can be reached or requested

    @property
    def has_network(self) -> bool:
        """Whether the cell has the egress proxy. A policy without hosts opens it too, to record attempts."""
        return self.opens or (self.through is not None and self.through.is_bound)


def admit(request: Request, most: Limits, hosts: HostRules | None, *, can_ask: bool) -> AdmittedRequest:
    """Narrow the sandbox's limits and hosts by those of the request, which never widens them. Raises
    ``InvalidArgument``. ``can_ask``: an approver can decide on hosts that no rule covers."""
    limits = most.narrowed(request.limits)
    deadline = min(limits.wall, deadline_of(most, request.timeout))
    if hosts is None:
        if request.allowed_domains:
            raise InvalidArgument("allowed_domains", "this sandbox has no network, so no domain can be allowed")
        return AdmittedRequest(request, limits, deadline)
    through = narrow_hosts(hosts, request.allowed_domains, can_ask=can_ask)
    return AdmittedRequest(request, limits, deadline, through, can_ask or through.everything or bool(through.allowed))


def deadline_of(limits: Limits, timeout: float | None) -> float:
    """Seconds for a run or a step. Raises ``InvalidArgument`` for an explicit timeout beyond ``limits.wall``."""
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
    """The largest limits that a caller may set."""

    limits: Limits
    policy: Policy  # may have set them

    def change(self, now: Limits, given: Mapping[str, Any]) -> Limits:
        """``now`` updated with ``given``. Raises ``InvalidArgument`` for a bad value or one beyond the cap."""
        values = {one.name: getattr(now, one.name) for one in fields(Limits)}
        none_of_its_own = given.get("cpu_time") == 0 and type(given["cpu_time"]) in (int, float)
        wanted = Limits(**{**values, **given, **({"cpu_time": None} if none_of_its_own else {})})
        for name in given:
            most, value = getattr(self.limits, name), getattr(wanted, name)
            if most is not None and (value is None or value > most):
                origin = self.policy.where_bound(name, most) or "what the sandbox was made with"
                raise InvalidArgument(
                    f"limits.{name}",
                    f"{_format_limit(name, value)} is beyond the most, {_format_limit(name, most)} ({origin})",
                    remediation=f"More is allowed as limits.{name} where the sandbox is made, in its policy, or in the "
                    f"configuration (CASEMATE_LIMITS_{name.upper()}).",
                )
        return wanted


def _format_limit(name: str, value: float | None) -> str:
    if value is None:
        return "no limit"
    return format_size(int(value)) if LIMIT_BOUNDS[name].form == "size" else f"{value:g}"
