"""Which cell is to be looked at next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from casemate.supervisor.watch import Schedule

NEVER = float("inf")


def test_those_whose_time_has_come_are_told_once_the_earliest_first() -> None:
    schedule = Schedule()
    for name, when in (("late", 3.0), ("early", 1.0), ("never", NEVER), ("later", 9.0)):
        schedule.set(name, when)
    assert schedule.next_time() == 1.0
    assert schedule.pop_due(3.0) == ["early", "late"]
    assert schedule.pop_due(3.0) == []
    assert schedule.next_time() == 9.0


def test_a_time_that_was_put_anew_counts_alone() -> None:
    schedule = Schedule()
    schedule.set("one", 1.0)
    schedule.set("one", 5.0)
    assert (schedule.pop_due(4.0), schedule.next_time()) == ([], 5.0)
    schedule.set("one", NEVER)
    assert (schedule.pop_due(10.0), schedule.next_time()) == ([], NEVER)


def test_what_is_gone_is_not_told() -> None:
    schedule = Schedule()
    schedule.set("one", 1.0)
    schedule.remove("one")
    schedule.remove("one")
    assert (schedule.pop_due(2.0), schedule.next_time()) == ([], NEVER)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9)), st.booleans())))
def test_it_tells_what_looking_at_all_of_them_would(acts: list[tuple[str, int | None, bool]]) -> None:
    schedule, times = Schedule(), dict[str, float]()
    for name, when, looks in acts:
        if when is None:
            schedule.remove(name)
            times.pop(name, None)
        elif looks:
            expected = sorted((time, one) for one, time in times.items() if time <= when)
            assert schedule.pop_due(when) == [one for _, one in expected]
            for _, one in expected:
                del times[one]
        else:
            schedule.set(name, float(when))
            times[name] = float(when)
        assert schedule.next_time() == min(times.values(), default=NEVER)
