"""Which of a test's parameters are tried together where not every crossing is."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest

# How a test is tried, not what it is about: the way a cell is started, which Node, which revision of MCP.
MEANS = ("start", "node", "era")
LANGUAGE = "language"
INSTALLER = "installer"  # pip takes three times as long as uv: each has some tests of a file, not each test
ATTACKS = frozenset({"escapes", "supervisor"})  # folders in which each value is another attack
CHEAP = frozenset({"unit", "operations", "egress", "schemas"})  # folders whose tests start few processes, but for
GUEST = "guest"  # whose start one each
MOST_VALUES = 3  # of a test's where each takes long
Pair = tuple[str, ...]


def chosen(items: Iterable[pytest.Item], *, is_second: bool = False) -> set[pytest.Item]:
    """So many of ``items`` that every two values of a test's parameters have met, but no more than some of a test that
    takes long.

    ``MEANS`` are an exception: each test has each of their values once, and each language has in each file, but not
    each of a test's other values; each installer has some tests of a file. A second user's run (``is_second``) has
    them and the languages once in a file, each test once, and where a value is another attack each of these. Greedy,
    in the order of definition, so that the choice is the same each time.
    """
    pairs_of = _values_of if is_second else _pairs_of
    keep: set[pytest.Item] = set()
    files: defaultdict[object, dict[pytest.Item, frozenset[Pair]]] = defaultdict(dict)
    for item in items:
        if hasattr(item, "callspec"):
            files[item.path][item] = frozenset(pairs_of(item))
        else:
            keep.add(item)
    for pairs in files.values():
        tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in _covering(pairs):
            tests[item.originalname].append(item)  # type: ignore[attr-defined]
        for items_of_test in tests.values():
            keep.update(_spread(items_of_test))
    return keep


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """``MOST_VALUES`` of what is tried of a test, the first and the last among them, where all of it takes long."""
    parts = set(items[0].path.parts)
    takes_long = GUEST in parts or (ATTACKS | CHEAP).isdisjoint(parts)
    if len(items) <= MOST_VALUES or not takes_long:
        return items
    return [items[number * (len(items) - 1) // (MOST_VALUES - 1)] for number in range(MOST_VALUES)]


def _covering(pairs: dict[pytest.Item, frozenset[Pair]]) -> Iterator[pytest.Item]:
    """Items that have all pairs among them: always the first that has most of those that are missing."""
    missing = set().union(*pairs.values())
    items = list(pairs)
    # Counts only fall, so the top of the heap is the best once its own count is still right.
    heap = [(-len(pairs[item]), number) for number, item in enumerate(items)]
    heapq.heapify(heap)
    while missing:
        count, number = heap[0]
        new = pairs[items[number]] & missing
        if len(new) == -count:
            missing -= new
            yield items[number]
        heapq.heapreplace(heap, (-len(pairs[items[number]] & missing), number))


def _pairs_of(item: pytest.Item) -> Iterator[Pair]:
    callspec = item.callspec  # type: ignore[attr-defined]
    test = item.originalname  # type: ignore[attr-defined]
    means = [f"{name} {value!r}" for name, value in callspec.params.items() if name in MEANS]
    others = [f"{name} {value!r}" for name, value in callspec.params.items() if name not in (*MEANS, INSTALLER)]
    yield (test,)
    if INSTALLER in callspec.params:
        yield (INSTALLER, callspec.params[INSTALLER])
    for one in means:
        yield (test, one)
        yield (str(callspec.params.get("language")), one)
    yield from ((test, one) for one in others)
    yield from ((test, *two) for two in combinations(others, 2))


def _values_of(item: pytest.Item) -> Iterator[Pair]:
    test = item.originalname  # type: ignore[attr-defined]
    is_attack = not ATTACKS.isdisjoint(item.path.parts)
    yield (test,)
    for name, value in item.callspec.params.items():  # type: ignore[attr-defined]
        if name in (*MEANS, LANGUAGE, INSTALLER):
            yield (name, repr(value))
        elif is_attack:
            yield (test, name, repr(value))
