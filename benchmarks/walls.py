"""A warm Python one-shot and a session's step behind each available wall, against the native wall.

The walls take turns. While other walls run, a wall makes its next ready cell, and a run uses it if it is ready in time.
The docker wall is measured if an engine has the image (docs/how-to/docker.md).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series
from casemate import Sandbox, WallUnavailable
from casemate.sessions.session import Session

_ONE_SHOT = {"landlock": Goal(times=1.3), "docker": Goal(times=3.0)}
_STEP = {"landlock": Goal(times=1.2), "docker": Goal(times=2.0)}
_DOCKER_RUN = ("docker", "run", "--rm", "--network=none", "--entrypoint=python3", "casemate", "-c", "pass")
_GAP = 0.3  # seconds to make another ready cell: a container takes 0.25 s


def main() -> None:
    run = measure.Run("walls", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-walls-") as folder:
        asyncio.run(_measure(run, Path(folder)))
    run.finish()


async def _measure(run: measure.Run, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        walls = {name: await _open(name, folder, run, stack) for name in ("native", "landlock", "docker")}
        sessions = {name: await stack.enter_async_context(one.session()) for name, one in walls.items() if one}
        shots: dict[str, list[float]] = {name: [] for name in sessions}
        steps: dict[str, list[float]] = {name: [] for name in sessions}
        for session in sessions.values():
            await session.run("1")  # its interpreter starts with the first step
        for _ in range(run.rounds(60)):
            for name, session in sessions.items():
                steps[name].append(await _step(session))
        for _ in range(run.rounds(60)):
            for name in sessions:
                await asyncio.sleep(_GAP)
                shots[name].append(await _one_shot(walls[name]))
            if walls["docker"]:
                shots.setdefault("docker run", []).append(await _docker_run())
    run.compare("a Python one-shot", [Series(name, tuple(taken), _ONE_SHOT.get(name)) for name, taken in shots.items()])
    run.compare("a step", [Series(name, tuple(taken), _STEP.get(name)) for name, taken in steps.items()])


async def _open(name: str, folder: Path, run: measure.Run, stack: AsyncExitStack) -> Sandbox | None:
    """A sandbox behind this wall, after a first run. None if the wall is unavailable."""
    sandbox = Sandbox(isolation=name, audit=folder / f"{name}.db")
    stack.push_async_callback(sandbox.close)
    try:
        for _ in range(5):
            await sandbox.run("pass")
            await asyncio.sleep(_GAP)
    except WallUnavailable as error:
        run.note(f"{name}: {error.message}")
        return None
    return sandbox


async def _one_shot(sandbox: Sandbox | None) -> float:
    assert sandbox is not None
    began = time.perf_counter()
    await sandbox.run("pass")
    return time.perf_counter() - began


async def _docker_run() -> float:
    began = time.perf_counter()
    bare = await asyncio.create_subprocess_exec(*_DOCKER_RUN)
    assert await bare.wait() == 0
    return time.perf_counter() - began


async def _step(session: Session) -> float:
    began = time.perf_counter()
    await session.run("1")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
