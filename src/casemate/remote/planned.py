"""Plans that a service holds: what programs would call, and running them there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from casemate.api.call_plan import PlannedCall, ProgramPlan
from casemate.remote.following import Run, Ways, run_to_end

if TYPE_CHECKING:
    from casemate.model.execution import Execution


async def plan_program(ways: Ways, start: Callable[[], Awaitable[Run]]) -> ProgramPlan:
    """The plan of a program that ``start`` has the service try out; being cancelled ends that, too."""
    execution = await run_to_end(start)
    told = await ways.call("plans.get", plan=execution.id)
    calls = tuple(PlannedCall(one["server"], one["tool"], one["arguments"]) for one in told["calls"])
    return ProgramPlan(calls, execution, partial(_run, ways, execution.id))


async def _run(ways: Ways, plan: str) -> Execution:
    return await run_to_end(partial(_begin, ways, plan))


async def _begin(ways: Ways, plan: str) -> Run:
    told = await ways.call("plans.run", plan=plan)
    return Run(told["run"], ways)
