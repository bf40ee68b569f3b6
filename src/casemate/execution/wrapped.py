"""Runs a host command in a cell with the caller's stdin, stdout and stderr. Its output is not captured."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from casemate.execution.admit import AdmittedRequest
from casemate.execution.collect import Collected, collect
from casemate.execution.context import ExecutionContext, Planned
from casemate.execution.network import CellInterception
from casemate.execution.plan import base_env, listed_hosts, network_of, trust_for
from casemate.execution.record import record_execution
from casemate.execution.request import redaction_of
from casemate.execution.run import Begun, Finished, open_requester, run
from casemate.execution.seal import seal
from casemate.model.execution import Execution
from casemate.model.plan import NETWORK_SOCKETS, WORKSPACE, Entry, Plan, Request, Shown, Workspace
from casemate.walls.wall import Cell, Sink, Standard

LANGUAGE = "command"  # in place of a language in the record
_PROGRAM = "command"  # the name of the empty program file in /program


@dataclass(frozen=True, slots=True)
class Wrapped:
    request: Request  # its program is the command's path; a timeout of None is no timeout
    entries: tuple[Entry, ...]  # of the host, visible in the cell
    shown: tuple[Shown, ...]  # likewise
    folders: tuple[str, ...]  # its PATH
    workspace: Workspace
    cwd: str  # in the cell
    reserve: int  # as in `Plan`
    heap: bool  # whether Node needs a limit for its heap


def plan_of(
    wrapped: Wrapped, admitted: AdmittedRequest, context: ExecutionContext, intercepted: CellInterception | None
) -> Plan:
    """Decide everything about the cell. Its network needs the same ``intercepted``."""
    request, limits = wrapped.request, admitted.limits
    trust, entries = trust_for(intercepted, context)
    env = base_env(limits, trust, is_online=admitted.opens)
    del env["CASEMATE_OUTPUT"]  # a command has no artifacts
    env["PATH"] = ":".join(dict.fromkeys(wrapped.folders))
    if wrapped.heap:
        if not admitted.opens:
            env["npm_config_offline"] = "true"  # otherwise npx contacts its registry before it uses its cache
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
    """Admit the command. ``longest``: the operator's bound in seconds; None is no bound. Raises ``InvalidArgument``."""
    made = context.admit(replace(wrapped.request, timeout=None), stream=False)  # limits.wall does not apply to commands
    given = [seconds for seconds in (wrapped.request.timeout, longest) if seconds is not None]
    return made._replace(request=wrapped.request, deadline=min(given, default=math.inf))


async def execute(
    wrapped: Wrapped,
    within: AdmittedRequest,
    context: ExecutionContext,
    standard: Standard,
    begun: Callable[[Begun], None],
    find_new_names: Callable[[], list[str]] = list,
) -> Execution:
    """Run the command with ``standard`` as its streams. ``begun`` is called when the cell has copies of them.
    ``find_new_names`` finds new names in the folder that tools act on, for the record.

    The command's failure or a limit is a value; other failures raise ``CasemateError``. Cancelling ends the cell.
    """
    report = await context.wall.prove()
    intercepted = context.sandbox_network.interception_for(within)
    plan = plan_of(wrapped, within, context, intercepted)
    request, redaction = wrapped.request, redaction_of(wrapped.request.secrets)
    planned = Planned(context, request, within, plan, report, intercepted, redaction)

    def start(plan: Plan, sink: Sink) -> Cell:  # noqa: ARG001 - as for `Wall.start`
        return context.wall.start_piped(plan, standard)

    async with record_execution(planned) as record:
        try:
            async with open_requester(context, request, None, redaction) as requester:
                finished = await run(planned, start, requester, begun=begun)
            return record.note_execution(seal(await _collect(finished)))
        finally:  # even if the command is killed
            if names := await asyncio.to_thread(find_new_names):
                record.more["new_names"] = [redaction.text(name) if redaction else name for name in names]


async def _collect(finished: Finished) -> Collected:
    """Apply the changes of an overlay to the caller's folder. Only a private workspace has artifacts."""
    if (kind := finished.planned.plan.workspace.kind) != "direct":
        collected = await collect(finished)
        return collected if kind == "private" else collected._replace(artifacts=())
    os.close(finished.ending.tree_fd)
    return Collected(finished)


def cwd_in_cell(folder: str, place: str, cwd: str) -> str:
    """The path of the host's ``cwd`` in a cell that has ``folder`` at ``place``; the folder's if it is outside."""
    base = place or WORKSPACE
    inside = cwd.removeprefix(folder).strip("/") if f"{cwd}/".startswith(f"{folder}/") else ""
    return f"{base}/{inside}" if inside else base
