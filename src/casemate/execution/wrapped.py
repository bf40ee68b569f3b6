"""A command of the host's in a cell, its standard streams its caller's: the steps of an execution, but for what it
says, which nobody here hears."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from casemate.execution.admit import AdmittedRequest
from casemate.execution.collect import Collected, collect
from casemate.execution.context import ExecutionContext
from casemate.execution.network import CellInterception, CellNetwork, make_recorder
from casemate.execution.pipeline import report_for
from casemate.execution.plan import base_env, listed_hosts, network_of, trust_for
from casemate.execution.record import record_execution
from casemate.execution.request import redaction_of
from casemate.execution.run import Finished, RunNetwork, open_requester, run
from casemate.execution.seal import seal
from casemate.model.execution import Execution
from casemate.model.plan import NETWORK_SOCKETS, WORKSPACE, Entry, Plan, Request, Shown, Workspace
from casemate.walls.wall import Cell, Sink, Standard

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester

LANGUAGE = "command"  # what the record has in the place of a language
_PROGRAM = "command"  # the name of the file that a program without text leaves in /program


@dataclass(frozen=True, slots=True)
class Wrapped:
    """``request``: whose program is the command's path, and whose timeout None is none at all; ``entries`` and
    ``shown``: what of the host it sees; ``folders``: its PATH; ``cwd``: where it begins, in the cell; ``reserve``: as
    of a :class:`casemate.model.plan.Plan`; ``heap``: whether Node must be told how large its heap may be."""

    request: Request
    entries: tuple[Entry, ...]
    shown: tuple[Shown, ...]
    folders: tuple[str, ...]
    workspace: Workspace
    cwd: str
    reserve: int
    heap: bool


class Begun(NamedTuple):
    """A command that runs: its cell, who asks for it, and its network."""

    cell: Cell
    requester: Requester
    network: CellNetwork


def plan_of(
    wrapped: Wrapped, admitted: AdmittedRequest, context: ExecutionContext, intercepted: CellInterception | None
) -> Plan:
    """Decide everything about the cell. ``intercepted``: what its network is told, too."""
    request, limits = wrapped.request, admitted.limits
    trust, entries = trust_for(intercepted, context)
    env = base_env(limits, trust, is_online=admitted.opens)
    del env["CASEMATE_OUTPUT"]  # files of a command are its own affair
    env["PATH"] = ":".join(dict.fromkeys(wrapped.folders))
    if wrapped.heap:
        if not admitted.opens:
            env["npm_config_offline"] = "true"  # else npx asks its registry before it looks at its cache
        env["NODE_OPTIONS"] = f"--max-old-space-size={max(16, (limits.memory * 3 // 4) >> 20)}"
    return Plan(
        id=request.id,
        wall=context.wall.name,
        language=LANGUAGE,
        entries=(*entries, *wrapped.entries),
        argv=(request.program_name, *request.arguments),
        env={**env, **request.env},
        cwd=wrapped.cwd,
        program_name=_PROGRAM,
        code=b"",
        workspace=wrapped.workspace,
        files={},
        stdin=b"",
        limits=limits,
        deadline=admitted.deadline,
        control=False,
        reserve=wrapped.reserve,
        network=network_of(admitted),
        allowed_domains=listed_hosts(admitted),
        listeners=NETWORK_SOCKETS if admitted.has_network else (),
        waiting="its standard streams are its caller's",
        secrets=request.secrets.for_program(),
        shown=wrapped.shown,
    )


def admit_wrapped(wrapped: Wrapped, context: ExecutionContext, longest: float | None) -> AdmittedRequest:
    """Whether it may run, and within which bounds. ``longest``: seconds that an operator allows; None is no bound.

    Raises ``InvalidArgument``.
    """
    made = context.admit(replace(wrapped.request, timeout=None), stream=False)  # limits.wall is of programs
    given = [seconds for seconds in (wrapped.request.timeout, longest) if seconds is not None]
    return made._replace(request=wrapped.request, deadline=min(given, default=math.inf))


async def execute(
    wrapped: Wrapped,
    within: AdmittedRequest,
    context: ExecutionContext,
    standard: Standard,
    begun: Callable[[Begun], None],
    find_new_names: Callable[[], list[str]] = list,
    *,
    asks: bool = False,
) -> Execution:
    """Run the command to its end, with ``standard`` as its streams; ``begun`` is called when its cell has copies of
    them. ``find_new_names``: afterwards, of what appeared in the folder and tools act on; goes on record. ``asks``:
    about hosts that no rule covers.

    Its failure and a limit are values; raises ``CasemateError`` for the rest. Cancelling ends the cell.
    """
    report = await context.wall.prove()
    intercepted = context.sandbox_network.interception_for(within)
    plan = plan_of(wrapped, within, context, intercepted)
    request = wrapped.request
    redaction = redaction_of(request.secrets)

    def start(plan: Plan, sink: Sink) -> Cell:  # noqa: ARG001 - as of `Wall.start`
        return context.wall.start_piped(plan, standard)

    async with record_execution(context, request, plan, redaction) as record:
        try:
            async with open_requester(context, request, None, redaction) as requester:
                note = make_recorder(context.log, request, redaction)

                def network_of(cell: Cell) -> CellNetwork:
                    network = CellNetwork(context.sandbox_network, within, intercepted, cell, note, ())
                    begun(Begun(cell, requester, network))
                    return network

                finished = await run(plan, start, None, {}, RunNetwork(requester, network_of, asks), redaction)
            collected = await _collect(finished, context)
            return record.note_execution(seal(collected, request, report_for(plan, context, report, finished.ending)))
        finally:  # a command that is ended by force, too
            if names := await asyncio.to_thread(find_new_names):
                record.more["new_names"] = [redaction.text(name) if redaction else name for name in names]


async def _collect(finished: Finished, context: ExecutionContext) -> Collected:
    """What it changed is applied to a folder that it saw through an overlay; artifacts are in a private one alone."""
    if (kind := finished.plan.workspace.kind) != "direct":
        collected = await collect(finished, context)
        return collected if kind == "private" else collected._replace(artifacts=())
    os.close(finished.ending.tree_fd)
    return Collected(finished, (), (), complete=True)


def cwd_in_cell(folder: str, place: str, cwd: str) -> str:
    """Where ``cwd`` of the host is in a cell that has ``folder`` at ``place``; elsewhere it is the folder."""
    base = place or WORKSPACE
    inside = cwd.removeprefix(folder).strip("/") if f"{cwd}/".startswith(f"{folder}/") else ""
    return f"{base}/{inside}" if inside else base
