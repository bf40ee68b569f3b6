"""The benchmarks are only looked at here: that they can be started, and that their figures are what they are called."""

from __future__ import annotations

import asyncio
import importlib
import operator
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import idle_memory, in_supervisor, measure, noted, ready, where_time_goes
from benchmarks.measure import Goal, Series

from casemate import Sandbox
from casemate.execution import pipeline
from casemate.model.plan import Plan, ReadyStart

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = (
    "startup.py",
    "one_shot.py",
    "walls.py",
    "sessions.py",
    "many_sessions.py",
    "idle_memory.py",
    "ending.py",
    "record.py",
    "evidence.py",
    "review.py",
    "approvals.py",
    "egress.py",
    "interception.py",
    "redaction.py",
    "telemetry.py",
    "tools.py",
    "where_time_goes.py",
    "endurance.py",
    "console.py",
    "compare.py",
)


@pytest.mark.full
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


def test_a_goal_for_the_slowest_is_one_more_to_reach() -> None:
    series = Series("one", (0.002, 0.002, 0.030), Goal(times=0.25, tail=2.0))
    assert series.reaches(0.016) is True
    assert series.reaches(0.014) is False
    assert Goal(times=0.25, tail=2.0).told(0.016) == "0.25 x = 4 ms, p99 2 x = 32 ms"


def test_a_goal_may_be_bounded_however_slow_the_reference_is() -> None:
    goal = Goal(times=0.2, most=1e-3)
    assert goal.seconds(0.004) == pytest.approx(0.0008)
    assert goal.seconds(0.040) == pytest.approx(0.001)
    assert goal.told(0.040) == "0.2 x = 8 ms, at most 1 ms"


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


def every_step() -> set[tuple[str, str, str]]:
    profiles = (where_time_goes.BY_EXEC, where_time_goes.READY)
    runs = [steps for profile in profiles for steps in profile.steps.values()]
    ahead = [chain for profile in profiles for chains in profile.ahead.values() for chain in chains]
    return {moment for steps in (*runs, *ahead) for moment, _ in steps}


def test_every_step_is_noted_somewhere() -> None:
    assert {moment for moment in every_step() if moment[0] != "host"} == set(in_supervisor.POINTS)


@pytest.mark.parametrize(("module", "name", "_"), in_supervisor.POINTS)
def test_what_is_noted_in_the_supervisor_is_there(module: str, name: str, _: str) -> None:
    assert callable(operator.attrgetter(name)(importlib.import_module(f"casemate.supervisor.{module}")))


def test_what_is_noted_in_the_host_is_there() -> None:
    assert all(callable(getattr(holder, attribute)) for holder, attribute, _ in where_time_goes.NOTED)
    by_itself = {"call", "waits", "first line", "last line", "intent", "outcome"}
    known = {name for _, _, name in where_time_goes.NOTED} | by_itself
    assert {name for module, name, _ in every_step() if module == "host"} <= known


def test_only_one_sandbox_keeps_nothing_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "make_plan", pipeline.make_plan)  # type: ignore[attr-defined]

    async def plans() -> list[Plan]:
        cold, other = (Sandbox(audit=tmp_path / f"{name}.db") for name in ("cold", "other"))
        ready.keep_nothing(cold)
        return [await one.explain("pass") for one in (cold, other)]

    cold, other = asyncio.run(plans())
    assert isinstance(cold.waiting, str)
    assert isinstance(other.waiting, ReadyStart)


def test_steps_that_did_not_happen_are_part_of_the_next(tmp_path: Path) -> None:
    recorded = noted.Noted(str(tmp_path / "moments"))
    recorded.host.update({("call", "begin"): 1000, ("plan", "end"): 500, ("call", "end"): 4000})
    taken: dict[str, list[float]] = {}
    steps = ((("host", "call", "begin"), ""), (("host", "plan", "end"), "plan"), (("host", "call", "end"), "rest"))
    where_time_goes._add(taken, recorded, steps)
    assert taken == {"rest": [3e-6], "the whole": [3e-6]}


def test_memory_that_is_hidden_makes_no_median() -> None:
    assert idle_memory._median([1, 3]) == 2
    assert idle_memory._median([1, None]) is None
    assert idle_memory.Pair(None, 3, None).together == 3
    assert idle_memory._text(None) == "?"
