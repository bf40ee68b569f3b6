"""Where the time of a one-shot goes, step by step, from the call to its result: by exec, and in a ready cell.

Functions are wrapped at run time: in this process, and, by starting the supervisor through in_supervisor.py, in the
supervisor and in the first process of the cells that it makes itself, up to the program's exec. Programs in ready cells
print when their first and last line ran. casemate's sources do not know of this.

A step is the time between two recorded moments on one clock. Steps follow each other without gaps, so their means add
up to the whole. Recording a moment costs about a microsecond; the same runs without recording are timed for comparison.
Work done ahead of a run is below its table. The moment when a new cell began to wait is observed from outside, with a
precision of a millisecond.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import in_supervisor, measure, ready
from benchmarks.measure import duration
from benchmarks.noted import Moment, Noted
from benchmarks.waits import Waits
from casemate import Sandbox
from casemate.audit.log import AuditLog
from casemate.execution import collect as collecting
from casemate.execution import pipeline
from casemate.execution import seal as sealing
from casemate.walls.native import link, pool, wall

Step = tuple[Moment, str]  # a moment, and the name of the step that it ends

_BEFORE: tuple[Step, ...] = (
    (("host", "call", "begin"), ""),
    (("host", "request", "end"), "request: arguments checked"),
    (("host", "plan", "end"), "plan: runtime, entries, environment"),
    (("host", "intent", "end"), "record: the intent row"),
    (("host", "start", "begin"), "to the wall"),
)
_AFTER: tuple[Step, ...] = (
    (("serve", "SupervisorLoop._read_status", "begin"), "in the cell up to init's report, supervisor awake"),
    (("serve", "SupervisorLoop._report_end", "begin"), "is it empty, what it used, what is left"),
    (("host", "finish", "begin"), "message to the host, its pump awake"),
    (("host", "finish", "end"), "rest of the output read, pipes closed"),
    (("host", "run", "end"), "to the event loop"),
    (("host", "collect", "end"), "collect: what it left"),
    (("host", "seal", "end"), "seal: the result made"),
    (("host", "outcome", "end"), "record: the outcome row"),
    (("host", "call", "end"), "to the caller"),
)
STEPS: tuple[Step, ...] = (
    *_BEFORE,
    (("serve", "SupervisorLoop._launch", "begin"), "to the supervisor: message, memory files, pipes, waking it"),
    (("scratch", "prepare", "begin"), "its request: read, descriptors given away"),
    (("scratch", "prepare", "end"), "the cell's tmpfs, folders, program, mounts"),
    (("pool", "CellPool.take", "end"), "the ready cell: taken, or made now if it is not there"),
    (("cgroups", "CellCgroup.limit", "end"), "limits of the cgroup"),
    *_AFTER,
)
WARM_STEPS: tuple[Step, ...] = (
    *_BEFORE,
    (("host", "take", "end"), "a cell that is ready, taken"),
    (("host", "begin", "begin"), "the message for it put together"),
    (("serve", "SupervisorLoop._begin", "begin"), "to the supervisor: message, waking it"),
    (("scratch", "Scratch.add_program", "end"), "the program placed in its tmpfs"),
    (("cells", "splice_order", "begin"), "its clock started"),
    (("host", "first line", "end"), "to the program's process: waking it, order read, program found"),
    (("host", "last line", "end"), "THE PROGRAM ITSELF, from its first to its last line"),
    (_AFTER[0][0], "its output written, its process ends, init's report, supervisor awake"),
    *_AFTER[1:],
)
# How the next cell was made ready: forked from a zygote, where only the supervisor sees it, and in the pool.
FORKED: tuple[Step, ...] = (
    (("pool", "PendingCell.__init__", "begin"), ""),
    (("namespaced", "NamespaceMaker.adopt_process", "begin"), "channel, cgroup, the zygote's fork"),
    (("namespaced", "NamespaceMaker.adopt_process", "end"), "id maps"),
    (("serve", "SupervisorLoop._start_cell", "end"), "its tmpfs, mounts, limits; all handed over"),
    (("host", "waits", "end"), "namespaces, walls, the program's process forked, prepared and asleep"),
)
STARTED: tuple[Step, ...] = (
    (("serve", "SupervisorLoop._launch", "begin"), ""),
    (("serve", "SupervisorLoop._start_cell", "end"), "its tmpfs, mounts, limits; a ready cell taken, all handed over"),
    (("host", "waits", "end"), "walls, the interpreter started and asleep"),
)
PREFORK: tuple[Step, ...] = (
    (("namespaced", "NamespaceMaker.prefork", "begin"), ""),
    (("namespaced", "NamespaceMaker.prefork", "end"), "a ready cell made in the supervisor"),
)
# The functions that are wrapped in this process, with the names of their moments.
NOTED: tuple[tuple[Any, str, str], ...] = (
    (Sandbox, "_request", "request"),
    (pipeline, "make_plan", "plan"),
    (AuditLog, "append", ""),
    (wall.NativeWall, "start", "start"),
    (pool.Pools, "take", "take"),
    (link.SupervisorLink, "begin", "begin"),
    (link.SupervisorLink, "_finish", "finish"),
    (pipeline, "run", "run"),
    (collecting, "collect", "collect"),
    (sealing, "seal", "seal"),
)
_WHOLE = "the whole"
_PAUSE = 0.02  # seconds between runs


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to start. By language: programs, the ``steps`` of a run, and the chains of steps done ``ahead``."""

    title: str
    is_warm: bool
    programs: dict[str, str]
    steps: dict[str, tuple[Step, ...]]
    ahead: dict[str, tuple[tuple[Step, ...], ...]]


_PYTHON_TELLS = "import time\nfirst = time.monotonic_ns()\nprint(first, time.monotonic_ns())"
_SHELL_TELLS = 'first=$EPOCHREALTIME; echo "$first $EPOCHREALTIME"'  # bash has no other clock
BY_EXEC = Profile(
    "by exec",
    is_warm=False,
    programs={"shell": "true", "python": "pass"},
    steps={"shell": STEPS, "python": STEPS},
    ahead={"shell": (PREFORK,), "python": (PREFORK,)},
)
READY = Profile(
    "in a cell that was ready",
    is_warm=True,
    programs={"python": _PYTHON_TELLS, "shell": _SHELL_TELLS},
    steps={"python": WARM_STEPS, "shell": WARM_STEPS},
    ahead={"python": (FORKED,), "shell": (STARTED,)},
)


class Taken:
    """The seconds of each step of one language's runs, by the step's name; and of the steps done ahead."""

    def __init__(self) -> None:
        self.steps: dict[str, list[float]] = {}
        self.ahead: dict[str, list[float]] = {}
        self.left_out = 0


def main() -> None:
    run = measure.Run("where_time_goes", __doc__ or "")
    rounds = run.rounds(200, 10)
    with tempfile.TemporaryDirectory(prefix="casemate-steps-") as folder:
        plain = [asyncio.run(_plain(profile, f"{folder}/plain.db", rounds)) for profile in (BY_EXEC, READY)]
        noted = Noted(f"{folder}/moments")
        _wrap_host(noted, f"{folder}/moments")
        for profile, unobserved in zip((BY_EXEC, READY), plain, strict=True):
            taken = asyncio.run(_profile(profile, noted, f"{folder}/audit.db", rounds))
            for language, one in taken.items():
                _print(run, profile, language, one, unobserved[language])
    run.finish()


def _wrap_host(noted: Noted, path: str) -> None:
    in_supervisor.observe(path)
    for holder, attribute, name in NOTED:
        noted.wrap(holder, attribute, name)


async def _opened(profile: Profile, audit: str) -> Sandbox:
    """A sandbox for ``profile``. It preloads no modules, so each language has only one kind of cells."""
    sandbox = Sandbox(audit=audit, preload=())
    if not profile.is_warm:
        ready.keep_nothing(sandbox)
    await sandbox.run("true", language="shell")
    if profile.is_warm:
        await ready.settle(sandbox, *profile.programs)
    return sandbox


async def _plain(profile: Profile, audit: str, rounds: int) -> dict[str, float]:
    """The medians without wrapped functions."""
    samples: dict[str, list[float]] = {}
    async with await _opened(profile, audit) as sandbox:
        waits = Waits()
        async for language, code in _programs(profile, rounds):
            before = waits.programs()
            start = time.perf_counter()
            await sandbox.run(code, language=language)
            samples.setdefault(language, []).append(time.perf_counter() - start)
            if profile.is_warm:
                await waits.next_one(before)
    return {language: statistics.median(taken[1:]) for language, taken in samples.items()}


async def _profile(profile: Profile, noted: Noted, audit: str, rounds: int) -> dict[str, Taken]:
    """The recorded times by language."""
    found = {language: Taken() for language in profile.programs}
    async with await _opened(profile, audit) as sandbox:
        if not noted.at(("serve", "SupervisorLoop._launch", "begin")):
            raise RuntimeError("the supervisor was not started with in_supervisor.py in it")
        waits = Waits()
        async for language, code in _programs(profile, rounds):
            one = found[language]
            if not profile.is_warm:
                _add_prefork(profile, language, noted, one)  # the ready cell for this run
            before = waits.programs()
            start = await _run(sandbox, noted, language, code)
            if start != ("pool" if profile.is_warm else "exec"):
                one.left_out += 1
                await ready.settled(sandbox)
                continue
            _add(one.steps, noted, profile.steps[language])
            if profile.is_warm:
                called = noted.at(("host", "call", "end"))
                noted.host["waits", "end"] = await waits.next_one(before)
                _add_prefork(profile, language, noted, one, called)
    return found


async def _run(sandbox: Sandbox, noted: Noted, language: str, code: str) -> str:
    """Run ``code`` and record its moments. Returns how it started."""
    noted.host.clear()
    clocks = time.monotonic_ns() - time.time_ns()
    noted.note("call", "begin")
    execution = await sandbox.run(code, language=language)
    noted.note("call", "end")
    execution.raise_for_status()
    said = execution.stdout.split()
    for line, text in zip(("first line", "last line"), said, strict=False):
        whole, _, part = text.replace(",", ".").partition(".")
        noted.host[line, "end"] = int(whole) * 10**9 + int(part) * 1000 + clocks if part else int(whole)
    return execution.isolation.start


async def _programs(profile: Profile, rounds: int) -> AsyncIterator[tuple[str, str]]:
    """Each program ``rounds`` times, with pauses to prefork the next cell."""
    for _ in range(rounds):
        for program in profile.programs.items():
            await asyncio.sleep(_PAUSE)
            yield program


def _add(taken: dict[str, list[float]], noted: Noted, steps: Sequence[Step]) -> None:
    """Add every step. A step that did not happen, or ended before the first moment, is part of the next step."""
    first = noted.at(steps[0][0])
    happened = [step for step in steps if noted.at(step[0]) >= first]
    for (before, _), (after, text) in pairwise(happened):
        taken.setdefault(text, []).append((noted.at(after) - noted.at(before)) / 1e9)
    if len(steps) > 2:  # else the only step is the whole
        taken.setdefault(_WHOLE, []).append((noted.at(steps[-1][0]) - first) / 1e9)


def _add_prefork(profile: Profile, language: str, noted: Noted, taken: Taken, since: int = 0) -> None:
    """Add the steps for the next cell, if all of them happened, and after ``since``."""
    for chain in profile.ahead[language]:
        times = [noted.at(moment) for moment, _ in chain]
        if times[0] > since and times == sorted(times):
            _add(taken.ahead, noted, chain)


def _print(run: measure.Run, profile: Profile, language: str, taken: Taken, plain: float) -> None:
    title = f"{language} {profile.title}"
    if not taken.steps:
        raise RuntimeError(f"none of the runs of {title} began so")
    number = len(taken.steps[_WHOLE])
    left_out = f", {taken.left_out} that began otherwise left out" if taken.left_out else ""
    heading = f"{title}: {number} runs{left_out}; unobserved they take {duration(plain)} (p50)"
    _table(run, heading, taken.steps, profile.steps[language])
    if taken.ahead:
        ahead = [step for chain in profile.ahead[language] for step in chain]
        _table(run, f"{title}: what was done ahead for such a cell", taken.ahead, ahead)


def _table(run: measure.Run, title: str, spans: dict[str, list[float]], steps: Sequence[Step]) -> None:
    """Print the spans in the order of ``steps``, and the whole if there is one. Shares refer to the means."""
    whole = statistics.mean(spans[_WHOLE]) if _WHOLE in spans else None
    rows: list[tuple[str, ...]] = [("", "n", "least, us", "p50, us", "p99, us", "mean, us", "share")]
    data = []
    for name in (*(text for _, text in steps), _WHOLE):
        if name in spans:
            one = measure.Series(name, tuple(spans[name]))
            mean = statistics.mean(one.seconds)
            figures = [f"{seconds * 1e6:.0f}" for seconds in (min(one.seconds), one.median, one.p99, mean)]
            share = "" if whole is None else f"{sum(one.seconds) / len(spans[_WHOLE]) / whole:.0%}"
            rows.append((name, str(len(one.seconds)), *figures, share))
            figure = {"n": len(one.seconds), "p50": one.median, "p99": one.p99, "mean": mean}
            data.append({"name": name, **figure, "seconds": one.seconds})
    run.table(title, rows, data)


if __name__ == "__main__":
    main()
