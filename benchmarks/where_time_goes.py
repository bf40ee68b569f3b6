"""Where the time of a one-shot goes, step by step, from the call to its result.

How it is taken: functions are wrapped at run time, in this process and, by starting the supervisor through
in_supervisor.py, in the supervisor and in the cell's first process, up to the exec of the program. Nothing in the
sources knows of it, and no other process watches. Each step is the time from one noted moment to the next on one
clock, so the steps follow each other without gaps and add up to the whole. A noted moment costs about a microsecond;
the same runs without them are timed beside it. What a spare does ahead of a run is below the table.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import in_supervisor, measure
from benchmarks.measure import duration
from benchmarks.noted import Moment, Noted
from casemate import Sandbox
from casemate.audit.log import AuditLog
from casemate.execution import collect as collecting
from casemate.execution import pipeline
from casemate.execution import seal as sealing
from casemate.isolation.native import link, wall

_PROGRAMS = {"shell": "true", "python": "pass"}
# What came to its end at each moment; in the order in which they happen.
STEPS: tuple[tuple[Moment, str], ...] = (
    (("host", "call", "begin"), ""),
    (("host", "request", "end"), "request: arguments checked"),
    (("host", "plan", "end"), "plan: runtime, entries, environment"),
    (("host", "intent", "begin"), "record: to a thread"),
    (("host", "intent", "end"), "record: the intent row"),
    (("host", "start", "begin"), "record: back from the thread"),
    (("serve", "Server._obey", "begin"), "to the supervisor: message, memory files, pipes, waking it"),
    (("broker", "prepare", "begin"), "its request: read, descriptors given away"),
    (("broker", "prepare", "end"), "the cell's tmpfs, folders, program, mounts"),
    (("serve", "Server._take_spare", "end"), "the spare: taken, or made now if it is not there"),
    (("cgroups", "Group.limit", "end"), "limits of the cgroup"),
    (("cell", "_assemble", "begin"), "to the cell: message, waking it, request read"),
    (("kernel", "pivot_root_here", "begin"), "mounts attached, devpts"),
    (("kernel", "pivot_root_here", "end"), "new root, old one detached"),
    (("cell", "_place_descriptors", "end"), "descriptors placed, others closed"),
    (("cell", "_limit", "end"), "resource limits"),
    (("kernel", "drop_capabilities", "end"), "capabilities"),
    (("landlock", "restrict", "end"), "Landlock"),
    (("seccomp", "install", "end"), "seccomp"),
    (("init", "_start_program", "end"), "exec of the program"),
    (("init", "_reap_until", "end"), "THE PROGRAM ITSELF"),
    (("serve", "Server._ended", "begin"), "init exits, death of the namespaces, supervisor awake"),
    (("serve", "Server._say", "begin"), "counted: what it used, what is left"),
    (("host", "finish", "begin"), "message to the host, its pump awake"),
    (("host", "finish", "end"), "rest of the output read, pipes closed"),
    (("host", "run", "end"), "to the event loop"),
    (("host", "collect", "end"), "collect: what it left"),
    (("host", "seal", "end"), "seal: the result made"),
    (("host", "outcome", "begin"), "record: to a thread again"),
    (("host", "outcome", "end"), "record: the outcome row"),
    (("host", "call", "end"), "record: back, and to the caller"),
)
_WHOLE = "the whole"
_AHEAD = {
    "ahead: a spare made in the supervisor": ("spare", "make"),
    "ahead: the spare's id maps, namespaces, proc, masks": ("cell", "_prepare"),
}


def main() -> None:
    run = measure.Run("where_time_goes", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-steps-") as folder:
        rounds = run.rounds(200, 10)
        plain = asyncio.run(_plain(f"{folder}/plain.db", rounds))
        noted = Noted(f"{folder}/moments")
        _wrap_host(noted, f"{folder}/moments")
        for language, spans in asyncio.run(_profile(noted, f"{folder}/audit.db", rounds)).items():
            _print(run, language, spans, plain[language])
    run.finish()


def _wrap_host(noted: Noted, path: str) -> None:
    in_supervisor.observe(path)
    for holder, attribute, name in (
        (Sandbox, "_request", "request"),
        (pipeline, "make_plan", "plan"),
        (AuditLog, "intent", "intent"),
        (wall.NativeWall, "start", "start"),
        (link.Link, "_finish", "finish"),
        (pipeline, "run", "run"),
        (collecting, "collect", "collect"),
        (sealing, "seal", "seal"),
        (AuditLog, "outcome", "outcome"),
    ):
        noted.wrap(holder, attribute, name)


async def _plain(audit: str, rounds: int) -> dict[str, float]:
    """The medians with nothing wrapped."""
    samples: dict[str, list[float]] = {}
    async with Sandbox(audit=audit) as sandbox:
        async for language, code in _programs(rounds):
            start = time.perf_counter()
            await sandbox.run(code, language=language)
            samples.setdefault(language, []).append(time.perf_counter() - start)
    return {language: statistics.median(taken[1:]) for language, taken in samples.items()}


async def _profile(noted: Noted, audit: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """The seconds of each step, by language and name of the step."""
    found: dict[str, dict[str, list[float]]] = {language: {} for language in _PROGRAMS}
    async with Sandbox(audit=audit) as sandbox:
        await sandbox.run("true", language="shell")
        async for language, code in _programs(rounds):
            spans = {text: _span(noted, (*name, "begin"), (*name, "end")) for text, name in _AHEAD.items()}
            noted.host.clear()
            noted.note("call", "begin")
            await sandbox.run(code, language=language)
            noted.note("call", "end")
            if not noted.at(("serve", "Server._obey", "begin")):
                raise RuntimeError("the supervisor was not started with in_supervisor.py in it")
            for name, seconds in (spans | _spans(noted)).items():
                found[language].setdefault(name, []).append(seconds)
    return found


async def _programs(rounds: int) -> AsyncIterator[tuple[str, str]]:
    """Each program again and again, with pauses in which the next spare gets ready."""
    for _ in range(rounds):
        for program in _PROGRAMS.items():
            await asyncio.sleep(0.02)
            yield program


def _spans(noted: Noted) -> dict[str, float]:
    """Every step; what did not happen, or happened ahead of the run, is part of the next."""
    called = noted.at(STEPS[0][0])
    happened = [step for step in STEPS if noted.at(step[0]) >= called]
    return {text: _span(noted, before, after) for (before, _), (after, text) in pairwise(happened)} | {
        _WHOLE: _span(noted, STEPS[0][0], STEPS[-1][0])
    }


def _span(noted: Noted, before: Moment, after: Moment) -> float:
    return (noted.at(after) - noted.at(before)) / 1e9


def _print(run: measure.Run, language: str, spans: dict[str, list[float]], plain: float) -> None:
    middle_of_whole = statistics.median(spans[_WHOLE])
    rows: list[tuple[str, ...]] = [("", "least, us", "p50, us", "p99, us", "share")]
    data = []
    for name in (*(text for _, text in STEPS), _WHOLE, *_AHEAD):
        if name in spans:
            one = measure.Series(name, tuple(spans[name]))
            figures = [f"{seconds * 1e6:.0f}" for seconds in (min(one.seconds), one.median, one.p99)]
            rows.append((name, *figures, f"{one.median / middle_of_whole:.0%}"))
            data.append(
                {"name": name, "n": len(one.seconds), "p50": one.median, "p99": one.p99, "seconds": one.seconds}
            )
    title = f"{language}, {len(spans[_WHOLE])} runs; unobserved they take {duration(plain)} (p50)"
    run.table(title, rows, data)


if __name__ == "__main__":
    main()
