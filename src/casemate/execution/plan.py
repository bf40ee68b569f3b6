"""Admitted → Plan: the isolation of this execution as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from casemate.languages.runtime import CELL_PATH, THREAD_COUNTS, merged_env
from casemate.languages.waiting import RequestedProgram
from casemate.model.plan import (
    HOME,
    MODULES,
    NETWORK_SOCKETS,
    NODE_PACKAGES,
    OUTPUT,
    WORKSPACE,
    Bind,
    Entry,
    Launch,
    Network,
    Plan,
    Workspace,
)

if TYPE_CHECKING:
    from casemate.execution.admit import AdmittedRequest
    from casemate.execution.context import ExecutionContext
    from casemate.execution.network import CellInterception
    from casemate.languages.runtime import Runtime
    from casemate.model.limits import Limits
    from casemate.workspace.guarding import GuardedPaths

_BASE_ENV = {
    "PATH": CELL_PATH,
    "PYTHONPATH": MODULES,
    "NODE_PATH": NODE_PACKAGES,
    "HOME": HOME,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TMPDIR": "/tmp",
    "CASEMATE_OUTPUT": OUTPUT,
    "MPLBACKEND": "agg",
}


def plan(
    admitted: AdmittedRequest,
    context: ExecutionContext,
    intercepted: CellInterception | None,
    *,
    session: bool = False,
    guarded: GuardedPaths | None = None,
) -> Plan:
    """Decide everything about the cell. For a ``session`` the request's code is its interpreter. ``intercepted``: what
    ``SandboxNetwork.interception_for`` said, of which the cell's network is told, too. ``guarded``: of a caller's
    folder, as :func:`casemate.execution.guarding.look` finds it.

    Raises ``RuntimeMissing`` and ``InvalidArgument``; starts nothing."""
    request = admitted.request
    runtime = context.runtime_for(request.language)
    launch = _launch_of(runtime, admitted, context, session=session)
    trust, entries = trust_for(intercepted, context)
    own = base_env(admitted.limits, trust, is_online=admitted.has_network)
    env = merged_env(own, launch, request.env)
    layer = _layer(context)
    if session or (runtime.packages_of and context.layer()):
        env |= runtime.session_env(env, request.env)
    secrets = request.secrets.for_program()
    program = _program_to_begin(admitted, context, launch, trust, env, secrets.reveal(), session=session)
    return Plan(
        id=request.id,
        wall=context.wall.name,
        language=request.language,
        entries=(*entries, *launch.entries, *layer),
        argv=launch.argv,
        env=env,
        secrets=secrets,
        cwd=WORKSPACE,
        program_name=request.program_name,
        code=request.code,
        workspace=_workspace(context, guarded),
        files=request.files,
        stdin=request.stdin,
        limits=admitted.limits,
        deadline=admitted.deadline,
        control=runtime.reports or session,
        network=network_of(admitted),
        allowed_domains=listed_hosts(admitted),
        listeners=NETWORK_SOCKETS if admitted.has_network or context.offers() else (),
        session=session,
        reserve=runtime.reserve,
        waiting=runtime.ready_start(program),
    )


def _program_to_begin(
    admitted: AdmittedRequest,
    context: ExecutionContext,
    launch: Launch,
    trust: Mapping[str, str],
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    *,
    session: bool,
) -> RequestedProgram:
    """What is to be begun, for a cell that may be ready."""
    request = admitted.request
    return RequestedProgram(
        launch=launch,
        program_name=request.program_name,
        arguments=request.arguments,
        code=request.code,
        files=request.files,
        env={**env, **secrets},
        given_env={**request.env, **secrets},
        base_env=merged_env(base_env(context.limits, trust), launch, {}),
        limits=admitted.limits,
        most=context.limits,
        folder=context.workspace,
        preload=context.preload,
        session=session,
    )


def _launch_of(runtime: Runtime, admitted: AdmittedRequest, context: ExecutionContext, *, session: bool) -> Launch:
    request, memory = admitted.request, admitted.limits.memory
    return context.wall.place(
        runtime.launch(context.environment, request.program_name, request.arguments, memory=memory, session=session)
    )


def network_of(admitted: AdmittedRequest) -> Network:
    """What the egress proxy lets through, in a word."""
    if admitted.through is None or not admitted.has_network:
        return "none"
    return "public" if admitted.through.everything else "listed"


def listed_hosts(admitted: AdmittedRequest) -> tuple[str, ...]:
    """The hosts that the egress proxy lets through without asking."""
    return tuple(map(str, admitted.through.allowed)) if admitted.through else ()


def trust_for(
    intercepted: CellInterception | None, context: ExecutionContext
) -> tuple[Mapping[str, str], tuple[Entry, ...]]:
    """Variables and entries by which a cell trusts the egress proxy where that ends TLS; else none, and the
    system's."""
    entries = context.wall.system_entries()
    return ({}, entries) if intercepted is None else (intercepted.env(), intercepted.entries(entries))


def base_env(
    limits: Limits, trust: Mapping[str, str] = MappingProxyType({}), *, is_online: bool = False
) -> dict[str, str]:
    """The variables that every program has. ``trust``: those that say whom it trusts. Without a network npm does not
    try again: it would wait 70 s before it says that a name does not exist."""
    threads = str(max(1, math.floor(limits.cpus)))
    retries = "2" if is_online else "0"
    return {**_BASE_ENV, "npm_config_fetch_retries": retries, **trust, **dict.fromkeys(THREAD_COUNTS, threads)}


def _layer(context: ExecutionContext) -> tuple[Entry, ...]:
    """What was installed for all cells, where it is seen."""
    return tuple(Bind(str(folder), place) for folder, place in context.layer())


def _workspace(context: ExecutionContext, guarded: GuardedPaths | None) -> Workspace:
    if context.workspace is None:
        return Workspace("private")
    kind: Literal["overlay", "direct"] = "direct" if context.workspace_mode == "direct" else "overlay"
    assert guarded is not None
    is_reviewed = context.workspace_mode == "review"
    return Workspace(kind, str(context.workspace), "", guarded.hidden, guarded.kept, guarded.writable, is_reviewed)
