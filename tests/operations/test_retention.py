"""Which of the runs that are over are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from casemate.operations.kept import Retention

_RUNS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50)), max_size=30)


@given(_RUNS, st.integers(1, 5), st.integers(0, 100), st.integers(2, 8))
def test_the_last_runs_of_an_account_are_kept_within_every_bound_and_always_its_very_last(
    ended: list[tuple[str, int]], runs: int, size: int, all_runs: int
) -> None:
    retention = Retention()
    kept: dict[str, tuple[str, int]] = {}
    for number, (account, bytes_) in enumerate(ended):
        run = str(number)
        retention.add(run, account, bytes_)
        kept[run] = (account, bytes_)
        gone = retention.beyond(account, runs=runs, size=size, all_runs=all_runs)
        before = dict(kept)
        assert all(kept.pop(one)[1] == held for one, held in gone.items())
        own = [one for one, (whose, _) in kept.items() if whose == account]
        assert own[-1] == run
        assert len(own) <= runs
        assert len(own) == 1 or sum(kept[one][1] for one in own) <= size
        assert len(kept) <= all_runs
        if len(before) <= all_runs:  # nothing goes but what its own account has too much of, and the oldest of that
            mine = [one for one, (whose, _) in before.items() if whose == account]
            assert list(gone) == mine[: len(gone)]
            if gone:
                left = [*mine[len(gone) - 1 :]]
                assert len(left) > runs or sum(before[one][1] for one in left) > size
