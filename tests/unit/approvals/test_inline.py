"""What rules allow is decided in the thread that asks, where that takes no time; nothing else is different there."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from tests.support.waiting import MAX_WAIT
from tests.unit.approvals.harness import Harness, question

from casemate import RecordUnavailable
from casemate.model.approval import ApprovalVerdict, Question
from casemate.model.kinds import Effect
from casemate.policy.patterns import Like
from casemate.policy.rules import Rule, Rules

ALLOWED = Rule("allow", "tool", server="files", tool="read", where="rule 1")


def asked(
    harness: Harness, asking: Question | None = None, *, inline: bool = True
) -> tuple[Future[ApprovalVerdict], bool]:
    """The future of a question, and whether it had its verdict when asking returned."""

    async def ask() -> tuple[Future[ApprovalVerdict], bool]:
        future = harness.requester().decide(asking or question(), inline=inline)
        return future, future.done()

    return asyncio.run(ask())


def test_what_a_rule_allows_has_its_row_and_its_verdict_before_asking_returns_and_no_thread_is_needed() -> None:
    harness = Harness(rules=Rules((ALLOWED,)))
    before = set(threading.enumerate())
    future, was_there = asked(harness)
    assert was_there
    assert future.result(0) == ApprovalVerdict(True, "rule 1", "allowed by rule 1")
    assert [(row["decision"], row["by"], row["arguments"]) for row in harness.rows] == [
        ("allowed", "rule 1", {"path": "a"})
    ]
    assert set(threading.enumerate()) <= before
    harness.approvals.close()


def test_who_has_no_time_is_answered_by_the_brokers_thread() -> None:
    harness = Harness(rules=Rules((ALLOWED,)))
    threads: list[str] = []

    def record(run: str, namespace: str, detail: dict[str, object]) -> None:
        threads.append(threading.current_thread().name)
        harness._record(run, namespace, detail)

    harness.approvals._record = record
    future, _ = asked(harness, inline=False)
    assert future.result(MAX_WAIT).allow
    assert threads == ["casemate-approvals"]
    harness.approvals.close()


@pytest.mark.parametrize("effect", ["deny", "ask"])
def test_what_no_rule_allows_is_decided_as_ever(effect: Effect) -> None:
    harness = Harness(rules=Rules((replace(ALLOWED, effect=effect),)))
    future, _ = asked(harness)
    assert future.result(MAX_WAIT).allow is False
    harness.approvals.close()
    assert harness.decisions == ["denied"]


def test_what_cannot_be_recorded_is_denied_here_too() -> None:
    harness = Harness(rules=Rules((ALLOWED,)))
    harness.record_fails = RecordUnavailable("the disk is full")
    future, _ = asked(harness)
    assert (future.result(MAX_WAIT).allow, future.result(0).by) == (False, "record")
    harness.approvals.close()


def test_a_question_that_takes_long_to_look_up_is_none_for_the_thread_that_asks() -> None:
    wide = replace(ALLOWED, arguments={"path": Like("a" * 2000 + "*")})
    harness = Harness(rules=Rules((wide,)))
    assert harness.rules.effort(2000) > 1_000_000
    threads: list[str] = []
    judge = harness.rules.judge

    def judged(asking: Question, now: float) -> tuple[Effect, list[Rule]]:
        threads.append(threading.current_thread().name)
        return judge(asking, now)

    harness.rules.judge = judged  # type: ignore[method-assign, assignment]
    future, _ = asked(harness, question("a" * 2001))
    assert future.result(MAX_WAIT).allow
    assert set(threads) == {"casemate-approvals"}
    harness.approvals.close()


def test_what_asks_after_its_run_is_over_is_withdrawn_here_too() -> None:
    harness = Harness(rules=Rules((ALLOWED,)))

    async def late() -> ApprovalVerdict:
        requester = harness.requester()
        requester.close()
        return await asyncio.wrap_future(requester.decide(question(), inline=True))

    assert asyncio.run(late()).by == "withdrawn"
    harness.approvals.close()
    assert harness.decisions == ["denied"]


def test_a_budget_is_counted_exactly_however_many_threads_ask_here_and_there() -> None:
    rule = replace(ALLOWED, uses=137)
    harness = Harness(rules=Rules((rule,)))

    async def all_at_once() -> list[ApprovalVerdict]:
        requester = harness.requester()
        begin = threading.Barrier(10)

        def some(number: int) -> list[Future[ApprovalVerdict]]:
            begin.wait(MAX_WAIT)
            return [requester.decide(question(f"{number}/{n}"), inline=(number + n) % 3 > 0) for n in range(20)]

        with ThreadPoolExecutor(10) as threads:
            futures = [future for made in threads.map(some, range(10)) for future in made]
        verdicts = [future.result(MAX_WAIT) for future in futures]
        await requester.end()
        return verdicts

    verdicts = asyncio.run(all_at_once())
    assert sum(verdict.allow for verdict in verdicts) == 137
    assert harness.rules._spent[rule] == 137
    harness.approvals.close()
    assert sorted(harness.decisions) == ["allowed"] * 137 + ["denied"] * 63


def test_rows_are_in_the_order_in_which_one_thread_has_asked() -> None:
    harness = Harness(rules=Rules((ALLOWED,)))

    async def one_by_one() -> None:
        requester = harness.requester()
        for n in range(100):
            requester.decide(question(str(n)), inline=n % 5 > 0)
        await requester.end()

    asyncio.run(one_by_one())
    harness.approvals.close()
    assert [row["arguments"]["path"] for row in harness.rows] == [str(n) for n in range(100)]


def test_who_asks_here_waits_for_nobody_who_is_slow() -> None:
    """The broker's thread is held up by the record; asking comes back all the same."""
    harness, held, go = Harness(rules=Rules((ALLOWED,))), threading.Event(), threading.Event()

    def slow(run: str, namespace: str, detail: dict[str, object]) -> None:
        held.set()
        assert go.wait(MAX_WAIT)
        harness._record(run, namespace, detail)

    harness.approvals._record = slow

    async def both() -> tuple[bool, list[bool]]:
        requester = harness.requester()
        first = requester.decide(question("first"))
        assert await asyncio.to_thread(held.wait, MAX_WAIT)
        second = requester.decide(question("second"), inline=True)
        was_there = second.done()
        go.set()
        return was_there, [first.result(MAX_WAIT).allow, second.result(MAX_WAIT).allow]

    assert asyncio.run(both()) == (False, [True, True])
    harness.approvals.close()
    assert [row["arguments"]["path"] for row in harness.rows] == ["first", "second"]


def test_what_is_put_off_is_done_by_itself_in_order_and_all_of_it_before_the_run_is_over() -> None:
    harness, done, all_there = Harness(rules=Rules((ALLOWED,))), list[int](), threading.Event()

    async def run() -> None:
        requester = harness.requester()
        for n in range(100):
            requester.defer(partial(done.append, n))
        requester.defer(all_there.set)
        assert await asyncio.to_thread(all_there.wait, MAX_WAIT)
        for n in range(100, 200):
            requester.defer(partial(done.append, n))
        await requester.end()
        assert done == list(range(200))

    asyncio.run(run())
    harness.approvals.close()
