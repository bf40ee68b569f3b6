"""A whole one-shot of each language, against a bare start of the same program.

The things that take turns, all with nothing running before but the library itself:

- bare: the smallest program, no pipe and no file (``bash -c true``, ``python -c pass``, ``node -e 0``)
- file: the same from a file, started the same way: what casemate's program does once it runs
- subprocess: the file by ``asyncio.create_subprocess_exec``, its output captured: what one writes without a sandbox
- bwrap: that, in the system's bubblewrap with all namespaces and the same folders bound; no limits, filter or record
- casemate: ``await sandbox.run(code)``: plan, record, a fresh cell, output, files, record

All have the same small environment: variables such as NODE_EXTRA_CA_CERTS make a bare start slower.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series, Thing
from casemate import Sandbox
from casemate.model.plan import Bind, Link, Plan

_GOAL = Goal(times=1.6, plus=4e-3)
_AT_ONCE = 16
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC"}
_PROGRAMS = {"shell": ("-c", "true", ".sh"), "python": ("-c", "pass", ".py"), "node": ("-e", "0", ".js")}

Once = Callable[[], Coroutine[Any, Any, None]]


def main() -> None:
    run = measure.Run("one_shot", __doc__ or "")
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="casemate-one-shot-") as folder:
        sandbox = Sandbox(audit=f"{folder}/audit.db", concurrency=_AT_ONCE)
        for language in _PROGRAMS:
            plan = _plan(runner, sandbox, language, run)
            if plan is not None:
                _measure(run, runner, sandbox, plan, Path(folder))
        runner.run(sandbox.close())
    run.finish()


def _plan(runner: asyncio.Runner, sandbox: Sandbox, language: str, run: measure.Run) -> Plan | None:
    """How casemate starts this language here, which says what to compare with; None where the language is missing."""
    from casemate.errors import RuntimeMissing

    try:
        return runner.run(sandbox.explain(_PROGRAMS[language][1], language=language))
    except RuntimeMissing as error:
        run.note(f"{language} left out: {error}")
        return None


def _measure(run: measure.Run, runner: asyncio.Runner, sandbox: Sandbox, plan: Plan, folder: Path) -> None:
    flag, code, suffix = _PROGRAMS[plan.language]
    program = plan.argv[0]
    file = folder / f"main{suffix}"
    file.write_text(code, encoding="utf-8")
    argv = [program, str(file)]

    async def casemate() -> None:
        (await sandbox.run(code, language=plan.language)).raise_for_status()

    captured: dict[str, Once] = {f"subprocess {plan.language}": lambda: _captured(argv)}
    bwrap = shutil.which("bwrap")
    if bwrap:
        wrapped = [bwrap, *_bwrap_options(plan, file), "--", *argv]
        captured[f"bwrap {plan.language}"] = lambda: _captured(wrapped)
    captured[f"casemate {plan.language}"] = casemate
    bare = [program, flag, code]
    things: dict[str, Thing] = {
        f"bare {plan.language}": lambda: measure.start_and_wait(bare, _ENV),
        f"file {plan.language}": lambda: measure.start_and_wait(argv, _ENV),
    }
    things |= {name: _quiet(runner, once) for name, once in captured.items()}
    goals = {f"casemate {plan.language}": _GOAL}
    run.compare(f"{plan.language}, one at a time", measure.in_turn(things, run.rounds(200), goals))

    crowd = 4 * _AT_ONCE
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        many: dict[str, Thing] = {f"bare {plan.language}": lambda: _bare_crowd(pool, bare, crowd)}
        many |= {name: _crowd(runner, once, crowd) for name, once in captured.items()}
        _throughput(run, plan.language, measure.in_turn(many, run.rounds(10, 1)), crowd)


def _quiet(runner: asyncio.Runner, once: Once) -> Thing:
    """Timed inside the loop, so that entering the loop is not counted."""

    async def timed() -> float:
        start = time.perf_counter()
        await once()
        return time.perf_counter() - start

    return lambda: runner.run(timed())


def _crowd(runner: asyncio.Runner, once: Once, number: int) -> Thing:
    """``number`` of them, sixteen at once."""

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
    list(pool.map(lambda _: measure.start_and_wait(argv, _ENV), range(number)))


def _throughput(run: measure.Run, language: str, series: list[Series], crowd: int) -> None:
    """The same samples as rates; a sample is a whole crowd."""
    bare = series[0].median
    rows: list[tuple[str, ...]] = [("", "crowds", "a second", f"x {series[0].name}")]
    data = []
    for one in series:
        rate, ratio = crowd / one.median, bare / one.median
        rows.append((one.name, str(len(one.seconds)), f"{rate:.0f}", f"{ratio:.2f}"))
        data.append({"name": one.name, "crowd": crowd, "a second": rate, "ratio": ratio, "seconds": one.seconds})
    run.table(f"{language}, {_AT_ONCE} at once, {crowd} in all", rows, data)


async def _captured(argv: list[str]) -> None:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, env=_ENV, stdin=null, stdout=pipe, stderr=pipe)
    _, stderr = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{argv[0]} ended with {process.returncode}: {stderr.decode(errors='replace')[-500:]}")


def _bwrap_options(plan: Plan, file: Path) -> list[str]:
    """The cell of ``plan`` as far as bubblewrap can say it."""
    options = ["--unshare-all", "--die-with-parent", "--new-session"]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for entry in plan.entries:
        if isinstance(entry, Bind) and not entry.device:
            options += ["--ro-bind", entry.source, entry.target]
        elif isinstance(entry, Link):
            options += ["--symlink", entry.points_to, entry.target]
    for place in ("/tmp", "/workspace", "/home/user"):
        options += ["--tmpfs", place]
    return [*options, "--ro-bind", str(file), str(file), "--chdir", "/workspace"]


if __name__ == "__main__":
    main()
