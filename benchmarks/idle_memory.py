"""What a cell that is ready holds in memory while it waits, what a small Python program holds that sleeps in one, and
what an idle session holds after two steps.

Private memory, in MB of a million bytes: what smaps_rollup counts as the process's alone (Private_Clean and
Private_Dirty). A cell is two processes, its init and the one that waits for its program, or that runs it. What they
share with the zygote they were forked from, or with each other, is in no column but the last: there a page counts in
each process by its share (Pss), as "in proportion". The kernel's own memory for a process is in none.

A few cells of a kind are ready at once, and each figure is the median. They are looked at when they have come to rest.
Where the kernel does not let an ordinary user look into an init, there is a ? in its column, and "together" lacks it.
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

_GOAL = 5e6  # bytes, of each Python cell
_MB = 1e6
_CELLS, _QUICK_CELLS = 8, 2
_LONG = 600.0  # seconds for a program that sleeps until it was looked at
_MAX_WAIT = 60.0  # seconds until cells are there and at rest
_LOOK_AGAIN = 0.2
_STILL = 3  # looks that must find the same memory
_SLACK = 64 << 10  # bytes between two looks that are the same memory
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
    """Cells of one kind: what the table calls them, and a program that they are made for.

    ``preload``: as the sandbox is told; None for the usual.
    """

    name: str
    language: str
    code: str
    preload: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Private bytes of one cell's two processes, and of both in proportion; None where the kernel hides it."""

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


# A program that is over before the last one begins is not at once with it.
_STAYS = {"python": "import time; time.sleep(0.5)", "node": "setTimeout(() => {}, 500)", "shell": "sleep 0.5"}


async def _cells(run: measure.Run, kind: Kind, audit: str, number: int) -> dict[str, list[Pair]]:
    """What cells of ``kind`` hold while they are ready, and for Python once a program sleeps in each."""
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
        async with asyncio.TaskGroup() as group:  # as many are kept ready as were needed at once
            for _ in range(number):
                group.create_task(sandbox.run(f"{kind.code}\n{_STAYS[kind.language]}", language=kind.language))
        found = {f"{kind.name}, ready": await _at_rest(number)}
        if kind.language == "python":
            found[f"{kind.name}, two steps, then asleep"] = await _asleep(run, sandbox, kind, number)
        return found


async def _tell_installed(run: measure.Run, sandbox: Sandbox) -> bool:
    """Say which of the modules that are preloaded are there; whether any is."""
    names = sorted({name.partition(".")[0] for name in PRELOADED})
    code = f"import importlib.util as i\nprint(*(name for name in {names} if i.find_spec(name)))"
    installed = (await sandbox.run(code)).stdout.split()
    if installed:
        run.note(f"everything preloaded: {', '.join(installed)}")
    else:
        run.note(f"{_FULL.name} left out: none of {', '.join(names)} is installed")
    return bool(installed)


async def _asleep(run: measure.Run, sandbox: Sandbox, kind: Kind, number: int) -> list[Pair]:
    """Begin a program in each cell that is ready, and look at them while it sleeps."""
    code = f"{_THEN_SLEEPS}  # {kind.code}"  # which names the modules that its cell must have
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
    """What idle sessions hold that have gone through ``steps``; those of Python are forked from the full zygote."""
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
    """Exactly so many cells with a process besides their init, once their memory stays what it is. RuntimeError."""
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
    """Every cell of this process's with a process in it besides its init: a ready cell of the supervisor's has none."""
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
    """What ``look`` finds; None where the process is hidden from us, or gone."""
    try:
        return look(pid)
    except OSError:
        return None


def _alone(pid: int) -> Pair:
    return Pair(0, looking.private_bytes(pid), looking.held(pid).memory)


def _bare(code: str, number: int) -> list[Pair]:
    """The same for plain processes of the interpreter, as many at once."""
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
    """Wait until what is found stays what it is; bounded, because it is only a reference."""
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
    """None where any is hidden."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _text(value: float | None) -> str:
    return "?" if value is None else f"{value / _MB:.2f}"


if __name__ == "__main__":
    main()
