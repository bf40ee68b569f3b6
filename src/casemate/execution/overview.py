"""A sandbox's languages, statistics and diagnosis."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import dropwhile
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, Unavailable, WallUnavailable
from casemate.languages import catalogue
from casemate.languages.browser import find_browser
from casemate.model.diagnosis import Diagnosis, LanguageState, WallState, Warmth
from casemate.model.overview import RuntimeInfo, Stats, Totals
from casemate.version import __version__, how_to_install
from casemate.walls.machine import look
from casemate.walls.registry import automatic, open_wall
from casemate.walls.wall import Wall

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext, Tally
    from casemate.languages.runtime import LanguageInstallation
    from casemate.model.isolation import Proof


async def runtimes(context: ExecutionContext) -> list[RuntimeInfo]:
    """Every language that casemate knows, with its interpreter or the reason why it has none."""
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


def stats(wall: Wall, queue: tuple[int, int, int], sessions: int, approvals: int, tally: Tally) -> Stats:
    """Statistics of a sandbox; may block. ``queue``: how many executions run, how many wait, and the maximum."""
    zygotes = sum(zygote.state == "ready" for zygote in wall.warmth().zygotes)
    totals = Totals(
        sum(tally.by_status.values()), dict(tally.by_status), tally.cpu_seconds, tally.peak_memory, tally.since
    )
    return Stats(*queue, wall.in_use(), zygotes, sessions, approvals, totals, look())


_LOOK_AGAIN = 0.01
_SETTLED_WITHIN = 15.0  # seconds a zygote may take to load everything


async def examine(wall: Wall, warm_up: Callable[[str], None]) -> Diagnosis:
    """Prove ``wall`` and find interpreters. ``warm_up`` starts to make ready cells for a language."""
    walls = []
    warmth = Warmth()
    try:
        report = await wall.prove()
        warmth = await _wait_until_settled(wall, warm_up)
    except WallUnavailable as error:
        walls += [_refusal_state(name, one) for name, one in wall.refused or [(wall.name, error)]]
    else:
        walls += [*(_refusal_state(name, one) for name, one in wall.refused), WallState(wall.name, report)]
    found = [runtime.find_installation() for runtime in catalogue.runtimes()]
    languages = tuple(LanguageState(one.language, one.version, one.path, one.missing, one.remedy) for one in found)
    system = f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    advice = [one.remedy for one in languages if one.missing]
    for state in walls:
        advice += state.report.missing if state.report else [state.remedy]
    weaker = [*dropwhile(lambda name: name != wall.name, automatic())][1:] if walls[-1].report else ()
    for name in weaker:  # the alternatives
        other = open_wall(name, catalogue.launch_probe, concurrency=1)
        with contextlib.suppress(CasemateError):
            walls.append(WallState(name, await other.prove()))
        await other.close()
    told = tuple(dict.fromkeys(line for line in advice if line))  # two walls may give the same advice
    return Diagnosis(__version__, system, tuple(walls), languages, told, warmth, tuple(_web_states()), look())


def _refusal_state(wall: str, error: WallUnavailable) -> WallState:
    return WallState(wall, None, error.reason, error.message, error.remediation)


def _web_states() -> Iterator[LanguageState]:
    try:
        version = metadata.version("trafilatura")
        yield LanguageState("pages", version, "trafilatura, of casemate[web]")
    except metadata.PackageNotFoundError:
        yield LanguageState("pages", "", "", "trafilatura is not installed", how_to_install("web"))
    try:
        yield LanguageState("browser", "", str(find_browser()[0]))
    except Unavailable as error:
        yield LanguageState("browser", "", "", error.message, error.remediation)


async def examine_alone() -> Diagnosis:
    """Like `examine`, but without a sandbox, and so without ready cells."""
    wall = open_wall("auto", catalogue.launch_probe, concurrency=1)
    try:
        return await examine(wall, lambda _: None)
    finally:
        await wall.close()


async def _wait_until_settled(wall: Wall, warm_up: Callable[[str], None]) -> Warmth:
    for runtime in catalogue.runtimes():
        with contextlib.suppress(CasemateError):  # `examine` reports missing interpreters
            warm_up(runtime.language)
    deadline = asyncio.get_running_loop().time() + _SETTLED_WITHIN
    # The state belongs to the wall's thread, so it is polled.
    while not (warmth := wall.warmth()).is_settled and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_AGAIN)
    return warmth
