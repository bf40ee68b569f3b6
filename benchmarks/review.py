"""The time of a diff, and of applying it, for a session that changed ten thousand files of a caller's folder.

Each file has forty lines; one line is changed. The whole call is timed, including the pause of the cell. A diff after
applying everything reads the same files again.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series
from casemate import Limits, Sandbox, allow_all

_FILES, _FOLDERS = 10_000, 100
_CHANGE = f"""
for n in range({_FILES}):
    name = f"{{n % {_FOLDERS}}}/{{n}}.txt"
    lines = open(name).read()
    open(name, "w").write(lines.replace("line 7\\n", "line seven\\n"))
"""
_GOAL = Goal(plus=2.0)


def main() -> None:
    run = measure.Run("review", __doc__ or "")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="casemate-review-") as folder, asyncio.Runner() as runner:
        for _ in range(run.rounds(5, 1)):
            for name, seconds in runner.run(_one(Path(folder))).items():
                found.setdefault(name, []).append(seconds)
    series = [Series(name, tuple(samples), _GOAL if name == "diff" else None) for name, samples in found.items()]
    run.compare(f"{_FILES} changed files", series)
    run.finish()


def _fill(folder: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(40))
    for number in range(_FOLDERS):
        (folder / f"{number}").mkdir(parents=True)
    for number in range(_FILES):
        (folder / f"{number % _FOLDERS}" / f"{number}.txt").write_text(text)


async def _one(folder: Path) -> dict[str, float]:
    workspace = folder / "workspace"
    _fill(workspace)
    took = {}
    limits = Limits(inodes=40_000, wall=600)
    async with Sandbox(
        audit=folder / "audit.db", workspace=workspace, workspace_mode="review", approve=allow_all, limits=limits
    ) as sandbox, sandbox.session() as session:  # fmt: skip
        (await session.run(_CHANGE, timeout=600)).raise_for_status()
        for name, call in (("diff", session.diff), ("apply", session.apply), ("diff afterwards", session.diff)):
            began = time.perf_counter()
            await call()
            took[name] = time.perf_counter() - began
    await asyncio.to_thread(shutil.rmtree, workspace)
    return took


if __name__ == "__main__":
    main()
