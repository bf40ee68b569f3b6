"""How many cells are kept ready for what was asked for, decided from numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.walls.native.demand import IDLE, PAUSE, Demand, is_busy, target_size

PLENTY = 1 << 40
MIB = 2**20
LATER = PAUSE * 2


def after(most: int, ended: float = 100.0) -> Demand:
    """What is known when ``most`` runs went on at once and have all ended."""
    demand = Demand()
    for _ in range(most):
        demand.begin(ended)
    for _ in range(most):
        demand.end(ended)
    return demand


@pytest.mark.parametrize("most", [1, 3, 8])
def test_as_many_as_were_used_at_once_and_one_more_are_ready(most: int) -> None:
    assert target_size(after(most), 100 + LATER, 16, PLENTY, MIB) == most + 1


def test_while_runs_go_on_half_are_made_up_for() -> None:
    demand = after(7)
    assert is_busy(demand, 100.0)
    assert target_size(demand, 100.0, 16, PLENTY, MIB) == 4
    assert not is_busy(demand, 100 + LATER)


def test_nobody_is_kept_for_a_kind_that_nobody_asks_for() -> None:
    demand = after(3)
    assert target_size(demand, 100 + IDLE - 1, 16, PLENTY, MIB) == 4
    assert target_size(demand, 100 + IDLE + 1, 16, PLENTY, MIB) == 0


def test_what_runs_counts_towards_the_most_at_once() -> None:
    demand = Demand()
    for _ in range(4):
        demand.begin(100.0)
    assert target_size(demand, 100.0, 4, PLENTY, MIB) == 0
    demand.end(100.0)
    assert target_size(demand, 100.0, 4, PLENTY, MIB) == 1


def test_ready_cells_take_no_more_than_a_share_of_the_free_memory() -> None:
    demand = after(9)
    assert target_size(demand, 100 + LATER, 16, 300 * MIB, 10 * MIB) == 3
    assert target_size(demand, 100 + LATER, 16, 0, 10 * MIB) == 0
    assert target_size(demand, 100 + LATER, 16, PLENTY, 0) == 10


def test_a_crowd_is_forgotten_after_a_while() -> None:
    demand = after(9)
    demand.begin(105.0)
    demand.end(105.0)
    assert demand.most == 9
    demand.begin(200.0)
    demand.end(200.0)
    assert demand.most == 1


TIMES = st.lists(st.tuples(st.booleans(), st.floats(0, 20, allow_nan=False)), max_size=40)


@given(TIMES, st.integers(1, 20), st.integers(0, 1 << 36), st.integers(0, 1 << 28), st.floats(0, 60))
def test_never_more_than_may_run_at_once_and_than_memory_allows(
    steps: list[tuple[bool, float]], concurrency: int, free: int, cost: int, pause: float
) -> None:
    demand, now = Demand(), 1000.0
    for begins, seconds in steps:
        now += seconds
        if begins and demand.running < concurrency:
            demand.begin(now)
        elif demand.running:
            demand.end(now)
        count = target_size(demand, now + pause, concurrency, free, cost)
        assert 0 <= count <= concurrency - demand.running
        assert count * cost <= free * 0.1
        assert demand.running <= demand.most or not demand.running
