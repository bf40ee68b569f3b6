"""Controls ready cells of sandboxes, for benchmarks that compare warm and cold starts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from casemate import Sandbox
from casemate.execution import pipeline
from casemate.model.plan import Plan
from casemate.walls.wall import SessionCell, SessionSink

WARM = ("pool", "zygote")  # `execution.isolation.start` of a program that began in a ready cell
_MAX_WAIT = 60.0  # seconds until everything is ready, also under heavy load
_LOOK_AGAIN = 0.01
_REST = 0.3  # seconds: a cell that counts as ready may still do its last steps


def keep_nothing(sandbox: Sandbox) -> None:
    """Make all later cells of ``sandbox`` begin by exec: its plans forbid ready cells. Others are unchanged."""
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
    """Make all later cells of ``sandbox`` be forked on demand. Its zygotes must already run."""
    wall: Any = sandbox._wall
    pools = wall._link.pools
    pools._fill = lambda _pool: None
    with pools._lock:
        for pool in pools._pools.values():
            pools._empty(pool)


async def settle_sessions(sandbox: Sandbox) -> None:
    """Keep cells ready for Python's sessions, and wait for them. Raises ``RuntimeError``."""
    async with sandbox.session() as first:
        (await first.run("pass")).raise_for_status()
    await settled(sandbox)


async def settle(sandbox: Sandbox, *languages: str) -> None:
    """Keep cells ready for ``languages``, which must be all that this sandbox uses, and wait for them.

    Raises ``RuntimeError`` if they are not ready in time.
    """
    sandbox.warm_up(*languages)
    await settled(sandbox)


async def settled(sandbox: Sandbox) -> None:
    """Wait until ``sandbox`` has all the cells that it keeps ready. Raises ``RuntimeError``."""
    deadline = time.monotonic() + _MAX_WAIT
    # Another thread changes this state, so poll it.
    while not (warmth := sandbox._wall.warmth()).is_settled:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not everything was ready within {_MAX_WAIT:g} s: {warmth}")
        await asyncio.sleep(_LOOK_AGAIN)
    await asyncio.sleep(_REST)
