"""Whose turn it is next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from casemate.supervisor.due import Due

NEVER = float("inf")


def test_those_whose_time_has_come_are_told_once_the_earliest_first() -> None:
    due = Due()
    for name, when in (("late", 3.0), ("early", 1.0), ("never", NEVER), ("later", 9.0)):
        due.put(name, when)
    assert due.next() == 1.0
    assert due.take(3.0) == ["early", "late"]
    assert due.take(3.0) == []
    assert due.next() == 9.0


def test_a_time_that_was_put_anew_counts_alone() -> None:
    due = Due()
    due.put("one", 1.0)
    due.put("one", 5.0)
    assert (due.take(4.0), due.next()) == ([], 5.0)
    due.put("one", NEVER)
    assert (due.take(10.0), due.next()) == ([], NEVER)


def test_what_is_gone_is_not_told() -> None:
    due = Due()
    due.put("one", 1.0)
    due.drop("one")
    due.drop("one")
    assert (due.take(2.0), due.next()) == ([], NEVER)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9)), st.booleans())))
def test_it_tells_what_looking_at_all_of_them_would(acts: list[tuple[str, int | None, bool]]) -> None:
    due, times = Due(), dict[str, float]()
    for name, when, looks in acts:
        if when is None:
            due.drop(name)
            times.pop(name, None)
        elif looks:
            expected = sorted((time, one) for one, time in times.items() if time <= when)
            assert due.take(when) == [one for _, one in expected]
            for _, one in expected:
                del times[one]
        else:
            due.put(name, float(when))
            times[name] = float(when)
        assert due.next() == min(times.values(), default=NEVER)
