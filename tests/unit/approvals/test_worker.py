"""A worker runs one call at a time, whichever thread runs it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial

import pytest

from casemate.approvals.worker import Worker

MAX_WAIT = 60.0


@pytest.fixture
def failures() -> list[Exception]:
    return []


@pytest.fixture
def worker(failures: list[Exception]) -> Iterator[Worker]:
    made = Worker(failures.append)
    yield made
    made.close()


def all_of(*steps: Callable[[], object]) -> Callable[[], None]:
    """One thing that is several."""

    def do() -> None:
        for step in steps:
            step()

    return do


def test_run_inline_is_in_the_thread_that_asks_and_starts_no_other(worker: Worker) -> None:
    done: list[int] = []
    assert worker.run_inline(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()]
    assert not worker.is_running


def test_no_two_things_are_ever_done_at_the_same_time(worker: Worker) -> None:
    inside, overlaps, done = threading.Lock(), list[int](), list[int]()

    def job(number: int) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(number)
            return
        time.sleep(0)
        done.append(number)
        inside.release()

    def many(which: int) -> None:
        for n in range(300):
            number = which * 1000 + n
            if n % 3 == 0:
                worker.submit_later(0.0001, job, number)
            elif n % 3 == 1 or not worker.run_inline(job, number):
                worker.submit(job, number)

    threads = [threading.Thread(target=many, args=(which,)) for which in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MAX_WAIT)
    over = threading.Event()
    worker.submit_later(0.05, over.set)
    assert over.wait(MAX_WAIT)
    assert overlaps == []
    assert sorted(done) == [which * 1000 + n for which in range(6) for n in range(300)]


def test_nothing_overtakes_what_waits_or_is_being_done(worker: Worker) -> None:
    held, go, done = threading.Event(), threading.Event(), list[str]()
    worker.submit(all_of(held.set, partial(go.wait, MAX_WAIT), partial(done.append, "first")))
    assert held.wait(MAX_WAIT)
    assert not worker.run_inline(done.append, "too early")
    worker.submit(done.append, "second")
    assert not worker.run_inline(done.append, "too early")
    go.set()
    worker.close()
    assert done == ["first", "second"]


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_comes_while_somebody_is_at_it_is_done_when_that_is_over(worker: Worker, is_timed: bool) -> None:
    """Also by a thread that was there and slept."""
    worker.submit(lambda: None)
    begun, go, done, order = threading.Event(), threading.Event(), threading.Event(), list[str]()

    def long() -> None:
        begun.set()
        assert go.wait(MAX_WAIT)
        order.append("long")

    def borrow() -> None:
        deadline = time.monotonic() + MAX_WAIT
        while not worker.run_inline(long):
            assert time.monotonic() < deadline

    borrowing = threading.Thread(target=borrow)
    borrowing.start()
    assert begun.wait(MAX_WAIT)
    if is_timed:
        worker.submit_later(0.001, all_of(partial(order.append, "other"), done.set))
    else:
        worker.submit(all_of(partial(order.append, "other"), done.set))
    assert not done.wait(0.05)
    go.set()
    assert done.wait(MAX_WAIT)
    borrowing.join(MAX_WAIT)
    assert order == ["long", "other"]


def test_what_fails_at_once_is_told_and_ends_nothing(worker: Worker, failures: list[Exception]) -> None:
    error = ValueError("no")

    def fail() -> None:
        raise error

    assert worker.run_inline(fail)
    assert failures == [error]
    assert worker.run_inline(lambda: None)


def test_after_the_end_nothing_is_done_at_once_and_the_end_waits_for_who_is_at_it(worker: Worker) -> None:
    begun, go, done = threading.Event(), threading.Event(), list[str]()
    long = all_of(begun.set, partial(go.wait, MAX_WAIT), partial(done.append, "borrowed"))
    borrowing = threading.Thread(target=worker.run_inline, args=(long,))
    borrowing.start()
    assert begun.wait(MAX_WAIT)
    closing = threading.Thread(target=all_of(worker.close, partial(done.append, "closed")))
    closing.start()
    assert not worker.run_inline(done.append, "at once")
    go.set()
    closing.join(MAX_WAIT)
    borrowing.join(MAX_WAIT)
    assert done == ["borrowed", "closed"]
    assert not worker.run_inline(done.append, "after the end")
    assert not worker.submit_later(0, done.append, "after the end")
    assert not worker.submit_beside(0, partial(done.append, "after the end"))


def test_who_is_at_it_may_end_it(worker: Worker) -> None:
    assert worker.run_inline(worker.close)
    assert not worker.submit(lambda: None)


def test_what_runs_beside_takes_no_turn_and_lets_others_come_between(worker: Worker) -> None:
    held, go, order = threading.Event(), threading.Event(), list[str]()
    again = partial(worker.submit_beside, 0, partial(order.append, "beside, again"))
    worker.submit_beside(0, all_of(held.set, partial(go.wait, MAX_WAIT), partial(order.append, "beside"), again))
    assert held.wait(MAX_WAIT)
    assert worker.run_inline(order.append, "at once")
    worker.submit(order.append, "soon")
    go.set()
    asyncio.run(worker.drain(MAX_WAIT))
    worker.close()
    assert order == ["at once", "beside", "soon", "beside, again"]


def test_what_runs_beside_may_end_it(worker: Worker, failures: list[Exception]) -> None:
    over = threading.Event()
    assert worker.submit_beside(0, all_of(worker.close, over.set))
    assert over.wait(MAX_WAIT)
    assert (failures, worker.submit(over.clear)) == ([], False)


def test_a_job_in_the_thread_has_no_context_of_who_submitted_it(worker: Worker) -> None:
    variable, seen = ContextVar[str]("variable", default="nothing"), list[str]()
    token = variable.set("the submitter's")
    try:
        worker.submit(lambda: seen.append(variable.get()))
        worker.submit_beside(0, lambda: seen.append(variable.get()))
    finally:
        variable.reset(token)
    worker.close()
    assert seen == ["nothing"] * 2
