"""The table of requests: each request has one end, the first; and each session is shown so many at a time, in order."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from casemate import ApprovalRequest
from casemate.approvals import requests
from casemate.approvals.requests import SHOWN_AT_ONCE, End, PendingRequest, RequestStates
from casemate.model.approval import Question

ENDS: tuple[End, ...] = ("approved", "denied", "expired", "withdrawn")


def pending(request: str, queue: str, run: str, size: int, caller: str = "") -> PendingRequest:
    """A request of this run."""
    requester: Any = SimpleNamespace(queue=queue, run=run, caller=caller)
    asked = ApprovalRequest(request, "tool", "", "", None, run, {}, "")
    return PendingRequest(requester, Question("tool", "", {}), asked, size, Future())


def add(table: RequestStates, request: str, queue: str, run: str, size: int, caller: str = "") -> str:
    return table.add(request, pending(request, queue, run, size, caller))


def show_next(table: RequestStates, queue: str) -> str | None:
    shown = table.show_next(queue)
    return shown.request.id if shown else None


class Table(RuleBasedStateMachine):
    """Any order of questions, turns and answers, beside a list of what each request should be."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RequestStates()
        self.ends: dict[str, str] = {}
        self.asked: dict[str, list[str]] = {"a": [], "b": []}
        self.shown: dict[str, list[str]] = {"a": [], "b": []}

    @rule(queue=st.sampled_from("ab"), many=st.integers(1, 20))
    def ask(self, queue: str, many: int) -> None:
        for _ in range(many):
            request = f"{queue}{len(self.asked[queue])}"
            assert add(self.table, request, queue, f"run of {queue}", 10) == ""
            self.asked[queue].append(request)

    @rule(queue=st.sampled_from("ab"))
    def take_turns(self, queue: str) -> None:
        while (request := show_next(self.table, queue)) is not None:
            self.shown[queue].append(request)

    @rule(queue=st.sampled_from("ab"), place=st.integers(0, 40), end=st.sampled_from(ENDS))
    def settle(self, queue: str, place: int, end: End) -> None:
        if place >= len(self.asked[queue]):
            assert self.table.settle(f"unknown {place}", end) is None
            return
        request = self.asked[queue][place]
        is_first = request not in self.ends
        assert (self.table.settle(request, end) is not None) is is_first
        self.ends.setdefault(request, end)

    @invariant()
    def the_first_end_stays(self) -> None:
        for request in (request for queue in self.asked.values() for request in queue):
            assert self.table.state_of(request) == self.ends.get(request, "asked")

    @invariant()
    def a_session_is_shown_a_bounded_number_in_its_order(self) -> None:
        for queue, shown in self.shown.items():
            assert len([request for request in shown if request not in self.ends]) <= SHOWN_AT_ONCE
            places = [self.asked[queue].index(request) for request in shown]
            assert places == sorted(places)
        waiting = {request for shown in self.shown.values() for request in shown if request not in self.ends}
        assert {one.request.id for one in self.table.pending if one.is_shown} == waiting


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_waits_for_one_caller_is_bounded_whatever_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_BYTES_OF_CALLER", 30)
    table = RequestStates()
    assert [bool(add(table, str(n), f"s{n}", f"r{n}", 10, "one")) for n in range(4)] == [False, False, False, True]
    assert add(table, "other", "s", "r", 10, "two") == ""
    table.settle("0", "denied")
    assert add(table, "again", "s", "r9", 10, "one") == ""


def test_a_request_that_is_over_before_its_turn_is_never_shown() -> None:
    table = RequestStates()
    for number in range(3):
        add(table, str(number), "session", "run", 1)
    table.settle("1", "withdrawn")
    assert [show_next(table, "session") for _ in range(3)] == ["0", "2", None]


@pytest.mark.parametrize(
    ("bound", "value", "size"),
    [("MOST_PENDING", 3, 1), ("MOST_PENDING_BYTES", 30, 10), ("MOST_ASKED", 3, 1)],
)
def test_a_run_that_floods_is_refused_and_other_runs_are_not(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int, size: int
) -> None:
    monkeypatch.setattr(requests, bound, value)
    table = RequestStates()
    refusals = [add(table, str(number), "session", "run", size) for number in range(5)]
    assert [bool(refusal) for refusal in refusals] == [False] * 3 + [True] * 2
    assert table.state_of("3") is None
    assert add(table, "other", "session", "another run", size) == ""
    table.settle("0", "approved")
    assert bool(add(table, "again", "session", "run", size)) is (bound == "MOST_ASKED")


def test_nothing_is_kept_of_a_run_that_is_over() -> None:
    table = RequestStates()
    for number in range(50):
        add(table, str(number), "session", "run", 1)
    table.show_next("session")
    for number in range(50):
        table.settle(str(number), "withdrawn")
    table.forget_run("run")
    table.forget_queue("session")
    assert not table._runs
    assert not table._not_shown
    assert not table._shown_counts
    assert not table._pending
