"""Which wall is taken: the first that holds, and none that is weaker than the policy wants."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from casemate import sync
from casemate.api.policy_options import policy_from
from casemate.errors import InvalidArgument, WallUnavailable
from casemate.model.isolation import STRENGTHS, WALLS, IsolationReport, WallTraits
from casemate.walls import registry
from casemate.walls.registry import StrongestWall
from casemate.walls.wall import Wall

SHARED = IsolationReport("native", "shared", (), (), (), 0.0, ())
PLAIN = replace(SHARED, wall="landlock")
OWN = replace(SHARED, wall="docker", kernel_boundary="user-space")


class OneWall:
    def __init__(self, report: IsolationReport | None) -> None:
        self.name = "refused" if report is None else report.wall
        self._report = report

    async def prove(self) -> IsolationReport:
        if self._report is None:
            raise WallUnavailable("it cannot be had", reason="refused", remediation="")
        return self._report

    async def close(self) -> None:
        pass


def test_a_runtime_for_containers_is_refused_where_cells_are_none() -> None:
    with pytest.raises(InvalidArgument, match="isolation='docker'"):
        sync.Sandbox(runtime="runsc")


def strongest(*reports: IsolationReport | None, at_least: Any = None) -> IsolationReport:
    walls = {f"{place}": OneWall(report) for place, report in enumerate(reports)}
    return asyncio.run(StrongestWall(lambda name: cast("Wall", walls[name]), tuple(walls), at_least).prove())


@pytest.mark.parametrize(
    ("at_least", "taken"),
    [
        (None, SHARED),
        ("shared-kernel-without-namespaces", SHARED),
        ("shared-kernel", SHARED),
        ("own-kernel", OWN),
    ],
)
def test_the_first_wall_that_is_strong_enough_is_taken(at_least: str | None, taken: IsolationReport) -> None:
    assert strongest(None, SHARED, PLAIN, OWN, at_least=at_least) == taken


@pytest.mark.parametrize(("report", "at_least"), [(PLAIN, "shared-kernel"), (SHARED, "own-kernel")])
def test_a_wall_that_is_weaker_than_the_policy_wants_is_refused(report: IsolationReport, at_least: str) -> None:
    with pytest.raises(WallUnavailable) as refused:
        strongest(report, at_least=at_least)
    assert refused.value.reason == "too_weak"
    assert at_least in refused.value.message


@pytest.mark.parametrize("name", WALLS)
def test_each_wall_is_found_and_has_the_name_that_it_is_listed_by(name: str) -> None:
    assert registry._class_of(name).name == name


def test_a_wall_that_is_not_listed_counts_as_the_weakest() -> None:
    assert replace(SHARED, wall="new").strength == STRENGTHS[0]


def test_a_wall_is_listed_with_its_strength_and_its_layers() -> None:
    assert {"strength", "layers"}.isdisjoint(WallTraits._field_defaults)


def test_a_policy_names_the_least_wall_in_words_that_are_known() -> None:
    assert policy_from({"isolation": {"at_least": "own-kernel"}}).at_least == "own-kernel"
    assert policy_from({"isolation": "native"}).at_least is None
    with pytest.raises(InvalidArgument, match="own-kernel"):
        policy_from({"isolation": {"at_least": "steel"}})
