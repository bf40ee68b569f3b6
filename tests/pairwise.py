"""Which of a test's parameters are tried together where not every crossing is."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest

# How a test is tried, not what it is about: the language, the way a cell is started, which installer, which Node, which
# revision of MCP.
MEANS = ("language", "start", "installer", "node", "era")
ATTACKS = frozenset({"escapes", "supervisor"})  # folders in which each value is another attack
CHEAP = frozenset({"unit", "operations", "egress", "schemas"})  # folders whose tests start few processes, but for
CHOSEN = frozenset({"settings"})  # folders whose tests choose their cases themselves
GUEST = "guest"  # whose start one each
MOST_VALUES = 2  # cases of a test where each takes long
Pair = tuple[str, ...]


def takes_all(config: pytest.Config) -> bool:
    """Whether everything runs: it was asked for, or a test is named."""
    return bool(config.getoption("--all")) or any("::" in argument for argument in config.args)


def chosen(items: Iterable[pytest.Item], *, is_second: bool = False) -> set[pytest.Item]:
    """So many of ``items`` that each test has each of its cases, or some where each takes long.

    ``MEANS`` are spread over the tests of a file: every two of their values meet in some test of it. A second user's
    run (``is_second``) has each of their values in some test, and each test once, or where a case is another attack
    each of these. Greedy, in the order of definition, so that the choice is the same each time.
    """
    keep: set[pytest.Item] = set()
    tests: defaultdict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and CHOSEN.isdisjoint(item.path.parts):
            tests[item.path, item.originalname].append(item)  # type: ignore[attr-defined]
        else:
            keep.add(item)
    files: defaultdict[object, dict[pytest.Item, frozenset[Pair]]] = defaultdict(dict)
    for items_of_test in tests.values():
        for item in _some(items_of_test):
            files[item.path][item] = frozenset(_pairs_of(item, is_second=is_second))
    for pairs in files.values():
        keep.update(_covering(pairs))
    return keep


def _some(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items of ``MOST_VALUES`` of a test's cases, the first and the last among them, where each takes long."""
    parts = set(items[0].path.parts)
    takes_long = GUEST in parts or (ATTACKS | CHEAP).isdisjoint(parts)
    cases = list(dict.fromkeys(map(_case_of, items)))
    if len(cases) <= MOST_VALUES or not takes_long:
        return items
    some = {cases[number * (len(cases) - 1) // (MOST_VALUES - 1)] for number in range(MOST_VALUES)}
    return [item for item in items if _case_of(item) in some]


def _case_of(item: pytest.Item) -> Pair:
    """What it is about: its values that are no means."""
    params = item.callspec.params  # type: ignore[attr-defined]
    return tuple(f"{name} {_text_of(value)}" for name, value in params.items() if name not in MEANS)


_texts: dict[int, str] = {}  # of values that many items have, by their identity


def _text_of(value: object) -> str:
    return _texts.get(id(value)) or _texts.setdefault(id(value), repr(value))


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


def _pairs_of(item: pytest.Item, *, is_second: bool) -> Iterator[Pair]:
    """What of its file this item would cover: its test, each case of it, and each crossing of how it is tried."""
    params = item.callspec.params  # type: ignore[attr-defined]
    test = item.originalname  # type: ignore[attr-defined]
    means = [f"{name} {value!r}" for name, value in params.items() if name in MEANS]
    yield (test,)
    yield from ((one,) for one in means)
    if not is_second:
        yield from combinations(means, 2)
    if not is_second or not ATTACKS.isdisjoint(item.path.parts):
        yield from ((test, one) for one in _case_of(item))
