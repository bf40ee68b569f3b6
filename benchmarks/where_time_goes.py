"""Where the time of a one-shot goes, step by step, from the call to its result.

How it is taken: functions are wrapped at run time, in this process and, by starting the supervisor through
in_supervisor.py, in the supervisor and in the cell's first process, up to the exec of the program. Nothing in the
sources knows of it, and no other process watches. Each step is the time from one noted moment to the next on one
clock, so the steps follow each other without gaps and add up to the whole. A noted moment costs about a microsecond;
the same runs without them are timed beside it. What a spare does ahead of a run is below the table.
"""

from __future__ import annotations

import asyncio
import mmap
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import in_supervisor, measure
from benchmarks.measure import duration
from casemate import Sandbox
from casemate.audit.log import AuditLog
from casemate.execution import collect as collecting
from casemate.execution import pipeline
from casemate.execution import seal as sealing
from casemate.isolation.native import link, wall

_PROGRAMS = {"shell": "true", "python": "pass"}
Moment = tuple[str, str, str]  # a module or "host", a name in it, "begin" or "end"
# What came to its end at each moment; in the order in which they happen.
STEPS: tuple[tuple[Moment, str], ...] = (
    (("host", "call", "begin"), ""),
    (("host", "request", "end"), "request: arguments checked"),
    (("host", "plan", "end"), "plan: runtime, entries, environment"),
    (("host", "intent", "begin"), "to a thread"),
    (("host", "intent", "end"), "record: the intent row"),
    (("host", "start", "begin"), "back from the thread"),
    (("serve", "Server._obey", "begin"), "to the supervisor: message, memory files, pipes, waking it"),
    (("broker", "prepare", "begin"), "its request: read, descriptors given away"),
    (("broker", "prepare", "end"), "the cell's tmpfs, folders, program, mounts"),
    (("serve", "Server._take_spare", "end"), "the spare: taken, or made now if it is not there"),
    (("cgroups", "Group.limit", "end"), "limits of the cgroup"),
    (("spare", "Spare.hand_over", "end"), "message to the spare"),
    (("cell", "_assemble", "begin"), "in the cell: awake, request read"),
    (("cell", "_forbid_nesting", "end"), "no namespaces in it (sysctls)"),
    (("cell", "_mask_proc", "end"), "masks over /proc"),
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
    (("serve", "Server._ended", "end"), "counted, cgroup removed, host told"),
    (("host", "finish", "begin"), "host's pump awake"),
    (("host", "finish", "end"), "rest of the output read, pipes closed"),
    (("host", "run", "end"), "to the event loop"),
    (("host", "collect", "end"), "collect: what it left"),
    (("host", "seal", "end"), "seal: the result made"),
    (("host", "outcome", "begin"), "to a thread"),
    (("host", "outcome", "end"), "record: the outcome row"),
    (("host", "call", "end"), "back from the thread"),
)
_AHEAD = {"made in the supervisor (fork, id maps, cgroup)": ("spare", "make"), "its namespaces, proc": ("cell", "_prepare")}


class Noted:
    """The moments of the run that is going on: the host's here, the others' in the mapping."""

    def __init__(self, path: str) -> None:
        size = len(in_supervisor.POINTS) * in_supervisor.SLOT
        Path(path).write_bytes(bytes(size))
        with open(path, "r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), size)
        self.host: dict[tuple[str, str], int] = {}

    def at(self, moment: Moment) -> int:
        """In nanoseconds; 0 where it did not happen."""
        module, name, end = moment
        if module == "host":
            return self.host.get((name, end), 0)
        (value,) = struct.unpack_from("=q", self._mapping, in_supervisor.slot_of(*moment) * in_supervisor.SLOT)
        return int(value)

    def note(self, name: str, end: str) -> None:
        self.host[name, end] = time.monotonic_ns()

    def wrap(self, holder: Any, attribute: str, name: str) -> None:
        """Note the beginning and end of a function, or of what awaiting its result takes."""
        inner: Callable[..., Any] = getattr(holder, attribute)

        def noting(*arguments: Any, **named: Any) -> Any:
            self.note(name, "begin")
            try:
                return inner(*arguments, **named)
            finally:
                self.note(name, "end")

        async def noting_awaited(*arguments: Any, **named: Any) -> Any:
            self.note(name, "begin")
            try:
                return await inner(*arguments, **named)
            finally:
                self.note(name, "end")

        setattr(holder, attribute, noting_awaited if asyncio.iscoroutinefunction(inner) else noting)


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
    root = str(Path(link.__file__).resolve().parents[3])
    link._BOOT = in_supervisor.boot(root, path)
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
    async with Sandbox(audit=audit) as sandbox:
        samples: dict[str, list[float]] = {language: [] for language in _PROGRAMS}
        for _ in range(rounds):
            for language, code in _PROGRAMS.items():
                await asyncio.sleep(0.02)
                start = time.perf_counter()
                await sandbox.run(code, language=language)
                samples[language].append(time.perf_counter() - start)
    return {language: statistics.median(taken) for language, taken in samples.items()}


async def _profile(noted: Noted, audit: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """The seconds of each step, by language and name of the step."""
    found: dict[str, dict[str, list[float]]] = {language: {} for language in _PROGRAMS}
    async with Sandbox(audit=audit) as sandbox:
        await sandbox.run("true", language="shell")
        for _ in range(rounds):
            for language, code in _PROGRAMS.items():
                await asyncio.sleep(0.02)  # until the spare is ready, as when somebody uses it now and then
                ahead = {text: _span(noted, (*name, "begin"), (*name, "end")) for text, name in _AHEAD.items()}
                noted.host.clear()
                noted.note("call", "begin")
                await sandbox.run(code, language=language)
                noted.note("call", "end")
                _add(found[language], _spans(noted) | ahead)
    return found


def _spans(noted: Noted) -> dict[str, float]:
    """Every step; what did not happen is part of the next."""
    happened = [step for step in STEPS if noted.at(step[0])]
    pairs = zip(happened, happened[1:], strict=False)
    return {f"{n:02} {text}": _span(noted, before, after) for n, ((before, _), (after, text)) in enumerate(pairs)}


def _span(noted: Noted, before: Moment, after: Moment) -> float:
    return (noted.at(after) - noted.at(before)) / 1e9


def _add(found: dict[str, list[float]], spans: dict[str, float]) -> None:
    for name, seconds in spans.items():
        found.setdefault(name, []).append(seconds)


def _print(run: measure.Run, language: str, spans: dict[str, list[float]], plain: float) -> None:
    steps = {name: taken for name, taken in spans.items() if name[:2].isdigit()}
    whole = [sum(each) for each in zip(*steps.values(), strict=True)]
    rows: list[tuple[str, ...]] = [("", "p50, us", "p99, us", "share")]
    data = []
    for name, taken in {**steps, "the whole": whole, **{f"ahead: {n}": spans[n] for n in _AHEAD}}.items():
        middle, worst = statistics.median(taken), sorted(taken)[int(len(taken) * 0.99)]
        rows.append((name, f"{middle * 1e6:.0f}", f"{worst * 1e6:.0f}", f"{middle / statistics.median(whole):.0%}"))
        data.append({"name": name, "p50": middle, "p99": worst, "seconds": taken})
    run.table(f"{language}, {len(whole)} runs; unobserved they take {duration(plain)} (p50)", rows, data)


if __name__ == "__main__":
    main()
