"""A request is decided by rules, by the first approver to answer, or by nobody."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.waiting import MAX_WAIT, until_async
from tests.unit.approvals.harness import Harness, question, verdict

from casemate import ApprovalRequest, Decision, InvalidArgument, RecordUnavailable, allow_all
from casemate.approvals.requests import SHOWN_AT_ONCE
from casemate.model.approval import ApprovalVerdict, Question


async def answered_by(approve: Callable[..., Any] | None, **effects: Any) -> tuple[ApprovalVerdict, Harness]:
    harness = Harness(approve, **effects)
    requester = harness.requester()
    given = await verdict(requester.decide(question()))
    await requester.end()
    harness.approvals.close()
    return given, harness


# -- who answers what


@pytest.mark.parametrize("answer", [True, Decision(allow=True), Decision(allow=True, reason="fine")])
@pytest.mark.parametrize("kind", ["sync", "async", "awaitable"])
async def test_an_approver_that_says_so_lets_it_cross(answer: object, kind: str) -> None:
    async def later(_request: ApprovalRequest) -> object:
        return answer

    def later_by_a_plain_call(request: ApprovalRequest) -> Awaitable[object]:
        return later(request)

    approve: dict[str, Callable[..., Any]] = {
        "sync": lambda _: answer,
        "async": later,
        "awaitable": later_by_a_plain_call,
    }
    given, harness = await answered_by(approve[kind])
    assert (given.allow, given.by) == (True, "approve")
    assert harness.decisions == ["allowed"]


@pytest.mark.parametrize(
    "answer", ["true", "True", 1, 1.0, None, False, object(), {"allow": True}, Decision(), Decision(allow=1)]  # type: ignore[arg-type]
)  # fmt: skip
@pytest.mark.parametrize("is_async", [True, False])
async def test_ap_19_nothing_but_a_real_true_allows(answer: object, is_async: bool) -> None:
    async def later(_request: ApprovalRequest) -> object:
        return answer

    given, harness = await answered_by(later if is_async else lambda _: answer)
    assert given.allow is False
    assert harness.decisions == ["denied"]


@pytest.mark.parametrize("answer", ["true", 1, None, "yes"])
async def test_ap_19_the_queue_takes_only_a_real_true_for_a_known_id_and_survives_the_rest(answer: Any) -> None:
    harness = Harness()
    requester = harness.requester()
    with harness.approvals.open():
        assert harness.approvals.decide("no such id", True) is False
        first, second = requester.decide(question("a")), requester.decide(question("b"))
        await until_async(lambda: len(harness.approvals.pending()) == 2)
        ids = [request.id for request in harness.approvals.pending()]
        assert harness.approvals.decide(ids[0], answer) is True
        assert (await verdict(first)).allow is False
        assert harness.approvals.decide(ids[1], True) is True
        assert (await verdict(second)).allow is True
    harness.approvals.close()


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_approver_that_fails_denies_and_its_words_stay_on_the_host(is_async: bool) -> None:
    async def fail(_request: ApprovalRequest) -> bool:
        raise ValueError("/home/me/secret")

    def fail_at_once(_request: ApprovalRequest) -> bool:
        raise SystemExit("/home/me/secret")

    given, harness = await answered_by(fail if is_async else fail_at_once)
    assert (given.allow, given.reason) == (False, "the approver failed")
    assert "/home/me/secret" in harness.rows[0]["note"]


async def test_ap_01_a_silent_channel_denies_when_its_time_is_up() -> None:
    harness = Harness(timeout=0.05)
    requester = harness.requester(stream=True)
    given = await verdict(requester.decide(question()))
    assert (given.allow, given.by) == (False, "timeout")
    assert harness.decisions == ["denied: timeout"]
    assert await harness.events[0].approve() is False
    harness.approvals.close()
    assert harness.decisions == ["denied: timeout", "ignored"]


async def test_with_asking_switched_off_it_crosses_and_the_result_says_so() -> None:
    given, harness = await answered_by(allow_all)
    assert (given.allow, given.by) == (True, "allow_all")
    assert ["switched off" in note for note in harness.approvals.notes] == [True]
    given, harness = await answered_by(allow_all, tool="deny")
    assert given.allow is False


async def test_with_asking_switched_off_nothing_crosses_beyond_a_list_of_hosts_that_was_given() -> None:
    harness = Harness(allow_all)
    requester = harness.requester()
    told = {beyond: await verdict(requester.decide(_host(beyond))) for beyond in ((), ("good.test",))}
    await requester.end()
    harness.approvals.close()
    assert {beyond: one.allow for beyond, one in told.items()} == {(): True, ("good.test",): False}
    assert "not in a given list" in told["good.test",].reason


def _host(beyond: tuple[str, ...]) -> Question:
    return Question("egress", "connect", {"host": "a.test", "port": 443}, beyond=beyond)


async def test_the_request_shows_exactly_what_was_asked_and_who_asks() -> None:
    harness = Harness()
    requester = harness.requester("run 7", "session 3", stream=True)
    requester.decide(question("x", namespace="other", session="other", run="other", schema="s"))
    await until_async(lambda: harness.events)
    request = harness.events[0]
    assert (request.namespace, request.session, request.run) == ("name", "session 3", "run 7")
    assert (request.kind, request.server, request.tool, request.arguments) == ("tool", "files", "read", {"path": "x"})
    assert len(request.hash) == 64
    harness.approvals.close()


# -- the first answer wins


async def test_ap_18_the_first_answer_wins_and_later_ones_are_ignored_and_on_record() -> None:
    asked = threading.Event()
    go = threading.Event()

    def slow(_request: ApprovalRequest) -> bool:
        asked.set()
        go.wait(MAX_WAIT)
        return False

    harness = Harness(slow)
    requester = harness.requester(stream=True)
    future = requester.decide(question())
    await until_async(lambda: harness.events and asked.is_set())
    assert await harness.events[0].approve(reason="mine") is True
    assert (await verdict(future)).allow is True
    assert await harness.events[0].deny("too late") is False
    assert await harness.events[0].approve() is False
    go.set()
    await until_async(lambda: harness.decisions.count("ignored") == 3)
    go.clear()
    second = requester.decide(question("b"))  # the channels have survived
    await until_async(lambda: len(harness.events) == 2)
    assert await harness.events[1].deny("no") is True
    assert (await verdict(second)).reason == "no"
    await requester.end()
    go.set()
    harness.approvals.close()
    assert [word for word in harness.decisions if word != "ignored"] == ["allowed", "denied"]


async def test_ap_18_of_many_at_once_one_answer_wins() -> None:
    harness = Harness()
    requester = harness.requester(stream=True)
    for number in range(20):
        future = requester.decide(question(str(number)))
        await until_async(functools.partial(harness.has_shown, number + 1))
        barrier = threading.Barrier(8)
        wins: list[bool] = []

        def answer(allow: bool, barrier: threading.Barrier = barrier, wins: list[bool] = wins) -> None:
            barrier.wait()
            if harness.approvals.decide(harness.events[-1].id, allow):
                wins.append(allow)

        threads = [threading.Thread(target=answer, args=(bool(n % 2),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wins == [(await verdict(future)).allow]
    harness.approvals.close()


async def test_a_wrong_answer_is_an_error_for_who_gives_it_and_the_request_waits_on() -> None:
    harness = Harness()
    requester = harness.requester(stream=True)
    future = requester.decide(question())
    await until_async(lambda: harness.events)
    with pytest.raises(InvalidArgument, match="scope"):
        await harness.events[0].approve(scope="ever")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="uses"):
        harness.approvals.decide(harness.events[0].id, True, uses=0)
    assert not future.done()
    assert await harness.events[0].approve() is True
    assert (await verdict(future)).allow
    harness.approvals.close()


# -- when it is over


@pytest.mark.parametrize("is_async", [True, False])
async def test_ap_20_what_is_over_is_withdrawn_and_who_answers_is_told(is_async: bool) -> None:
    asked = threading.Event()
    go = threading.Event()
    cancelled: list[bool] = []

    def wait(_request: ApprovalRequest) -> bool:
        asked.set()
        go.wait(MAX_WAIT)
        return True

    async def wait_async(_request: ApprovalRequest) -> bool:
        asked.set()
        try:
            await asyncio.sleep(MAX_WAIT)
        finally:
            cancelled.append(True)
        return True

    harness = Harness(wait_async if is_async else wait)
    requester = harness.requester(stream=True)
    future = requester.decide(question())
    await until_async(lambda: harness.events and asked.is_set())
    await requester.end()
    assert cancelled == [True] * is_async  # its task has ended when the run has
    assert await harness.events[0].approve() is False
    given = await verdict(future)
    assert (given.allow, given.by) == (False, "withdrawn")
    assert (await verdict(requester.decide(question()))).allow is False  # AP-21
    go.set()
    harness.approvals.close()
    assert harness.decisions[0] == "withdrawn"
    assert "allowed" not in harness.decisions


async def test_ap_17_a_channel_that_is_lost_denies_at_once_what_nobody_else_holds() -> None:
    harness = Harness(timeout=None)
    alone, followed = harness.requester("one"), harness.requester("two", "other", stream=True)
    with harness.approvals.open():
        with harness.approvals.open():
            both = followed.decide(question("b"))
            lost = alone.decide(question("a"))
            await until_async(lambda: len(harness.approvals.pending()) == 2)
        await asyncio.sleep(0)
        assert not lost.done()
    given = await verdict(lost)
    assert (given.allow, given.by) == (False, "nobody")
    assert not both.done()
    assert (await verdict(alone.decide(question("c")))).by == "nobody"
    harness.is_followed = False
    assert followed.stream is not None
    harness.approvals.drop_channel(followed.stream)
    assert (await verdict(both)).by == "nobody"
    harness.approvals.close()


async def test_a_broker_that_is_closed_leaves_no_question_open() -> None:
    harness = Harness()
    requester = harness.requester(stream=True)
    before = threading.active_count()
    futures = [requester.decide(question(str(number))) for number in range(40)]
    assert threading.active_count() == before + 1
    harness.approvals.close()
    assert {(await verdict(future)).by for future in futures} == {"withdrawn"}
    assert (await verdict(requester.decide(question()))).allow is False
    assert threading.active_count() == before


# -- rules, and answers that hold for longer


@pytest.mark.parametrize(
    ("scope", "later_run", "later_session"),
    [("once", False, False), ("run", False, False), ("session", True, False)],
)
async def test_an_answer_holds_for_its_scope_and_for_exactly_the_same(
    scope: Any, later_run: bool, later_session: bool
) -> None:
    count: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Decision | bool:
        count.append(request)
        return Decision(allow=True, scope=scope) if len(count) == 1 else False

    harness = Harness(approve)
    requester = harness.requester("run 1", "s")
    assert (await verdict(requester.decide(question()))).allow
    assert (await verdict(requester.decide(question()))).allow is (scope != "once")
    for other in (
        question("b"),
        question(schema="new"),
        Question("tool", "s", {"path": "a"}, server="files", tool="write"),
    ):
        assert (await verdict(requester.decide(other))).allow is False
    await requester.end()
    assert (await verdict(harness.requester("run 2", "s").decide(question()))).allow is later_run
    assert (await verdict(harness.requester("run 3", "t").decide(question()))).allow is later_session
    harness.approvals.forget_session("name", "s")
    assert (await verdict(harness.requester("run 4", "s").decide(question()))).allow is False
    harness.approvals.close()


async def test_an_answer_holds_as_often_and_as_long_as_it_says() -> None:
    answers = [Decision(True, "run", uses=2), False, Decision(True, "run", expires=1e-6), False, False]
    harness = Harness(lambda _: answers.pop(0))
    requester = harness.requester()
    given = [(await verdict(requester.decide(question()))).allow for _ in range(6)]
    assert given == [True, True, False, True, False, False]
    harness.approvals.close()


async def test_an_answer_for_the_session_decides_what_waits_for_the_same() -> None:
    harness = Harness()
    requester = harness.requester(stream=True)
    same = [requester.decide(question()) for _ in range(SHOWN_AT_ONCE * 2)]
    other = requester.decide(question("b"))
    await until_async(lambda: len(harness.events) == SHOWN_AT_ONCE)
    await harness.events[5].approve(scope="session")
    assert all([(await verdict(future)).allow for future in same])
    assert not other.done()
    harness.approvals.close()


# -- many


async def test_ap_14_three_hundred_at_once_are_shown_a_few_at_a_time_in_order_and_can_be_denied_at_once() -> None:
    harness = Harness()
    requester = harness.requester(stream=True)
    futures = [requester.decide(question(str(number))) for number in range(300)]
    for number in range(100):
        await until_async(functools.partial(harness.has_shown, number + 1))
        assert len(harness.approvals.pending()) <= SHOWN_AT_ONCE
        assert harness.events[number].arguments == {"path": str(number)}
        assert await harness.events[number].approve()
        assert (await verdict(futures[number])).allow
    assert harness.approvals.deny_all("enough", session="another") == 0
    assert harness.approvals.deny_all("enough") == 200
    assert {(await verdict(future)).reason for future in futures[100:]} == {"enough"}
    harness.approvals.close()
    assert len(harness.decisions) == 300


async def test_a_sync_approver_is_asked_one_after_the_other_and_one_that_hangs_does_not_hold_up_the_next() -> None:
    go = threading.Event()
    at_once, most = [0], [0]

    def approve(request: ApprovalRequest) -> bool:
        if request.arguments["path"] == "hangs":
            go.wait(MAX_WAIT)
            return True
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.001)
        at_once[0] -= 1
        return True

    harness = Harness(approve, timeout=0.2)
    requester = harness.requester()
    hangs = requester.decide(question("hangs"))
    futures = [requester.decide(question(str(number))) for number in range(30)]
    assert (await verdict(hangs)).by == "timeout"
    assert all([(await verdict(future)).allow for future in futures])
    assert most == [1]
    go.set()
    harness.approvals.close()


# -- what cannot be shown, or recorded


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": float("nan")},
        {"n": float("inf")},
        {"s": "\ud800"},
        {"b": b"bytes"},
        {1: "a key that is no text"},
        {"long": "x" * (1 << 20)},
    ],
    ids=lambda arguments: str(arguments)[:20].encode("ascii", "backslashreplace").decode(),
)
async def test_ap_12_what_cannot_be_shown_is_denied_without_asking(arguments: Any) -> None:
    harness = Harness(lambda _: True)
    given = await verdict(harness.requester().decide(Question("tool", "s", arguments)))
    assert (given.allow, given.by) == (False, "form")
    harness.approvals.close()
    assert harness.decisions == ["denied"]


async def test_ap_12_arguments_that_are_nested_without_end_are_denied() -> None:
    nested: dict[str, Any] = {}
    for _ in range(100_000):
        nested = {"in": nested}
    harness = Harness(lambda _: True)
    given = await verdict(harness.requester().decide(Question("tool", "s", nested)))
    assert given.by == "form"
    while nested:
        nested = nested["in"]
    harness.approvals.close()


async def test_ap_09_arguments_that_are_changed_afterwards_are_not_what_was_asked() -> None:
    harness = Harness()
    requester = harness.requester(stream=True)
    arguments = {"path": ["safe"]}
    requester.decide(Question("tool", "s", arguments))
    arguments["path"].append("/etc/passwd")
    await until_async(lambda: harness.events)
    assert harness.events[0].arguments == {"path": ["safe"]}
    harness.events[0].arguments["path"].append("x")
    await harness.events[0].approve()
    harness.approvals.close()
    assert harness.rows[0]["arguments"] == {"path": ["safe"]}


async def test_what_cannot_be_recorded_does_not_cross() -> None:
    harness = Harness(lambda _: True)
    harness.record_fails = RecordUnavailable("the disk is full")
    assert (await verdict(harness.requester().decide(question()))).by == "record"
    harness.approvals.close()


async def test_when_the_broker_itself_fails_what_waits_is_denied() -> None:
    harness = Harness()
    requester = harness.requester(stream=True)
    waits = requester.decide(question())
    await until_async(lambda: harness.events)
    harness.record_fails = ZeroDivisionError("a mistake of ours")
    harness.rules.set_default("tool", "allow")
    assert (await verdict(requester.decide(question("b")))).by == "fault"
    assert (await verdict(waits)).by == "fault"
    assert requester.pending_count == 0, "its cell would be stopped for good"
    harness.record_fails = None
    assert (await verdict(requester.decide(question("c")))).allow
    harness.approvals.close()


async def test_every_decision_is_one_row_of_its_run() -> None:
    harness = Harness(lambda request: request.arguments["path"] == "yes")
    one, two = harness.requester("one", "s"), harness.requester("two", None)
    await verdict(one.decide(question("yes")))
    await verdict(two.decide(question("no")))
    harness.approvals.close()
    assert harness.runs == [("one", "name"), ("two", "name")]
    assert harness.decisions == ["allowed", "denied"]
    assert [row.get("session") for row in harness.rows] == ["s", None]
    assert {"request", "kind", "summary", "server", "tool", "arguments", "hash", "by"} <= set(harness.rows[0])


async def test_a_session_whose_questions_leave_the_approver_behind_uses_it_up_for_itself_only() -> None:
    go = threading.Event()
    asked: list[str] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request.run)
        return request.session != "hostile" or go.wait(MAX_WAIT)

    harness = Harness(approve)
    given = ApprovalVerdict(True, "nothing yet")
    try:
        for nth in range(6):
            requester = harness.requester(f"run {nth}", "hostile")
            future = requester.decide(question())
            if nth < 3:
                await until_async(lambda: f"run {nth}" in asked)  # noqa: B023 - the approver is at it, and does not answer
                requester.close()
            given = await verdict(future)
            assert not given.allow
        assert given.by == "nobody"
        assert (await verdict(harness.requester("run", "honest").decide(question()))).allow
    finally:
        go.set()
        harness.approvals.close()


async def test_the_end_of_a_run_waits_for_what_is_to_be_done_after_its_calls() -> None:
    harness, go = Harness(lambda _: True), threading.Event()
    requester, done = harness.requester(), list[bool]()
    await verdict(requester.decide(question()))
    requester.defer(lambda: done.append(go.wait(MAX_WAIT)))
    ending = asyncio.ensure_future(requester.end())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    go.set()
    await ending
    assert done == [True]
    harness.approvals.close()


async def test_what_is_to_be_done_after_a_call_is_done_also_when_the_sandbox_is_closed() -> None:
    harness, done = Harness(lambda _: True), list[bool]()
    requester = harness.requester()
    await verdict(requester.decide(question()))
    harness.approvals.close()
    requester.defer(lambda: done.append(True))
    assert done == [True]
    await requester.end()
