"""The plan of a cell as it is told to an operator. Pure.

What is told is named here, one by one: nothing that a plan comes to hold is told because it is there. Not told are
values of secrets, and what the caller has given itself: the program, contents of files, standard input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from casemate.model.limits import Limits
from casemate.model.plan import Bind, Link, Network, Place, Plan, Shown, Text, Waiting


@dataclass(frozen=True, slots=True)
class CellWorkspace:
    """``folder``: the service's own, None for a private one; ``place``: where it appears besides /workspace.
    ``hidden``, ``kept``: paths beneath it that nobody in the cell reads, or changes."""

    kind: Literal["private", "overlay", "direct"]
    folder: str | None
    place: str
    hidden: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellSocket:
    """Where the host answers in a cell's network."""

    kind: Literal["tcp", "udp"]
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class CellWait:
    """How the program is begun in a process that waits: its command and variables, the limits that it is made with, the
    ``preload`` of the zygote that it is forked from, and the bytes that one holds (``cost``)."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: Limits
    cost: int
    preload: tuple[str, ...] | None
    optional: bool
    stamp: tuple[int, ...]
    fuller: tuple[str, ...]
    fuller_cost: int


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What is decided before a cell starts. Paths are those of the machine that casemate runs on (``source``) and of
    the cell (``target``). ``deadline``: seconds, None for no bound; ``secrets``: names; ``waiting``: how it may be
    begun in a cell that is ready, or why not."""

    id: str
    wall: str
    language: str
    entries: tuple[Bind | Link | Text | Place, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    program_name: str
    workspace: CellWorkspace
    limits: Limits
    deadline: float | None
    control: bool
    reserve: int
    network: Network
    allowed_domains: tuple[str, ...]
    listeners: tuple[CellSocket, ...]
    layers: tuple[str, ...]
    waiting: CellWait | str
    session: bool
    continues: str
    secrets: tuple[str, ...]
    shown: tuple[Shown, ...]


def explained(plan: Plan) -> CellPlan:
    """What of ``plan`` is told."""
    workspace = plan.workspace
    return CellPlan(
        id=plan.id,
        wall=plan.wall,
        language=plan.language,
        entries=plan.entries,
        argv=plan.argv,
        env=plan.env,
        cwd=plan.cwd,
        program_name=plan.program_name,
        workspace=CellWorkspace(workspace.kind, workspace.folder, workspace.place, workspace.hidden, workspace.kept),
        limits=plan.limits,
        deadline=plan.deadline if math.isfinite(plan.deadline) else None,
        control=plan.control,
        reserve=plan.reserve,
        network=plan.network,
        allowed_domains=plan.allowed_domains,
        listeners=tuple(CellSocket(one.kind, one.address, one.port) for one in plan.listeners),
        layers=plan.layers,
        waiting=_waiting(plan.waiting),
        session=plan.session,
        continues=plan.continues,
        secrets=plan.secrets.names,
        shown=plan.shown,
    )


def _waiting(waiting: Waiting | str) -> CellWait | str:
    """All but its order, in which the program's own variables are, secrets among them."""
    if isinstance(waiting, str):
        return waiting
    return CellWait(
        waiting.argv, waiting.env, waiting.limits, waiting.cost, waiting.preload, waiting.optional, waiting.stamp,
        waiting.fuller, waiting.fuller_cost,
    )  # fmt: skip
