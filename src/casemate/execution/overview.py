"""What a sandbox can run, and what goes on in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from casemate.errors import WallUnavailable
from casemate.languages import catalogue
from casemate.model.overview import RuntimeInfo, Stats, Totals

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.execution.tally import Tally
    from casemate.languages.installed import LanguageInstallation
    from casemate.model.isolation import Proof
    from casemate.walls.wall import Wall


async def runtimes(context: ExecutionContext) -> list[RuntimeInfo]:
    """Every language that casemate knows, with what is there for it. Raises nothing for what is missing."""
    installed = await asyncio.to_thread(
        lambda: [runtime.find_installation(context.environment) for runtime in catalogue.runtimes()]
    )
    try:
        report = await context.wall.prove()
    except WallUnavailable as error:
        return [_runtime_info(one, problem=one.missing or error.message, remedy=one.remedy or error.remediation)
                for one in installed]  # fmt: skip
    return [_runtime_info(one, one.missing, one.remedy, report.wall, report.proofs) for one in installed]


def _runtime_info(
    one: LanguageInstallation, problem: str, remedy: str, wall: str = "", proofs: tuple[Proof, ...] = ()
) -> RuntimeInfo:
    known = one.language, not problem, one.version, one.path, one.source
    return RuntimeInfo(*known, problem, remedy if problem else "", wall, proofs)


@dataclass(frozen=True, slots=True)
class Load:
    """How many executions go on and wait, of at most ``concurrency``; open sessions; requests that wait for approval;
    and what came to its end."""

    running: int
    waiting: int
    concurrency: int
    sessions: int
    approvals: int
    tally: Tally


async def stats(wall: Wall, load: Load) -> Stats:
    """What goes on, with what the kernel tells of it."""
    in_use = await asyncio.to_thread(wall.in_use)
    zygotes = sum(zygote.state == "ready" for zygote in wall.warmth().zygotes)
    tally = load.tally
    totals = Totals(
        sum(tally.by_status.values()), dict(tally.by_status), tally.cpu_seconds, tally.peak_memory, tally.since
    )
    queue = load.running, load.waiting, load.concurrency
    return Stats(*queue, in_use, zygotes, load.sessions, load.approvals, totals)
