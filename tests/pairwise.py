"""Chooses which combinations of a test's parameters run when not all do."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest

# Parameters for how a test runs, not what it is about: the language, the way a cell is started, the installer, the
# version of Node, the revision of MCP.
MEANS = ("language", "start", "installer", "node", "era")
ATTACKS = frozenset({"escapes", "supervisor"})  # folders where each value is a different attack
CHEAP = frozenset({"unit", "operations", "egress", "schemas"})  # folders with tests that start few processes
CHOSEN = frozenset({"settings"})  # folders with tests that choose their own cases
GUEST = "guest"  # an exception from CHEAP: each of its tests starts a process
MOST_VALUES = 2  # cases of a slow test
Pair = tuple[str, ...]


def takes_all(config: pytest.Config) -> bool:
    """Whether everything runs: with ``--all``, or if the command line names a test."""
    return bool(config.getoption("--all")) or any("::" in argument for argument in config.args)


def chosen(items: Iterable[pytest.Item], *, is_second: bool = False) -> set[pytest.Item]:
    """Choose ``items`` so that each test runs with each of its cases; a slow test runs with only some.

    ``MEANS`` are spread over the tests of a file: every pair of their values occurs in some test. A second user's run
    (``is_second``) needs each value in some test, and each test once, or once per case if cases are attacks. The
    greedy choice follows the order of definition, so it is always the same.
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
    """All items of a test; for a slow test those of ``MOST_VALUES`` cases, among them the first and the last."""
    parts = set(items[0].path.parts)
    takes_long = GUEST in parts or (ATTACKS | CHEAP).isdisjoint(parts)
    cases = list(dict.fromkeys(map(_case_of, items)))
    if len(cases) <= MOST_VALUES or not takes_long:
        return items
    some = {cases[number * (len(cases) - 1) // (MOST_VALUES - 1)] for number in range(MOST_VALUES)}
    return [item for item in items if _case_of(item) in some]


def _case_of(item: pytest.Item) -> Pair:
    """The values of an item's parameters that are not in ``MEANS``."""
    params = item.callspec.params  # type: ignore[attr-defined]
    return tuple(f"{name} {_text_of(value)}" for name, value in params.items() if name not in MEANS)


_texts: dict[int, str] = {}  # the reprs of shared values, by identity


def _text_of(value: object) -> str:
    return _texts.get(id(value)) or _texts.setdefault(id(value), repr(value))


def _covering(pairs: dict[pytest.Item, frozenset[Pair]]) -> Iterator[pytest.Item]:
    """Items that cover all pairs. Each is the first item that covers the most missing pairs."""
    missing = set().union(*pairs.values())
    items = list(pairs)
    # Counts only fall, so the top of the heap is the best if its count is still right.
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
    """What an item covers in its file: its test, its case, its means, and each pair of its means."""
    params = item.callspec.params  # type: ignore[attr-defined]
    test = item.originalname  # type: ignore[attr-defined]
    means = [f"{name} {value!r}" for name, value in params.items() if name in MEANS]
    yield (test,)
    yield from ((one,) for one in means)
    if not is_second:
        yield from combinations(means, 2)
    if not is_second or not ATTACKS.isdisjoint(item.path.parts):
        yield from ((test, one) for one in _case_of(item))
