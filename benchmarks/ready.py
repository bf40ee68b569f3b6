"""Sandboxes that keep cells ready and sandboxes that do not, for benchmarks that compare them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from casemate import Sandbox
from casemate.execution import pipeline
from casemate.model.plan import Plan

WARM = ("pool", "zygote")  # `execution.isolation.start` of a program that began in a cell which was ready
_PATIENCE = 60.0  # seconds until everything is ready, on a machine under heavy load
_LOOK_AGAIN = 0.01
_REST = 0.3  # seconds: what counts as ready may still be on its last steps


def keep_nothing(sandbox: Sandbox) -> None:
    """From now on the plans of ``sandbox`` alone say that nothing is kept ready, so that its cells begin by exec."""
    house = sandbox._house
    steps: Any = pipeline
    real = steps.make_plan

    def cold_plan(admitted: Any, asking: Any) -> Plan:
        plan: Plan = real(admitted, asking)
        return replace(plan, waiting="this benchmark wants it so") if asking is house else plan

    steps.make_plan = cold_plan


async def settle(sandbox: Sandbox, *languages: str) -> None:
    """Have cells kept ready for ``languages``, all that this sandbox is used for, and wait until they are.

    Raises ``RuntimeError`` when they are not in time.
    """
    sandbox.warm_up(*languages)
    await settled(sandbox)


async def settled(sandbox: Sandbox) -> None:
    """Wait until everything is there that ``sandbox`` wants to keep ready. Raises ``RuntimeError``."""
    deadline = time.monotonic() + _PATIENCE
    # A state of another thread's, looked at now and then.
    while not (warmth := sandbox._wall.warmth()).settled:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not everything was ready within {_PATIENCE:g} s: {warmth}")
        await asyncio.sleep(_LOOK_AGAIN)
    await asyncio.sleep(_REST)
