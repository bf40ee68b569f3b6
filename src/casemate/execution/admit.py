"""May this run, and within which limits? Pure."""

from __future__ import annotations

from dataclasses import dataclass

from casemate.model.limits import Limits
from casemate.model.request import Request


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may run: with the limits in force, and its ``deadline`` in seconds from the cell's start."""

    request: Request
    limits: Limits
    deadline: float


def admit(request: Request, limits: Limits) -> Admitted:
    """Narrow the operator's ``limits`` by what the request asks for; a request never widens them."""
    narrowed = limits.narrowed(request.limits)
    deadline = narrowed.wall if request.timeout is None else min(narrowed.wall, request.timeout)
    return Admitted(request, narrowed, deadline)
