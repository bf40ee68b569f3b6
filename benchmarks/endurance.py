"""Ten thousand runs from sixteen tasks in one sandbox, to find lost runs and leaks.

Every run prints a unique number. Before and after, when all is idle, it counts the memory, descriptors and mounts of
the host's process, the supervisor and the zygotes, and all processes and cgroups. The exit code is 1 if a run was lost
or anything was left.
"""

from __future__ import annotations

import asyncio
import collections
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import looking, measure
from casemate import Sandbox

_TASKS = 16
_RUNS, _QUICK_RUNS = 10_000, 300
_WARM_UP = 2_500  # runs before the first count, to fill caches such as SQLite's
_REST = 45.0  # seconds; unused ready cells end sooner
_SLACK = 4 << 20  # bytes of memory that an allocator may keep
_PROGRAMS = {
    "python": "print({n})",
    "shell": "echo {n}",
    "node": "console.log({n})",
}
_TURNS = ("python", "python", "python", "shell", "python", "python", "node", "python", "python", "shell")


def main() -> None:
    run = measure.Run("endurance", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-endurance-") as folder:
        sound = asyncio.run(_endure(run, folder, _QUICK_RUNS if run.quick else _RUNS))
    run.finish()
    sys.exit(0 if sound else 1)


async def _endure(run: measure.Run, folder: str, number: int) -> bool:
    async with Sandbox(audit=f"{folder}/audit.db", concurrency=_TASKS) as sandbox:
        sandbox.warm_up("python", "node", "shell")
        await _crowd(sandbox, _WARM_UP)
        before = await _at_rest(run.quick)
        start = time.perf_counter()
        statuses, starts, wrong = await _crowd(sandbox, number)
        took = time.perf_counter() - start
        after = await _at_rest(run.quick)
    rows: list[tuple[str, ...]] = [("", "runs"), *((f"status {name}", str(count)) for name, count in statuses.items())]
    rows += [(f"started by {name}", str(count)) for name, count in starts.items()]
    rows += [("with another's output, or none", str(wrong)), ("a second", f"{number / took:.0f}")]
    run.table(
        f"{number} runs from {_TASKS} tasks", rows, [dict(statuses), dict(starts), {"wrong": wrong, "seconds": took}]
    )
    grown = _compare(run, before, after)
    return statuses == {"ok": number} and not wrong and not grown


async def _crowd(sandbox: Sandbox, number: int) -> tuple[dict[str, int], dict[str, int], int]:
    statuses: collections.Counter[str] = collections.Counter()
    starts: collections.Counter[str] = collections.Counter()
    wrong = 0
    waiting = iter(range(number))

    async def worker() -> None:
        nonlocal wrong
        for n in waiting:
            language = _TURNS[n % len(_TURNS)]
            execution = await sandbox.run(_PROGRAMS[language].format(n=n), language=language)
            statuses[execution.status] += 1
            starts[f"{execution.isolation.start}, {language}"] += 1
            wrong += execution.stdout != f"{n}\n"

    async with asyncio.TaskGroup() as group:
        for _ in range(_TASKS):
            group.create_task(worker())
    return dict(statuses), dict(starts), wrong


async def _at_rest(quick: bool) -> dict[str, looking.Held]:
    await asyncio.sleep(2 if quick else _REST)
    processes = looking.below(os.getpid())
    found = {"host": looking.held(os.getpid())}
    for nth, one in enumerate(one for one in processes if one.is_supervisor):
        found[f"supervisor {nth}"] = looking.held(one.pid)
    for nth, one in enumerate(one for one in processes if one.is_zygote):
        found[f"zygote {nth}"] = looking.held(one.pid)
    groups = sum(len(looking.groups(one.pid)) for one in processes if one.is_supervisor)
    found["processes, cgroups"] = looking.Held(0, len(processes), groups)
    return found


def _compare(run: measure.Run, before: dict[str, looking.Held], after: dict[str, looking.Held]) -> bool:
    """Print both counts. True if anything grew."""
    rows: list[tuple[str, ...]] = [("", "memory", "after", "descriptors", "after", "mounts", "after")]
    data, grown = [], set(before) != set(after)
    for name, old in before.items():
        new = after.get(name, looking.Held(0, 0, 0))
        figures = (f"{old.memory >> 10} KiB", f"{new.memory >> 10} KiB", old.descriptors, new.descriptors, old.mounts)
        rows.append((name, *map(str, figures), str(new.mounts)))
        data.append({"name": name, "before": str(old), "after": str(new)})
        grown |= new.memory > old.memory + _SLACK or new.descriptors > old.descriptors or new.mounts > old.mounts
    run.table("what is held at rest ('processes, cgroups': their numbers, in the last two pairs)", rows, data)
    return grown


if __name__ == "__main__":
    main()
