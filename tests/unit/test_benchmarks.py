"""The benchmarks are only looked at here: that they can be started, and that their figures are what they are called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import in_supervisor, measure, where_time_goes
from benchmarks.measure import Goal, Series

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = ("startup.py", "one_shot.py", "ending.py", "record.py", "where_time_goes.py")


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_says_what_it_measures(name: str) -> None:
    done = subprocess.run([sys.executable, FOLDER / name, "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in done.stdout


def test_p99_of_a_few_samples_is_the_slowest_and_of_many_is_not() -> None:
    assert Series("few", (3.0, 1.0, 2.0)).p99 == 3.0
    assert Series("many", tuple(float(n) for n in range(1, 201))).p99 == 198.0


def test_a_goal_is_worked_out_from_the_reference() -> None:
    series = Series("one", (0.020,), Goal(times=1.6, plus=4e-3))
    assert series.reaches(0.010) is True
    assert series.reaches(0.009) is False
    assert str(series.goal) == "1.6 x + 4 ms"
    assert Series("none", (1.0,)).reaches(1.0) is None


def test_things_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    series = measure.in_turn({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2)  # type: ignore[misc]
    assert "".join(order) == "ab" + "ab" + "ba"
    assert [len(one.seconds) for one in series] == [2, 2]


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.0, "2 s"), (0.1, "100 ms"), (0.00416, "4.16 ms"), (15e-6, "15 us"), (0.0, "0 us")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert measure.duration(seconds) == text


def test_every_step_is_noted_somewhere() -> None:
    named = {moment for moment, _ in where_time_goes.STEPS if moment[0] != "host"}
    assert named <= set(in_supervisor.POINTS)
