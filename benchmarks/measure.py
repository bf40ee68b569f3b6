"""Shared code of all benchmarks: measures several things in turn in one run, and prints a table of the results.

Absolute times differ between machines and from minute to minute. So the compared things take turns within one run, and
beside each median stands its ratio to the reference, which is the first thing. No process is pinned to a core, and no
sample is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Thing = Callable[[], float | None]  # does it once. Returns the seconds, or None to time the call

# Small, because variables such as NODE_EXTRA_CA_CERTS and PYTHONUNBUFFERED slow down a bare start or its output.
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC"}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BUSY = 0.5  # load per core above which absolute times are unreliable


@dataclass(frozen=True, slots=True)
class Goal:
    """At most ``times`` x the reference's median + ``plus`` seconds; without ``times`` only the seconds.

    ``most``: an upper bound in seconds, whatever the reference is. ``tail``: the limit of the p99, as a multiple of the
    reference's median. 0 means no limit.
    """

    times: float = 0.0
    plus: float = 0.0
    most: float = 0.0
    tail: float = 0.0

    def seconds(self, reference: float) -> float:
        wanted = self.times * reference + self.plus
        return min(wanted, self.most) if self.most else wanted

    def told(self, reference: float) -> str:
        """The goal as text, with its value for this reference."""
        told = f"{self} = {duration(self.times * reference + self.plus)}"
        if self.most:
            told += f", at most {duration(self.most)}"
        return f"{told}, p99 {self.tail:g} x = {duration(self.tail * reference)}" if self.tail else told

    def __str__(self) -> str:
        parts = [f"{self.times:g} x"] if self.times else []
        return " + ".join([*parts, *([duration(self.plus)] if self.plus else [])])


@dataclass(frozen=True, slots=True)
class Series:
    """All samples of one thing, in seconds."""

    name: str
    seconds: tuple[float, ...]
    goal: Goal | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p99(self) -> float:
        """The 99th percentile by nearest rank. With fewer than a hundred samples it is the worst sample."""
        return sorted(self.seconds)[math.ceil(len(self.seconds) * 0.99) - 1]

    def reaches(self, reference: float) -> bool | None:
        """Whether the median meets the goal, and the p99, too, if the goal has a ``tail``."""
        if self.goal is None:
            return None
        in_tail = not self.goal.tail or self.p99 <= self.goal.tail * reference
        return in_tail and self.median <= self.goal.seconds(reference)


def without_ratio(one: Series) -> Series:
    """The series without a reference. Its goal keeps only the seconds."""
    return one if one.goal is None else replace(one, goal=Goal(plus=one.goal.most))


def in_turn(things: dict[str, Thing], rounds: int, goals: dict[str, Goal] | None = None) -> list[Series]:
    """Do each thing ``rounds`` times, in turn. Each round begins with another thing.

    A first round warms up and is not counted.
    """
    samples: dict[str, list[float]] = {name: [] for name in things}
    names = list(things)
    for thing in things.values():
        thing()
    for turn in range(rounds):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            start = time.perf_counter()
            took = things[name]()
            samples[name].append(time.perf_counter() - start if took is None else took)
    return [Series(name, tuple(taken), (goals or {}).get(name)) for name, taken in samples.items()]


def duration(seconds: float) -> str:
    """A readable duration with three significant figures."""
    unit, name = next((known for known in _UNITS if seconds >= known[0]), _UNITS[-1])
    value = seconds / unit
    return f"{value:.0f} {name}" if value >= 99.95 else f"{value:.3g} {name}"


class Run:
    """One run of one benchmark: its options and its results."""

    def __init__(self, title: str, description: str) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--quick", action="store_true", help="few repetitions: does it work at all?")
        parser.add_argument("--json", metavar="FILE", help="write everything measured there, each sample included")
        options = parser.parse_args()
        self.quick: bool = options.quick
        self._file: str | None = options.json
        self._tables: list[dict[str, Any]] = []
        self._machine = machine()
        print(f"{title}: {', '.join(str(value) for value in self._machine.values())}")
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > _BUSY * cores:
            print(f"warning: the load is {load:.1f} on {cores} cores; only the ratios mean something", file=sys.stderr)

    def note(self, text: str) -> None:
        """Print a text outside the tables."""
        print(text, file=sys.stderr)

    def rounds(self, usual: int, quick: int = 5) -> int:
        return quick if self.quick else usual

    def compare(self, title: str, series: Sequence[Series]) -> None:
        """Print a table of ``series``. The first is the reference."""
        reference = series[0].median
        rows: list[tuple[str, ...]] = [("", "n", "least", "p50", "p99", f"x {series[0].name}", "goal", "")]
        for one in series:
            figures = [duration(value) for value in (min(one.seconds), one.median, one.p99)]
            goal = "" if one.goal is None else one.goal.told(reference)
            rows.append(
                (
                    one.name,
                    str(len(one.seconds)),
                    *figures,
                    f"{one.median / reference:.2f}",
                    goal,
                    word(one.reaches(reference)),
                )
            )
        self._print(title, rows, [_document(one, reference) for one in series])

    def table(self, title: str, rows: list[tuple[str, ...]], data: list[dict[str, Any]]) -> None:
        """Print any other table. The first row has the headings; ``data`` goes to the file of ``--json``."""
        self._print(title, rows, data)

    def finish(self) -> None:
        """Write the file of ``--json``, if any."""
        if self._file:
            found = {"machine": self._machine, "quick": self.quick, "tables": self._tables}
            Path(self._file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def _print(self, title: str, rows: list[tuple[str, ...]], data: list[dict[str, Any]]) -> None:
        self._tables.append({"title": title, "rows": data})
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        print(f"\n{title}")
        for row in rows:
            cells = [
                text.ljust(width) if column == 0 else text.rjust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  " + "  ".join(cells).rstrip())
        sys.stdout.flush()


def machine() -> dict[str, str]:
    """A description of this machine."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": f"{os.cpu_count()} cores",
        "python": f"Python {platform.python_version()}",
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
    }


def start_and_wait(argv: Sequence[str], env: dict[str, str] | None = None) -> None:
    """A bare start, the cheapest possible: no pipe, and output is discarded. Raises ``RuntimeError`` if it fails."""
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    pid = os.posix_spawn(argv[0], list(argv), os.environ if env is None else env, file_actions=silent)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {os.waitstatus_to_exitcode(status)}")


def word(reached: bool | None) -> str:
    """The table's text for whether a goal was reached."""
    return "" if reached is None else ("reached" if reached else "MISSED")


def _document(one: Series, reference: float) -> dict[str, Any]:
    goal = None if one.goal is None else {"text": one.goal.told(reference), "seconds": one.goal.seconds(reference)}
    return {
        "name": one.name,
        "n": len(one.seconds),
        "least": min(one.seconds),
        "p50": one.median,
        "p99": one.p99,
        "ratio": one.median / reference,
        "goal": goal,
        "reached": one.reaches(reference),
        "seconds": one.seconds,
    }
