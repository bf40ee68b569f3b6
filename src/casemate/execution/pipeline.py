"""The steps of one execution. Each takes the type that the previous one makes, so none can be skipped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from casemate.execution import guarding
from casemate.execution.context import Planned
from casemate.execution.plan import plan as make_plan
from casemate.execution.record import record_execution
from casemate.execution.request import prepare, redaction_of
from casemate.execution.run import loading_the_rest, open_requester, run

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter
    from casemate.execution.context import ExecutionContext
    from casemate.execution.review import RunReview
    from casemate.model.execution import Execution
    from casemate.model.plan import Plan, Request
    from casemate.workspace.guarding import GuardedPaths


async def execute(request: Request, context: ExecutionContext, emitter: Emitter | None = None) -> Execution:
    """Run ``request``. Events go to ``emitter`` as they happen, ``Done`` last. The program's failure is a value; other
    failures raise ``CasemateError``."""
    report = await context.wall.prove()
    await context.supplies.ready()
    admitted = context.admit(request, stream=emitter is not None)
    intercepted = context.sandbox_network.interception_for(admitted)
    plan = make_plan(admitted, context, intercepted, guarded=await guarding.find_guarded(context))
    redaction = await prepare(redaction_of(request.secrets))
    planned = Planned(context, request, admitted, plan, report, intercepted, redaction, emitter)
    async with record_execution(planned) as record:
        before = await _output_before(plan)
        review = _review_of(planned)
        async with open_requester(context, request, emitter, redaction) as requester:
            with loading_the_rest():
                finished = await run(planned, context.wall.start, requester, context.supplies.offers(), before)
        record.note_end(finished.ending.start)
        from casemate.execution.collect import collect
        from casemate.execution.seal import seal

        execution = record.note_execution(seal(await collect(finished, review)))
    if emitter:
        from casemate.model.events import Done

        emitter.emit(Done(execution), 0)
    return execution


def _review_of(planned: Planned) -> RunReview | None:
    if not planned.plan.workspace.reviewed:
        return None
    from casemate.execution.review import RunReview

    return RunReview(planned)


async def _output_before(plan: Plan) -> dict[str, str]:
    if plan.workspace.kind != "direct":
        return {}
    from casemate.execution.gather import output_before

    return await asyncio.to_thread(output_before, plan)


def explain(request: Request, context: ExecutionContext, guarded: GuardedPaths | None = None) -> Plan:
    """The plan of ``request``, without running it. Without ``guarded``, the caller's folder is searched now."""
    admitted = context.admit(request, stream=False)
    found = guarded or guarding.look(context)
    return make_plan(admitted, context, context.sandbox_network.interception_for(admitted), guarded=found)
