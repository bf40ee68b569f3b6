"""The walls that the suites test, and whether each is available."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.pairwise import takes_all
from tests.support.engine import skip_without_engine

from casemate import WallUnavailable, sync
from casemate.model import isolation

WALLS = [name if name == "native" else pytest.param(name, marks=pytest.mark.full) for name in isolation.WALLS]


def walls_of(config: pytest.Config, walls: Sequence[Any] = WALLS) -> Sequence[Any]:
    """The ``walls`` to test. Without ``--all`` the others are not even collected, which saves time."""
    usual = [one for one in walls if isinstance(one, str)]
    return walls if takes_all(config) or not usual else usual


def skip_without(wall: str, folders: pytest.TempPathFactory) -> None:
    """Skip if the wall is unavailable, and say why. The native wall must be available."""
    if wall in ("docker", "gvisor"):
        skip_without_engine("runsc" if wall == "gvisor" else "")
    elif wall in isolation.WALLS and wall != "native":
        try:
            with sync.Sandbox(isolation=wall, audit=folders.mktemp("audit") / "audit.db") as one:
                one.run("pass")
        except WallUnavailable as error:
            pytest.skip(str(error))


Cases = Mapping[str, Mapping[str, str]]


def judge(items: Iterable[pytest.Item], folder: Path, weaker: Cases, undecided: Cases) -> None:
    """Mark tests in ``folder``: those in ``weaker`` as expected failures, those in ``undecided`` (flaky) as skipped.

    Both map a wall to tests and the reason. A key is a test's name, or a name, a blank and the value of a parameter.
    """
    for wall, name, values, item in _cases(item for item in items if folder in item.path.parents):
        for case, reason in weaker.get(wall, {}).items():
            if _fits(case, name, values):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        for case, reason in undecided.get(wall, {}).items():
            if _fits(case, name, values):
                item.add_marker(pytest.mark.skip(reason=reason))


def _fits(case: str, name: str, values: set[str]) -> bool:
    test, _, value = case.partition(" ")
    return name == test and (not value or value in values)


def _cases(items: Iterable[pytest.Item]) -> Iterator[tuple[str, str, set[str], pytest.Item]]:
    """The wall, name, parameter values and item of each test with a wall. Values include runs of adjacent id parts."""
    for item in items:
        callspec: Any = getattr(item, "callspec", None)
        if callspec is not None and "wall" in callspec.params:
            wall, parts = callspec.params["wall"], callspec.id.split("-")
            parts.remove(wall)
            spans = range(len(parts) + 1)
            values = {"-".join(parts[begin:end]) for begin in spans for end in spans if begin < end}
            yield wall, item.originalname, values, item  # type: ignore[attr-defined]
