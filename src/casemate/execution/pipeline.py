"""One execution: the list of its steps. Each takes what the one before made, so none can be skipped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from casemate.execution import guarding
from casemate.execution.network import CellNetwork, make_recorder
from casemate.execution.plan import plan as make_plan
from casemate.execution.record import record_execution
from casemate.execution.request import prepare, redaction_of
from casemate.execution.run import RunNetwork, loading_the_rest, open_requester, run
from casemate.model.plan import Plan, ReadyStart

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter
    from casemate.execution.context import ExecutionContext
    from casemate.execution.review import RunReview
    from casemate.model.execution import Execution
    from casemate.model.isolation import IsolationReport
    from casemate.model.plan import Request
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import CellEnding, SessionCell
    from casemate.workspace.guarding import GuardedPaths


async def execute(request: Request, context: ExecutionContext, emitter: Emitter | None = None) -> Execution:
    """Run ``request`` and give its outcome; events go to ``emitter`` as they happen, ``Done`` last.

    Raises ``CasemateError`` for what is not the program's doing; the program's failure is a value.
    """
    report = await context.wall.prove()
    await context.ready()
    admitted = context.admit(request, stream=emitter is not None)
    intercepted = context.sandbox_network.interception_for(admitted)
    plan = make_plan(admitted, context, intercepted, guarded=await guarding.find_guarded(context))
    redaction = await prepare(redaction_of(request.secrets))
    async with record_execution(context, request, plan, redaction) as record:
        before = await _output_before(plan)
        review = _review_of(plan, context, request, emitter, redaction)
        async with open_requester(context, request, emitter, redaction) as requester:
            note = make_recorder(context.log, request, redaction)
            network_of = partial(
                CellNetwork, context.sandbox_network, admitted, intercepted, note=note, offers=context.offers()
            )
            run_network = RunNetwork(requester, network_of, asks=context.may_ask(stream=emitter is not None))
            with loading_the_rest():
                finished = await run(plan, context.wall.start, emitter, before, run_network, redaction)
        record.note_end(finished.ending.start)
        from casemate.execution.collect import collect
        from casemate.execution.seal import seal

        collected = await collect(finished, context, review)
        execution = record.note_execution(seal(collected, request, report_for(plan, context, report, finished.ending)))
    if emitter:
        from casemate.model.events import Done

        emitter.emit(Done(execution), 0)
    return execution


def _review_of(
    plan: Plan, context: ExecutionContext, request: Request, emitter: Emitter | None, redaction: Redaction | None
) -> RunReview | None:
    if not plan.workspace.reviewed:
        return None
    from casemate.execution.review import RunReview

    return RunReview(context, request, emitter, redaction)


async def _output_before(plan: Plan) -> dict[str, str]:
    if plan.workspace.kind != "direct":
        return {}
    from casemate.execution.gather import output_before

    return await asyncio.to_thread(output_before, plan)


_DIRECT = (
    "The workspace is written through: what is in it can be changed at once, also names that others run later, "
    "setuid bits excepted; sockets of the host that lie in it can be reached; its size is not limited."
)


_SIBLINGS = (
    "The cell was forked from a warmed interpreter: where its memory lies and how str values hash, it has in common "
    "with other cells of this environment."
)


def report_for(
    plan: Plan, context: ExecutionContext, report: IsolationReport, ending: CellEnding | SessionCell
) -> IsolationReport:
    """The wall's report with what this plan, this sandbox and this cell add to it."""
    notes = (*report.notes, *context.approvals().notes)
    if plan.workspace.kind == "direct":
        notes = (*notes, _DIRECT)
    if plan.workspace.hidden:
        notes = (*notes, guarding.note_of(plan.workspace.hidden))
    if ending.start != "exec" and isinstance(plan.waiting, ReadyStart) and plan.waiting.preload is not None:
        notes = (*notes, _SIBLINGS)
    return replace(report, notes=notes, start=ending.start, start_reason=ending.start_reason)


def explain(request: Request, context: ExecutionContext, guarded: GuardedPaths | None = None) -> Plan:
    """The plan of ``request``, without running anything. ``guarded``: of a caller's folder, which is looked at now
    unless that was done."""
    admitted = context.admit(request, stream=False)
    found = guarded or guarding.look(context)
    return make_plan(admitted, context, context.sandbox_network.interception_for(admitted), guarded=found)
