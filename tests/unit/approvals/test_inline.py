"""What rules allow is decided in the thread that asks, where that takes no time; nothing else is different there."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from tests.unit.approvals.bed import PATIENCE, Bed, question

from casemate import RecordUnavailable
from casemate.model.approval import Effect, Question, Verdict
from casemate.policy.patterns import Like
from casemate.policy.rules import Rule, Rules

ALLOWED = Rule("allow", "tool", server="files", tool="read", where="rule 1")


def asked(bed: Bed, asking: Question | None = None, *, inline: bool = True) -> tuple[Future[Verdict], bool]:
    """The future of a question, and whether it had its verdict when asking returned."""

    async def ask() -> tuple[Future[Verdict], bool]:
        future = bed.requester().decide(asking or question(), inline=inline)
        return future, future.done()

    return asyncio.run(ask())


def test_what_a_rule_allows_has_its_row_and_its_verdict_before_asking_returns_and_no_thread_is_needed() -> None:
    bed = Bed(rules=Rules((ALLOWED,)))
    before = threading.active_count()
    future, was_there = asked(bed)
    assert was_there
    assert future.result(0) == Verdict(True, "rule 1", "allowed by rule 1")
    assert [(row["decision"], row["by"], row["arguments"]) for row in bed.rows] == [
        ("allowed", "rule 1", {"path": "a"})
    ]
    assert threading.active_count() == before
    bed.approvals.close()


def test_who_has_no_time_is_answered_by_the_brokers_thread() -> None:
    bed = Bed(rules=Rules((ALLOWED,)))
    threads: list[str] = []

    def record(run: str, namespace: str, detail: dict[str, object]) -> None:
        threads.append(threading.current_thread().name)
        bed._record(run, namespace, detail)

    bed.approvals._record = record
    future, _ = asked(bed, inline=False)
    assert future.result(PATIENCE).allow
    assert threads == ["casemate-approvals"]
    bed.approvals.close()


@pytest.mark.parametrize("effect", ["deny", "ask"])
def test_what_no_rule_allows_is_decided_as_ever(effect: Effect) -> None:
    bed = Bed(rules=Rules((replace(ALLOWED, effect=effect),)))
    future, _ = asked(bed)
    assert future.result(PATIENCE).allow is False
    bed.approvals.close()
    assert bed.decisions == ["denied"]


def test_where_the_record_would_have_to_wait_the_thread_does_and_one_use_is_spent_in_all() -> None:
    rule = replace(ALLOWED, uses=2)
    bed = Bed(rules=Rules((rule,)))
    bed.is_busy = True
    future, _ = asked(bed)
    assert future.result(PATIENCE).allow
    assert bed.rules.used(rule) == 1
    bed.approvals.close()
    assert bed.decisions == ["allowed"]


def test_what_cannot_be_recorded_is_denied_here_too() -> None:
    bed = Bed(rules=Rules((ALLOWED,)))
    bed.record_fails = RecordUnavailable("the disk is full")
    future, _ = asked(bed)
    assert (future.result(PATIENCE).allow, future.result(0).by) == (False, "record")
    bed.approvals.close()


def test_a_question_that_takes_long_to_look_up_is_none_for_the_thread_that_asks() -> None:
    wide = replace(ALLOWED, arguments={"path": Like("a" * 2000 + "*")})
    bed = Bed(rules=Rules((wide,)))
    assert bed.rules.effort(2000) > 1_000_000
    threads: list[str] = []
    judge = bed.rules.judge

    def judged(asking: Question, now: float) -> tuple[Effect, list[Rule]]:
        threads.append(threading.current_thread().name)
        return judge(asking, now)

    bed.rules.judge = judged  # type: ignore[method-assign, assignment]
    future, _ = asked(bed, question("a" * 2001))
    assert future.result(PATIENCE).allow
    assert set(threads) == {"casemate-approvals"}
    bed.approvals.close()


def test_what_asks_after_its_run_is_over_is_withdrawn_here_too() -> None:
    bed = Bed(rules=Rules((ALLOWED,)))

    async def late() -> Verdict:
        requester = bed.requester()
        requester.close()
        return await asyncio.wrap_future(requester.decide(question(), inline=True))

    assert asyncio.run(late()).by == "withdrawn"
    bed.approvals.close()
    assert bed.decisions == ["denied"]


def test_a_budget_is_counted_exactly_however_many_threads_ask_here_and_there() -> None:
    rule = replace(ALLOWED, uses=137)
    bed = Bed(rules=Rules((rule,)))

    async def all_at_once() -> list[Verdict]:
        requester = bed.requester()
        begin = threading.Barrier(10)

        def some(number: int) -> list[Future[Verdict]]:
            begin.wait(PATIENCE)
            return [requester.decide(question(f"{number}/{n}"), inline=(number + n) % 3 > 0) for n in range(20)]

        with ThreadPoolExecutor(10) as threads:
            futures = [future for made in threads.map(some, range(10)) for future in made]
        verdicts = [future.result(PATIENCE) for future in futures]
        await requester.end()
        return verdicts

    verdicts = asyncio.run(all_at_once())
    assert sum(verdict.allow for verdict in verdicts) == 137
    assert bed.rules.used(rule) == 137
    bed.approvals.close()
    assert sorted(bed.decisions) == ["allowed"] * 137 + ["denied"] * 63


def test_rows_are_in_the_order_in_which_one_thread_has_asked() -> None:
    bed = Bed(rules=Rules((ALLOWED,)))

    async def one_by_one() -> None:
        requester = bed.requester()
        for n in range(100):
            bed.is_busy = n % 7 == 0
            requester.decide(question(str(n)), inline=n % 5 > 0)
        await requester.end()

    asyncio.run(one_by_one())
    bed.approvals.close()
    assert [row["arguments"]["path"] for row in bed.rows] == [str(n) for n in range(100)]


def test_who_asks_here_waits_for_nobody_who_is_slow() -> None:
    """The broker's thread is held up by the record; asking comes back all the same."""
    bed, held, go = Bed(rules=Rules((ALLOWED,))), threading.Event(), threading.Event()

    def slow(run: str, namespace: str, detail: dict[str, object]) -> None:
        held.set()
        assert go.wait(PATIENCE)
        bed._record(run, namespace, detail)

    bed.approvals._record = slow

    async def both() -> tuple[bool, list[bool]]:
        requester = bed.requester()
        first = requester.decide(question("first"))
        assert await asyncio.to_thread(held.wait, PATIENCE)
        second = requester.decide(question("second"), inline=True)
        was_there = second.done()
        go.set()
        return was_there, [first.result(PATIENCE).allow, second.result(PATIENCE).allow]

    assert asyncio.run(both()) == (False, [True, True])
    bed.approvals.close()
    assert [row["arguments"]["path"] for row in bed.rows] == ["first", "second"]


def test_what_is_put_off_is_done_by_itself_in_order_and_all_of_it_before_the_run_is_over() -> None:
    bed, done, all_there = Bed(rules=Rules((ALLOWED,))), list[int](), threading.Event()

    async def run() -> None:
        requester = bed.requester()
        for n in range(100):
            requester.defer(partial(done.append, n))
        requester.defer(all_there.set)
        assert await asyncio.to_thread(all_there.wait, PATIENCE)
        for n in range(100, 200):
            requester.defer(partial(done.append, n))
        await requester.end()
        assert done == list(range(200))

    asyncio.run(run())
    bed.approvals.close()
