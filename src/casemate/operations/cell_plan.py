"""The plan of a cell as operators see it. Pure.

Each field that they see is named here: nothing that a plan comes to hold is shown because it is there. Not shown are
values of secrets, and what the caller has given itself: the program, contents of files, standard input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from casemate.model.limits import Limits
from casemate.model.plan import Bind, MountPoint, Network, Plan, Shown, Symlink, SynthesizedFile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CellWorkspace:
    """``folder``: the service's own, None for a private one; ``place``: where it appears besides /workspace.
    ``hidden``, ``kept``: paths beneath it that nobody in the cell reads, or changes. ``reviewed``: what changes is kept
    back until somebody allows it."""

    kind: Literal["private", "overlay", "direct"]
    folder: str | None
    place: str
    hidden: tuple[str, ...]
    kept: tuple[str, ...]
    reviewed: bool


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
    entries: tuple[Bind | Symlink | SynthesizedFile | MountPoint, ...]
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


def explain_plan(plan: Plan) -> CellPlan:
    """What of ``plan`` operators see: the fields of these classes, and nothing else."""
    deadline = plan.deadline if math.isfinite(plan.deadline) else None
    waiting = plan.waiting if isinstance(plan.waiting, str) else _copy_fields(CellWait, plan.waiting)
    listeners = tuple(_copy_fields(CellSocket, one) for one in plan.listeners)
    return _copy_fields(
        CellPlan, plan, workspace=_copy_fields(CellWorkspace, plan.workspace), deadline=deadline, listeners=listeners,
        waiting=waiting, secrets=plan.secrets.names, layers=plan.held_by,
    )  # fmt: skip


def _copy_fields(kind: type[T], source: object, **other: Any) -> T:
    """``source`` with the fields that ``kind`` has, and ``other`` values of some of them."""
    names = (one.name for one in fields(kind) if one.name not in other)  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **other)
