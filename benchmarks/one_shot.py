"""A whole one-shot of each language, against a bare start of the same program.

These take turns. Before each, only the library itself runs:

- bare: the smallest program, no pipe and no file (``bash -c true``, ``python -c pass``, ``node -e 0``)
- file: the same program from a file, started the same way, as in casemate's cell
- subprocess: the file by ``asyncio.create_subprocess_exec`` with captured output, as in code without a sandbox
- bwrap: the subprocess in the system's bubblewrap, with all namespaces and the same folders; no limits, filter, record
- casemate, exec: ``await sandbox.run(code)`` without ready cells: plan, record, a fresh cell that starts the program's
  interpreter, output, files, record
- casemate, warm: the same call on a sandbox with ready cells. Every sample comes from a program that began in a ready
  cell. The other things' turns are gaps in which the next cell becomes ready, like the gaps between calls of a caller
  that reads the results. The tables with sixteen at once show calls without gaps.
- ipykernel, a cell (Python, one at a time, if it and jupyter_client are installed): ``pass`` in a running kernel until
  its reply. It isolates nothing: each cell finds what earlier cells left.
- ipykernel, a new one: from the start of a kernel to its first reply, in a few separate rounds

All have the same small environment, because variables such as NODE_EXTRA_CA_CERTS make a bare start slower.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import kernel, measure, ready
from benchmarks.measure import Goal, Series, Thing
from casemate import Sandbox
from casemate.model.plan import Bind, Plan, Symlink

_GOAL = Goal(times=1.6, plus=4e-3)
_WARM_GOALS = {"python": Goal(times=0.25, tail=2.0), "node": Goal(times=0.3), "shell": Goal(times=1.0)}
_AT_ONCE = 16
_WARM_AT_ONCE = {"python": 1.5}  # goal: the rate, as a multiple of the rate of bare starts
_TRIES = 5  # to get a sample from a ready cell
_PROGRAMS = {"shell": ("-c", "true", ".sh"), "python": ("-c", "pass", ".py"), "node": ("-e", "0", ".js")}
_PANDAS = "import pandas"

Once = Callable[[], Coroutine[Any, Any, None]]


class Casemate:
    """Two sandboxes: one without ready cells, one with ready cells for one language.

    Each table gets a new warm sandbox, so that it has no cells for an earlier table. ``starts`` counts how programs of
    the warm sandbox began.
    """

    def __init__(self, runner: asyncio.Runner, folder: str) -> None:
        self.runner = runner
        self.cold = Sandbox(audit=f"{folder}/cold.db", concurrency=_AT_ONCE)
        self._audit = f"{folder}/warm.db"
        self.warm = Sandbox(audit=self._audit, concurrency=_AT_ONCE)
        self.starts: Counter[str] = Counter()
        ready.keep_nothing(self.cold)

    def settle(self, language: str) -> None:
        """Make a new warm sandbox, and wait for its ready cells for ``language``."""
        self.runner.run(self._settle(language))

    async def _settle(self, language: str) -> None:
        await self.warm.close()
        self.warm = Sandbox(audit=self._audit, concurrency=_AT_ONCE)
        await ready.settle(self.warm, language)

    async def close(self) -> None:
        """Close both sandboxes."""
        await self.cold.close()
        await self.warm.close()

    async def by_exec(self, code: str, language: str) -> None:
        """Run ``code`` in a fresh cell. Raises ``RuntimeError`` if it began in a ready cell."""
        execution = await self.cold.run(code, language=language)
        execution.raise_for_status()
        if execution.isolation.start != "exec":
            raise RuntimeError(f"a cell that should be started by exec came from the {execution.isolation.start}")

    async def anyhow(self, code: str, language: str) -> str:
        """Run ``code`` in the warm sandbox. Returns why it did not begin in a ready cell; empty if it did."""
        execution = await self.warm.run(code, language=language)
        execution.raise_for_status()
        self.starts[execution.isolation.start] += 1
        return "" if execution.isolation.start in ready.WARM else execution.isolation.start_reason or "by exec"

    def from_ready(self, code: str, language: str) -> Thing:
        """Time a run that began in a ready cell. Other runs are counted and repeated."""

        async def timed() -> float:
            why = ""
            for _ in range(_TRIES):
                start = time.perf_counter()
                why = await self.anyhow(code, language)
                took = time.perf_counter() - start
                if not why:
                    return took
                await ready.settle(self.warm, language)
            raise RuntimeError(f"no cell was ready for {language}: {why}")

        return lambda: self.runner.run(timed())

    def tell_starts(self, run: measure.Run, what: str, of_others: str) -> None:
        """Print how the programs began, including the warm-up round, and reset the counts.

        ``of_others``: what happened to those that began by exec.
        """
        counts = ", ".join(f"{self.starts[kind]} from the {kind}" for kind in ready.WARM)
        run.note(f"casemate, warm, {what}: {counts}, {self.starts['exec']} by exec{of_others}")
        self.starts.clear()


def main() -> None:
    run = measure.Run("one_shot", __doc__ or "")
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="casemate-one-shot-") as folder:
        ours = Casemate(runner, folder)
        plans = [plan for language in _PROGRAMS if (plan := _plan(runner, ours.warm, language, run)) is not None]
        for plan in plans:
            _one_at_a_time(run, ours, plan, Path(folder))
            _at_once(run, ours, plan, Path(folder))
            if plan.language == "python":
                _with_pandas(run, ours, plan)
        runner.run(ours.close())
    run.finish()


def _plan(runner: asyncio.Runner, sandbox: Sandbox, language: str, run: measure.Run) -> Plan | None:
    """The plan for this language on this machine, for comparable starts. None if the language is missing."""
    from casemate.errors import RuntimeMissing

    try:
        return runner.run(sandbox.explain(_PROGRAMS[language][1], language=language))
    except RuntimeMissing as error:
        run.note(f"{language} left out: {error}")
        return None


def _captured_things(plan: Plan, folder: Path) -> dict[str, Once]:
    """The program from a file with captured output: as a subprocess, and in bubblewrap if installed."""
    _, code, suffix = _PROGRAMS[plan.language]
    file = folder / f"main{suffix}"
    file.write_text(code, encoding="utf-8")
    argv = [plan.argv[0], str(file)]
    captured: dict[str, Once] = {f"subprocess {plan.language}": lambda: _captured(argv)}
    bwrap = shutil.which("bwrap")
    if bwrap:
        wrapped = [bwrap, *_bwrap_options(plan, file), "--", *argv]
        captured[f"bwrap {plan.language}"] = lambda: _captured(wrapped)
    return captured


def _one_at_a_time(run: measure.Run, ours: Casemate, plan: Plan, folder: Path) -> None:
    language = plan.language
    flag, code, suffix = _PROGRAMS[language]
    captured = _captured_things(plan, folder)
    bare, file = [plan.argv[0], flag, code], [plan.argv[0], str(folder / f"main{suffix}")]
    things: dict[str, Thing] = {
        f"bare {language}": lambda: measure.start_and_wait(bare, measure.ENV),
        f"file {language}": lambda: measure.start_and_wait(file, measure.ENV),
    }
    things |= {name: _quiet(ours.runner, once) for name, once in captured.items()}
    things |= _ours(ours, code, language)
    goals = {f"casemate, exec {language}": _GOAL, f"casemate, warm {language}": _WARM_GOALS[language]}
    ours.settle(language)
    rounds = run.rounds(200)
    if language == "python":
        series = _beside_a_kernel(run, things, rounds, goals)
    else:
        series = measure.in_turn(things, rounds, goals)
    run.compare(f"{language}, one at a time", series)
    ours.tell_starts(run, f"{language}, one at a time", " and done again")


def _ours(ours: Casemate, code: str, language: str) -> dict[str, Thing]:
    """casemate by exec and warm."""
    return {
        f"casemate, exec {language}": _quiet(ours.runner, lambda: ours.by_exec(code, language)),
        f"casemate, warm {language}": ours.from_ready(code, language),
    }


def _beside_a_kernel(run: measure.Run, things: dict[str, Thing], rounds: int, goals: dict[str, Goal]) -> list[Series]:
    """Measure ``things`` and a kernel in turn, then a few new kernels. Without ipykernel only ``things``."""
    missing = kernel.missing()
    if missing:
        run.note(f"ipykernel left out: {missing} not installed")
        return measure.in_turn(things, rounds, goals)
    running = kernel.Kernel()
    try:
        series = measure.in_turn({**things, "ipykernel, a cell": lambda: running.execute("pass")}, rounds, goals)
    finally:
        running.close()
    return [*series, *measure.in_turn({"ipykernel, a new one": _new_kernel}, run.rounds(5, 1))]


def _new_kernel() -> float:
    """Seconds from a kernel's start to its first reply, without its end."""
    start = time.perf_counter()
    new = kernel.Kernel()
    took = time.perf_counter() - start
    new.close()
    return took


def _with_pandas(run: measure.Run, ours: Casemate, plan: Plan) -> None:
    """Measure a program whose imports take longer than the start of Python."""
    bare = [plan.argv[0], "-c", _PANDAS]
    try:
        measure.start_and_wait(bare, measure.ENV)
    except RuntimeError:
        run.note(f"pandas left out: {plan.argv[0]} cannot import it")
        return
    things: dict[str, Thing] = {"bare python": lambda: measure.start_and_wait(bare, measure.ENV)}
    ours.settle("python")
    series = measure.in_turn(things | _ours(ours, _PANDAS, "python"), run.rounds(30, 3))
    run.compare(f"python, {_PANDAS}, one at a time", series)
    ours.tell_starts(run, _PANDAS, " and done again")


def _at_once(run: measure.Run, ours: Casemate, plan: Plan, folder: Path) -> None:
    language, crowd = plan.language, 4 * _AT_ONCE
    flag, code, _ = _PROGRAMS[language]
    bare = [plan.argv[0], flag, code]

    async def warm() -> None:
        await ours.anyhow(code, language)

    captured = _captured_things(plan, folder)
    captured[f"casemate, exec {language}"] = lambda: ours.by_exec(code, language)
    captured[f"casemate, warm {language}"] = warm
    ours.settle(language)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        many: dict[str, Thing] = {f"bare {language}": lambda: _bare_crowd(pool, bare, crowd)}
        many |= {name: _crowd(ours.runner, once, crowd) for name, once in captured.items()}
        _throughput(run, language, measure.in_turn(many, run.rounds(10, 1)), crowd)
    ours.tell_starts(run, f"{language}, {_AT_ONCE} at once", ", all counted")


def _quiet(runner: asyncio.Runner, once: Once) -> Thing:
    """Time ``once`` inside the event loop, so that entering the loop is not counted."""

    async def timed() -> float:
        start = time.perf_counter()
        await once()
        return time.perf_counter() - start

    return lambda: runner.run(timed())


def _crowd(runner: asyncio.Runner, once: Once, number: int) -> Thing:
    """Do ``once`` ``number`` times, sixteen at once."""

    async def worker(waiting: list[None]) -> None:
        while waiting:
            waiting.pop()
            await once()

    async def timed() -> float:
        waiting: list[None] = [None] * number
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(worker(waiting))
        return time.perf_counter() - start

    return lambda: runner.run(timed())


def _bare_crowd(pool: ThreadPoolExecutor, argv: list[str], number: int) -> None:
    list(pool.map(lambda _: measure.start_and_wait(argv, measure.ENV), range(number)))


def _throughput(run: measure.Run, language: str, series: list[Series], crowd: int) -> None:
    """Print the samples as rates. A sample is a whole crowd."""
    bare = series[0].median
    rows: list[tuple[str, ...]] = [("", "crowds", "a second", f"x {series[0].name}", "goal", "")]
    data: list[dict[str, Any]] = []
    for one in series:
        rate, ratio = crowd / one.median, bare / one.median
        goal = _WARM_AT_ONCE.get(language) if one.name.startswith("casemate, warm") else None
        told = "" if goal is None else f"{goal:g} x = {goal * crowd / bare:.0f}"
        reached = None if goal is None else ratio >= goal
        rows.append((one.name, str(len(one.seconds)), f"{rate:.0f}", f"{ratio:.2f}", told, measure.word(reached)))
        figures = {"a second": rate, "ratio": ratio, "goal": goal, "reached": reached}
        data.append({"name": one.name, "crowd": crowd, **figures, "seconds": one.seconds})
    run.table(f"{language}, {_AT_ONCE} at once, {crowd} in all", rows, data)


async def _captured(argv: list[str]) -> None:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, env=measure.ENV, stdin=null, stdout=pipe, stderr=pipe)
    _, stderr = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{argv[0]} ended with {process.returncode}: {stderr.decode(errors='replace')[-500:]}")


def _bwrap_options(plan: Plan, file: Path) -> list[str]:
    """Options of bubblewrap for the cell of ``plan``, as far as it supports them."""
    options = ["--unshare-all", "--die-with-parent", "--new-session"]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/workspace", "/home/user"):  # first, because an interpreter may be inside
        options += ["--tmpfs", place]
    for entry in plan.entries:
        if isinstance(entry, Bind) and not entry.device:
            options += ["--ro-bind", entry.source, entry.target]
        elif isinstance(entry, Symlink):
            options += ["--symlink", entry.points_to, entry.target]
    return [*options, "--ro-bind", str(file), str(file), "--chdir", "/workspace"]


if __name__ == "__main__":
    main()
