"""Many sessions: a hundred that open at once, and a thousand that are open and idle.

A hundred: all open together in a sandbox with a running zygote, until each has the result of its first step, which
uses pandas. The reference is as many bare starts of Python, sixteen at once.

A thousand: each binds a number in one step and then is idle. The drop of the available memory shows what they use
together, including kernel memory; smaps shows the private memory of their processes. Then a step in a session and a run
from a ready cell are compared with the same before. At the end every session prints its number. The exit code is 1 if a
number is wrong.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import looking, measure, ready
from benchmarks.measure import Goal, Series
from benchmarks.sessions import FIRST, FIRST_TEXT
from casemate import Sandbox
from casemate.errors import CasemateError
from casemate.sessions.session import Session

_CROWD = 100
_GOAL = Goal(plus=2.0)
_AT_ONCE = 16
_MANY, _QUICK_MANY = 1000, 50
_STEPS = 100  # the result is their median
_REST = 2.0  # seconds
_WATCHED = 10.0  # seconds to observe idle sessions
_TICKS = os.sysconf("SC_CLK_TCK")
_MB = 1e6


def main() -> None:
    run = measure.Run("many_sessions", __doc__ or "")
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="casemate-many-") as folder:
        _hundred(run, runner, f"{folder}/audit.db")
        sound = runner.run(_thousand(run, f"{folder}/audit.db"))
    run.finish()
    sys.exit(0 if sound else 1)


def _hundred(run: measure.Run, runner: asyncio.Runner, audit: str) -> None:
    sandbox = Sandbox(audit=audit)
    starts: Counter[str] = Counter()
    bare = [sys.executable, "-c", "pass"]
    reference, ours = f"{_CROWD} x bare python -c pass", f"{_CROWD} sessions"
    try:
        runner.run(ready.settle_sessions(sandbox))
        with ThreadPoolExecutor(_AT_ONCE) as pool:

            def bare_crowd() -> None:
                list(pool.map(lambda _: measure.start_and_wait(bare, measure.ENV), range(_CROWD)))

            things: dict[str, measure.Thing] = {
                reference: bare_crowd,
                ours: lambda: runner.run(_crowd(sandbox, starts)),
            }
            series = measure.in_turn(things, run.rounds(10, 1), {ours: _GOAL})
    finally:
        runner.run(sandbox.close())
    run.compare(f"{_CROWD} sessions at once, each to its first result", series)
    run.note(f"they began so: {', '.join(f'{count} from the {how}' for how, count in starts.items())}")


async def _crowd(sandbox: Sandbox, starts: Counter[str]) -> float:
    await ready.settled(sandbox)
    start = time.perf_counter()
    sessions = [sandbox.session() for _ in range(_CROWD)]
    executions = await asyncio.gather(*(session.run(FIRST) for session in sessions))
    took = time.perf_counter() - start
    if any(execution.text != FIRST_TEXT for execution in executions):
        raise RuntimeError(f"first results: {Counter((one.status, one.text) for one in executions)}")
    starts.update(execution.isolation.start for execution in executions)
    for session in sessions:
        await session.close()
    return took


async def _thousand(run: measure.Run, audit: str) -> bool:
    number = _QUICK_MANY if run.quick else _MANY
    found: dict[str, str] = {}
    async with Sandbox(audit=audit) as sandbox:
        await ready.settle_sessions(sandbox)
        alone = sandbox.session()
        await alone.run("x = 1")
        before, runs_before = await _steps(alone), await _runs(sandbox)
        await asyncio.sleep(_REST)
        free, host = _available(), looking.held(os.getpid())

        start = time.perf_counter()
        sessions = [sandbox.session() for _ in range(number)]
        await asyncio.gather(*(session.run(f"x = {n}") for n, session in enumerate(sessions)))
        took = time.perf_counter() - start
        found |= {"opened, one step each": _each(took, number)}

        await asyncio.sleep(_REST)
        held = free - _available()
        mine = _private()
        now = looking.held(os.getpid())
        found |= {
            "memory that is no longer available": f"{held / _MB:.0f} MB, {held / number / _MB:.2f} MB each",
            "of that, private to their processes": f"{sum(mine) / _MB:.0f} MB, {sum(mine) / number / _MB:.2f} MB each",
            "the host's own": f"{(now.memory - host.memory) / number / 1e3:.0f} kB each",
            "descriptors of the host": f"{now.descriptors}, {(now.descriptors - host.descriptors) / number:.1f} each",
            "descriptors of the supervisor": str(max(looking.held(pid).descriptors for pid in _supervisors())),
            "processor time while nothing runs": await _idle(),
        }
        after, runs_after = await _steps(alone), await _runs(sandbox)
        found["a run beside them, p90"] = f"{_p90(runs_after) / _p90(runs_before):.2f} x one without them"

        start = time.perf_counter()
        known = await asyncio.gather(*(_knows(session, n) for n, session in enumerate(sessions)))
        found["asked for its number, each"] = _each(time.perf_counter() - start, number)
        wrong = [problem for problem in known if problem]
        found["that did not know it"] = f"{len(wrong)}{f': {wrong[0]}' if wrong else ''}"

        start = time.perf_counter()
        await asyncio.gather(*(session.close() for session in sessions))
        found["closed"] = _each(time.perf_counter() - start, number)
    rows: list[tuple[str, ...]] = [("", ""), *found.items()]
    data: list[dict[str, Any]] = [found | {"held": held, "private": statistics.median(mine), "wrong": len(wrong)}]
    run.table(f"{number} sessions held at once", rows, data)
    for title, *series in (
        ("a step in one of them", before, after),
        ("a run in a ready cell", runs_before, runs_after),
    ):
        run.compare(title, [Series("before they were there", series[0]), Series("beside them", series[1])])
    return not wrong


async def _steps(session: Session) -> tuple[float, ...]:
    taken = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        await session.run("x + 1")
        taken.append(time.perf_counter() - start)
    return tuple(taken)


async def _runs(sandbox: Sandbox) -> tuple[float, ...]:
    """Seconds of runs from ready cells. (A ready cell for sessions may be made in the meantime.)"""
    await ready.settle(sandbox, "python")
    taken: list[float] = []
    while len(taken) < _STEPS:
        start = time.perf_counter()
        execution = await sandbox.run("pass")
        took = time.perf_counter() - start
        if execution.isolation.start == "pool":
            taken.append(took)
        await ready.settled(sandbox)
    return tuple(taken)


def _p90(seconds: tuple[float, ...]) -> float:
    return statistics.quantiles(seconds, n=10)[-1]


async def _knows(session: Session, number: int) -> str:
    """Empty if the session knows its number, else what is wrong."""
    try:
        execution = await session.run("x")
    except CasemateError as error:
        return str(error)
    return "" if execution.text == str(number) else f"{execution.status}: {execution.text!r} instead of {number}"


def _each(seconds: float, number: int) -> str:
    return f"{seconds:.2f} s, {measure.duration(seconds / number)} each"


def _available() -> int:
    """Available memory in bytes (MemAvailable in proc(5))."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _private() -> list[int]:
    """Private bytes of every cell's processes, including its init."""
    processes = looking.below(os.getpid())
    inits = {one.pid for one in processes if one.is_init}
    found = []
    for init in inits:
        cell = [init, *(one.pid for one in processes if one.parent == init)]
        if len(cell) > 1:  # else it is a ready cell of the supervisor
            found.append(sum(looking.private_bytes(pid) for pid in cell))
    return found


def _supervisors() -> list[int]:
    return [one.pid for one in looking.below(os.getpid()) if one.is_supervisor]


async def _idle() -> str:
    """The processor time that the host and the supervisor use when idle."""
    pids = {"host": [os.getpid()], "supervisor": _supervisors()}
    before = {name: sum(map(_used, those)) for name, those in pids.items()}
    await asyncio.sleep(_WATCHED)
    shares = {name: (sum(map(_used, those)) - before[name]) / _WATCHED for name, those in pids.items()}
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _used(pid: int) -> float:
    """Seconds of processor time that ``pid`` has used."""
    status = Path(f"/proc/{pid}/stat").read_text()
    fields = status[status.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    main()
