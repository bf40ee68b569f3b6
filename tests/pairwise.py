"""Which of a test's parameters are tried together where not every crossing is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest

# Parameters whose values are ways to try the same thing; others are what a test is about, and all of them are tried.
AXES = ("language", "start", "wall", "session", "way", "installer")
Pair = tuple[tuple[str, str], tuple[str, str]]


def chosen(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """So many of ``items`` that in each file each test has met each value of each axis, and these have met each other.

    Greedy, in order of definition, so that the choice is the same each time.
    """
    keep: set[pytest.Item] = set()
    files: defaultdict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _axes_of(item):
            files[item.path].append(item)
        else:
            keep.add(item)
    for crossed in files.values():
        keep.update(_covering({item: frozenset(_pairs_of(item)) for item in crossed}))
    return keep


def _covering(pairs: dict[pytest.Item, frozenset[Pair]]) -> Iterator[pytest.Item]:
    """Items that have all pairs among them: always that which has most of those that are missing."""
    missing = set().union(*pairs.values())
    while missing:
        best = max(pairs, key=lambda item: len(pairs[item] & missing))
        missing -= pairs[best]
        yield best


def _axes_of(item: pytest.Item) -> dict[str, str]:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return {}
    return {name: str(callspec.indices[name]) for name in AXES if name in callspec.params}


def _pairs_of(item: pytest.Item) -> Iterator[Pair]:
    """Every two of: the test with what it is about, and its value of each axis."""
    callspec = item.callspec  # type: ignore[attr-defined]
    about = {name: place for name, place in callspec.indices.items() if name not in AXES}
    factors = {"test": f"{item.originalname}{sorted(about.items())}", **_axes_of(item)}  # type: ignore[attr-defined]
    yield from combinations(sorted(factors.items()), 2)
