"""The memory of a ready cell, of a small sleeping Python program in a cell, and of an idle session after two steps.

A cell is two processes: its init, and the process that waits for its program or runs it. Figures are private memory in
MB of a million bytes: Private_Clean and Private_Dirty of smaps_rollup. Memory shared with the zygote or between the two
is only in the last column, "in proportion", which divides each page among its processes (Pss). The kernel's own memory
for a process is not included.

Several cells of a kind are ready at once, and each figure is the median, measured when they are idle. If the kernel
hides an init from an ordinary user, its column has a "?" and "together" does not include it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import kernel, looking, measure, ready
from casemate import Limits, Sandbox
from casemate.errors import RuntimeMissing
from casemate.languages.python.runtime import PRELOADED

_GOAL = 5e6  # bytes for each Python cell
_MB = 1e6
_CELLS, _QUICK_CELLS = 8, 2
_LONG = 600.0  # seconds that a measured program sleeps
_MAX_WAIT = 60.0  # seconds until cells are ready and idle
_LOOK_AGAIN = 0.2
_STILL = 3  # successive measurements that must agree
_SLACK = 64 << 10  # bytes by which these may differ
_STEPS = (
    "squares = [n * n for n in range(1000)]\nprint(sum(squares))",
    "words = {str(square): square for square in squares}\nprint(len(words))",
)
_SESSION_STEPS = {
    "python": _STEPS,
    "node": ("const x = [1, 2, 3]; x.length", "console.log(x)"),
    "shell": ("x=1; echo $x", "echo $((x + 1))"),
}
_THEN_SLEEPS = "\n".join((*_STEPS, "import time", "time.sleep(3600)"))


@dataclass(frozen=True, slots=True)
class Kind:
    """Cells of one kind: the name in the table, and a program to make them for.

    ``preload``: the sandbox's option; None for the default.
    """

    name: str
    language: str
    code: str
    preload: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Private bytes of one cell's two processes, and both in proportion. None if the kernel hides a value."""

    init: int | None
    program: int | None
    proportional: int | None

    @property
    def together(self) -> int:
        return (self.init or 0) + (self.program or 0)


_FULL = Kind("Python, everything preloaded", "python", "import numpy, pandas")
KINDS = (Kind("Python", "python", "pass", preload=()), _FULL, Kind("Node", "node", "0"), Kind("Shell", "shell", ":"))


def main() -> None:
    run = measure.Run("idle_memory", __doc__ or "")
    number = run.rounds(_CELLS, _QUICK_CELLS)
    found: dict[str, list[Pair]] = {}
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="casemate-idle-") as folder:
        for kind in KINDS:
            found |= runner.run(_cells(run, kind, f"{folder}/audit.db", number))
        for language, steps in _SESSION_STEPS.items():
            found |= runner.run(_sessions(run, language, steps, f"{folder}/audit.db", number))
    found["bare Python, asleep"] = _bare("import time; time.sleep(3600)", number)
    found["bare Python, two steps, then asleep"] = _bare(_THEN_SLEEPS, number)
    if kernel.missing():
        run.note(f"ipykernel left out: {kernel.missing()} not installed")
    else:
        found["ipykernel, two steps, then idle"] = _kernel()
    _print(run, found)
    run.finish()


# Programs that overlap: the first must still run when the last begins.
_STAYS = {"python": "import time; time.sleep(0.5)", "node": "setTimeout(() => {}, 500)", "shell": "sleep 0.5"}


async def _cells(run: measure.Run, kind: Kind, audit: str, number: int) -> dict[str, list[Pair]]:
    """The memory of ready cells of ``kind``; for Python also of cells with a sleeping program."""
    limits = Limits(wall=_LONG)
    async with Sandbox(audit=audit, concurrency=number, preload=kind.preload, limits=limits) as sandbox:
        try:
            plan = await sandbox.explain(kind.code, language=kind.language)
        except RuntimeMissing as error:
            run.note(f"{kind.name} left out: {error}")
            return {}
        if kind is _FULL and not await _tell_installed(run, sandbox):
            return {}
        sandbox._wall.keep_ready(plan)
        await ready.settled(sandbox)
        async with asyncio.TaskGroup() as group:  # the pool keeps as many cells ready as ran at once
            for _ in range(number):
                group.create_task(sandbox.run(f"{kind.code}\n{_STAYS[kind.language]}", language=kind.language))
        found = {f"{kind.name}, ready": await _at_rest(number)}
        if kind.language == "python":
            found[f"{kind.name}, two steps, then asleep"] = await _asleep(run, sandbox, kind, number)
        return found


async def _tell_installed(run: measure.Run, sandbox: Sandbox) -> bool:
    """Print which of the preloaded modules are installed. True if any is."""
    names = sorted({name.partition(".")[0] for name in PRELOADED})
    code = f"import importlib.util as i\nprint(*(name for name in {names} if i.find_spec(name)))"
    installed = (await sandbox.run(code)).stdout.split()
    if installed:
        run.note(f"everything preloaded: {', '.join(installed)}")
    else:
        run.note(f"{_FULL.name} left out: none of {', '.join(names)} is installed")
    return bool(installed)


async def _asleep(run: measure.Run, sandbox: Sandbox, kind: Kind, number: int) -> list[Pair]:
    """Start a program in each ready cell, and measure the cells while it sleeps."""
    code = f"{_THEN_SLEEPS}  # {kind.code}"  # names the modules that its cell must have
    before = _taken(sandbox)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sandbox.run(code, language=kind.language, timeout=_LONG)) for _ in range(number)]
        await asyncio.sleep(1.0)
        found = await _at_rest(number)
        for task in tasks:
            task.cancel()
    if _taken(sandbox) - before < number:
        run.note(f"{kind.name}: only {_taken(sandbox) - before} of {number} programs began in a cell that was ready")
    return found


def _taken(sandbox: Sandbox) -> int:
    return sum(pool.taken for pool in sandbox._wall.warmth().pools)


async def _sessions(
    run: measure.Run, language: str, steps: tuple[str, ...], audit: str, number: int
) -> dict[str, list[Pair]]:
    """The memory of idle sessions after ``steps``. Python's sessions are forked from the full zygote."""
    name = f"{language.capitalize()} session, two steps, then idle"
    async with Sandbox(audit=audit) as sandbox:
        try:
            await ready.settle_sessions(sandbox)
            ready.keep_zygotes_only(sandbox)
            sessions = [sandbox.session(language) for _ in range(number)]
            for session in sessions:
                for step in steps:
                    (await session.run(step)).raise_for_status()
        except RuntimeMissing as error:
            run.note(f"{name} left out: {error}")
            return {}
        return {name: await _at_rest(number)}


async def _at_rest(number: int) -> list[Pair]:
    """Wait for exactly ``number`` cells with a process besides init and with stable memory. Raises ``RuntimeError``."""
    deadline = time.monotonic() + _MAX_WAIT
    before: list[int] = []
    still = 0
    while still < _STILL:
        if time.monotonic() > deadline:
            raise RuntimeError(f"there were {len(before)} cells instead of {number}, or they did not come to rest")
        await asyncio.sleep(_LOOK_AGAIN)
        pairs = _look()
        now = [pair.together for pair in pairs]
        same = len(now) == len(before) == number and all(
            abs(new - old) <= _SLACK for new, old in zip(now, before, strict=True)
        )
        still, before = still + 1 if same else 0, now
    return _look()


def _look() -> list[Pair]:
    """Every cell of this process with a process besides its init. The supervisor's own ready cells have none."""
    processes = looking.below(os.getpid())
    pairs = []
    for init in (one for one in processes if one.is_init):
        programs = [one for one in processes if one.parent == init.pid and not one.is_init]
        if len(programs) == 1:
            pairs.append(_pair(init.pid, programs[0].pid))
    return pairs


def _pair(init: int, program: int) -> Pair:
    proportions = [_seen(lambda pid: looking.held(pid).memory, pid) for pid in (init, program)]
    both = None if None in proportions else sum(one or 0 for one in proportions)
    return Pair(_seen(looking.private_bytes, init), _seen(looking.private_bytes, program), both)


def _seen(look: Callable[[int], int], pid: int) -> int | None:
    """The result of ``look``; None if the process is hidden or gone."""
    try:
        return look(pid)
    except OSError:
        return None


def _alone(pid: int) -> Pair:
    return Pair(0, looking.private_bytes(pid), looking.held(pid).memory)


def _bare(code: str, number: int) -> list[Pair]:
    """The memory of ``number`` plain processes of the interpreter that run at once."""
    argv = [sys.executable, "-c", code]
    with contextlib.ExitStack() as ends:
        started = []
        for _ in range(number):
            process = ends.enter_context(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
            ends.callback(process.kill)
            started.append(process)
        _rest(lambda: [looking.private_bytes(one.pid) for one in started])
        return [_alone(one.pid) for one in started]


def _kernel() -> list[Pair]:
    running = kernel.Kernel()
    try:
        for step in _STEPS:
            running.execute(step)
        _rest(lambda: [looking.private_bytes(running.pid)])
        return [_alone(running.pid)]
    finally:
        running.close()


def _rest(look: Callable[[], list[int]]) -> None:
    """Wait until the result of ``look`` is stable. The wait is bounded, because this is only the reference."""
    before: list[int] = []
    deadline = time.monotonic() + _MAX_WAIT
    still = 0
    while still < _STILL and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN)
        now = look()
        still, before = still + 1 if now == before else 0, now


def _print(run: measure.Run, found: dict[str, list[Pair]]) -> None:
    heads = ("", "n", "init", "its program", "together", "in proportion", "goal", "")
    rows: list[tuple[str, ...]] = [heads]
    data: list[dict[str, Any]] = []
    for name, pairs in found.items():
        init, program = _median([pair.init for pair in pairs]), _median([pair.program for pair in pairs])
        together, proportional = _median([one.together for one in pairs]), _median([one.proportional for one in pairs])
        has_goal = name.startswith("Python")
        reached = None if not has_goal or init is None or together is None else together <= _GOAL
        goal = f"{_GOAL / _MB:g} MB" if has_goal else ""
        figures = (_text(init) if init != 0 else "", _text(program), _text(together), _text(proportional))
        rows.append((name, str(len(pairs)), *figures, goal, measure.word(reached)))
        figure = {"init": init, "program": program, "together": together, "proportional": proportional}
        data.append({"name": name, "n": len(pairs), **figure, "goal": _GOAL if has_goal else None, "reached": reached})
    run.table("private memory, MB of a million bytes, medians", rows, data)


def _median(values: Sequence[int | None]) -> float | None:
    """The median; None if any value is hidden."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _text(value: float | None) -> str:
    return "?" if value is None else f"{value / _MB:.2f}"


if __name__ == "__main__":
    main()
