"""What every benchmark shares: several things measured in turn in one run, and a table of what came of it.

A time says little by itself: it differs from machine to machine and from minute to minute. So the things
that are compared take turns within one run, and what is printed beside each median is its ratio to the
first one's, the reference. Nothing is pinned to cores and nothing is left out of the samples.
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

Thing = Callable[[], float | None]  # does it once; gives the seconds it took, or None: then the call is timed

# Small: variables such as NODE_EXTRA_CA_CERTS and PYTHONUNBUFFERED make a bare start, or what it writes, slower.
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC"}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BUSY = 0.5  # load for each core from which absolute times are not to be trusted


@dataclass(frozen=True, slots=True)
class Goal:
    """At most ``times`` x the reference's median ``plus`` so many seconds; without ``times`` just the seconds.

    ``most``: however slow the reference is, not more seconds than this. ``tail``: the p99 may be so many times the
    reference's median. 0 for any.
    """

    times: float = 0.0
    plus: float = 0.0
    most: float = 0.0
    tail: float = 0.0

    def seconds(self, reference: float) -> float:
        wanted = self.times * reference + self.plus
        return min(wanted, self.most) if self.most else wanted

    def told(self, reference: float) -> str:
        """The goal and what it comes to."""
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
        """The nearest sample; with less than a hundred of them it is the worst."""
        return sorted(self.seconds)[math.ceil(len(self.seconds) * 0.99) - 1]

    def reaches(self, reference: float) -> bool | None:
        """Whether the median does, and the p99 where there is a goal for it."""
        if self.goal is None:
            return None
        in_tail = not self.goal.tail or self.p99 <= self.goal.tail * reference
        return in_tail and self.median <= self.goal.seconds(reference)


def without_ratio(one: Series) -> Series:
    """The same where the reference is missing: of its goal only the seconds are left."""
    return one if one.goal is None else replace(one, goal=Goal(plus=one.goal.most))


def in_turn(things: dict[str, Thing], rounds: int, goals: dict[str, Goal] | None = None) -> list[Series]:
    """Do each thing ``rounds`` times, one after the other, each round beginning with another one.

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
    """As a person reads it, with three figures."""
    unit, name = next((known for known in _UNITS if seconds >= known[0]), _UNITS[-1])
    value = seconds / unit
    return f"{value:.0f} {name}" if value >= 99.95 else f"{value:.3g} {name}"


class Run:
    """One run of one benchmark: its options, and what it has to say."""

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
        """Say something beside the tables."""
        print(text, file=sys.stderr)

    def rounds(self, usual: int, quick: int = 5) -> int:
        return quick if self.quick else usual

    def compare(self, title: str, series: Sequence[Series]) -> None:
        """Print ``series`` against the first of them."""
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
        """Print any other table, its headings first; ``data`` is what it means, for ``--json``."""
        self._print(title, rows, data)

    def finish(self) -> None:
        """Write the file that was asked for."""
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
    """What the figures were measured on."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": f"{os.cpu_count()} cores",
        "python": f"Python {platform.python_version()}",
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
    }


def start_and_wait(argv: Sequence[str], env: dict[str, str] | None = None) -> None:
    """A bare start: the cheapest that there is, with no pipe, its output thrown away. RuntimeError if it fails."""
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    pid = os.posix_spawn(argv[0], list(argv), os.environ if env is None else env, file_actions=silent)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {os.waitstatus_to_exitcode(status)}")


def word(reached: bool | None) -> str:
    """How a table says whether a goal was reached."""
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
