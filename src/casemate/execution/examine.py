"""What this machine offers, as proved by the self-tests."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Callable

from casemate.errors import CasemateError, WallUnavailable
from casemate.languages.catalogue import runtimes
from casemate.model.isolation import Diagnosis, LanguageState, WallState, Warmth
from casemate.version import __version__
from casemate.walls.wall import Wall

_LOOK_AGAIN = 0.01
_SETTLED_WITHIN = 15.0  # seconds a zygote may take to load everything


async def examine(wall: Wall, warm_up: Callable[[str], None]) -> Diagnosis:
    """Prove ``wall`` and look for interpreters; ``warm_up`` has cells for programs of a language made ready."""
    walls = []
    warmth = Warmth()
    try:
        walls.append(WallState(wall.name, await wall.prove()))
        warmth = await _wait_until_settled(wall, warm_up)
    except WallUnavailable as error:
        walls.append(WallState(wall.name, None, error.reason, error.message, error.remediation))
    found = [runtime.find_installation() for runtime in runtimes()]
    languages = tuple(LanguageState(one.language, one.version, one.path, one.missing, one.remedy) for one in found)
    system = f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    advice = [one.remedy for one in languages if one.missing]
    for state in walls:
        advice += state.report.missing if state.report else [state.remedy]
    return Diagnosis(__version__, system, tuple(walls), languages, tuple(line for line in advice if line), warmth)


async def _wait_until_settled(wall: Wall, warm_up: Callable[[str], None]) -> Warmth:
    """What is kept ready, once everything that can be is."""
    for runtime in runtimes():
        with contextlib.suppress(CasemateError):  # what is missing is told elsewhere
            warm_up(runtime.language)
    deadline = asyncio.get_running_loop().time() + _SETTLED_WITHIN
    # A state of the wall's own thread, looked at now and then.
    while not (warmth := wall.warmth()).is_settled and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_AGAIN)
    return warmth
