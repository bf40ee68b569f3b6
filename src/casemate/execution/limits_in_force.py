"""Limits that are changed while a sandbox is there: within what it was made with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument
from casemate.model.limits import LIMIT_BOUNDS, Limits, format_size

if TYPE_CHECKING:
    from casemate.policy.policy import Policy


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
                    remediation="Whoever makes the sandbox can allow more: Sandbox(limits=Limits(...)), or its policy.",
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
