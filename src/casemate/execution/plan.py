"""Admitted → Plan: the isolation of this execution as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from casemate.languages.catalogue import runtime_for
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
    from casemate.execution.context import ExecutionContext, Folder
    from casemate.execution.network import CellInterception
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
    """Decide everything about the cell. Raises ``RuntimeMissing`` and ``InvalidArgument``.

    ``intercepted`` is from ``SandboxNetwork.interception_for``; the cell's network needs the same value. ``guarded`` is
    from :func:`casemate.execution.guarding.look`. For a ``session`` the request's code is the interpreter's program.
    """
    request = admitted.request
    runtime = runtime_for(request.language)
    memory = admitted.limits.memory
    launch = context.wall.place(
        runtime.launch(context.environment, request.program_name, request.arguments, memory=memory, session=session)
    )
    trust, entries = trust_for(intercepted, context)
    own = base_env(admitted.limits, trust, is_online=admitted.has_network)
    env = merged_env(own, launch, request.env)
    layer = tuple(Bind(str(folder), place) for folder, place in context.supplies.layer())
    if session or (runtime.packages_of and layer):
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
        workspace=_workspace(context.folder, guarded),
        files=request.files,
        stdin=request.stdin,
        limits=admitted.limits,
        deadline=admitted.deadline,
        control=runtime.reports or session,
        network=network_of(admitted),
        allowed_domains=listed_hosts(admitted),
        listeners=NETWORK_SOCKETS if admitted.has_network or context.supplies.offers() else (),
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
        folder=context.folder.path,
        preload=context.preload,
        session=session,
    )


def network_of(admitted: AdmittedRequest) -> Network:
    """The kind of network, as the plan names it."""
    if admitted.through is None or not admitted.has_network:
        return "none"
    return "public" if admitted.through.everything else "listed"


def listed_hosts(admitted: AdmittedRequest) -> tuple[str, ...]:
    """The hosts that the egress proxy allows without an approval request."""
    return tuple(map(str, admitted.through.allowed)) if admitted.through else ()


def trust_for(
    intercepted: CellInterception | None, context: ExecutionContext
) -> tuple[Mapping[str, str], tuple[Entry, ...]]:
    """Variables and entries that make a cell trust the egress proxy's certificates, if it intercepts TLS."""
    entries = context.wall.system_entries()
    if intercepted is None:
        return {}, entries
    from casemate.egress.authority import VARIABLES, trust_entries

    return VARIABLES, trust_entries(entries, intercepted.folder)


def base_env(
    limits: Limits, trust: Mapping[str, str] = MappingProxyType({}), *, is_online: bool = False
) -> dict[str, str]:
    """The variables of every program, with those of ``trust``. Without a network npm would retry for 70 s."""
    threads = str(max(1, math.floor(limits.cpus)))
    retries = "2" if is_online else "0"
    return {**_BASE_ENV, "npm_config_fetch_retries": retries, **trust, **dict.fromkeys(THREAD_COUNTS, threads)}


def _workspace(folder: Folder, guarded: GuardedPaths | None) -> Workspace:
    if folder.path is None:
        return Workspace("private")
    kind: Literal["overlay", "direct"] = "direct" if folder.mode == "direct" else "overlay"
    assert guarded is not None
    is_reviewed = folder.mode == "review"
    return Workspace(kind, str(folder.path), "", guarded.hidden, guarded.kept, guarded.writable, is_reviewed)
