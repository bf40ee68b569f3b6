"""Sandboxes that keep cells ready and sandboxes that do not, for benchmarks that compare them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from casemate import Sandbox
from casemate.execution import pipeline
from casemate.model.plan import Plan
from casemate.walls.wall import SessionCell, SessionSink

WARM = ("pool", "zygote")  # `execution.isolation.start` of a program that began in a cell which was ready
_MAX_WAIT = 60.0  # seconds until everything is ready, on a machine under heavy load
_LOOK_AGAIN = 0.01
_REST = 0.3  # seconds: what counts as ready may still be on its last steps


def keep_nothing(sandbox: Sandbox) -> None:
    """From now on the plans of ``sandbox`` alone say that nothing is kept ready, so that its cells begin by exec."""
    context, wall = sandbox._context, sandbox._wall
    steps: Any = pipeline
    real, real_open = steps.make_plan, wall.open

    def cold(plan: Plan) -> Plan:
        return replace(plan, waiting="this benchmark wants it so")

    def cold_plan(admitted: Any, asking: Any, *more: Any, **named: Any) -> Plan:
        plan: Plan = real(admitted, asking, *more, **named)
        return cold(plan) if asking is context else plan

    def open_cold(plan: Plan, sink: SessionSink) -> SessionCell:
        return real_open(cold(plan), sink)

    steps.make_plan = cold_plan
    wall.open = open_cold  # type: ignore[method-assign]


def keep_zygotes_only(sandbox: Sandbox) -> None:
    """From now on ``sandbox`` has no cell ready: each is forked when it is asked for. Its zygotes must be there."""
    wall: Any = sandbox._wall
    pools = wall._link.pools
    pools._fill = lambda _pool: None
    with pools._lock:
        for pool in pools._pools.values():
            pools._empty(pool)


async def settle_sessions(sandbox: Sandbox) -> None:
    """Have cells kept ready for Python's sessions, and wait until they are. Raises ``RuntimeError``."""
    async with sandbox.session() as first:
        (await first.run("pass")).raise_for_status()
    await settled(sandbox)


async def settle(sandbox: Sandbox, *languages: str) -> None:
    """Have cells kept ready for ``languages``, all that this sandbox is used for, and wait until they are.

    Raises ``RuntimeError`` when they are not in time.
    """
    sandbox.warm_up(*languages)
    await settled(sandbox)


async def settled(sandbox: Sandbox) -> None:
    """Wait until everything is there that ``sandbox`` wants to keep ready. Raises ``RuntimeError``."""
    deadline = time.monotonic() + _MAX_WAIT
    # A state of another thread's, looked at now and then.
    while not (warmth := sandbox._wall.warmth()).is_settled:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not everything was ready within {_MAX_WAIT:g} s: {warmth}")
        await asyncio.sleep(_LOOK_AGAIN)
    await asyncio.sleep(_REST)
