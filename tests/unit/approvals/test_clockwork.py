"""One thing after the other, whoever does it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from casemate.approvals.clockwork import Clockwork

PATIENCE = 60.0


@pytest.fixture
def failures() -> list[Exception]:
    return []


@pytest.fixture
def clockwork(failures: list[Exception]) -> Iterator[Clockwork]:
    made = Clockwork(failures.append)
    yield made
    made.close()


def all_of(*steps: Callable[[], object]) -> Callable[[], None]:
    """One thing that is several."""

    def do() -> None:
        for step in steps:
            step()

    return do


def test_at_once_is_in_the_thread_that_asks_and_starts_no_other(clockwork: Clockwork) -> None:
    done: list[int] = []
    assert clockwork.at_once(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()]
    assert not clockwork.is_running


def test_no_two_things_are_ever_done_at_the_same_time(clockwork: Clockwork) -> None:
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
                clockwork.later(0.0001, job, number)
            elif n % 3 == 1 or not clockwork.at_once(job, number):
                clockwork.soon(job, number)

    threads = [threading.Thread(target=many, args=(which,)) for which in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    over = threading.Event()
    clockwork.later(0.05, over.set)
    assert over.wait(PATIENCE)
    assert overlaps == []
    assert sorted(done) == [which * 1000 + n for which in range(6) for n in range(300)]


def test_nothing_overtakes_what_waits_or_is_being_done(clockwork: Clockwork) -> None:
    held, go, done = threading.Event(), threading.Event(), list[str]()
    clockwork.soon(all_of(held.set, partial(go.wait, PATIENCE), partial(done.append, "first")))
    assert held.wait(PATIENCE)
    assert not clockwork.at_once(done.append, "too early")
    clockwork.soon(done.append, "second")
    assert not clockwork.at_once(done.append, "too early")
    go.set()
    clockwork.close()
    assert done == ["first", "second"]


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_comes_while_somebody_is_at_it_is_done_when_that_is_over(clockwork: Clockwork, is_timed: bool) -> None:
    """Also by a thread that was there and slept."""
    clockwork.soon(lambda: None)
    begun, go, done, order = threading.Event(), threading.Event(), threading.Event(), list[str]()

    def long() -> None:
        begun.set()
        assert go.wait(PATIENCE)
        order.append("long")

    def borrow() -> None:
        deadline = time.monotonic() + PATIENCE
        while not clockwork.at_once(long):
            assert time.monotonic() < deadline

    borrowing = threading.Thread(target=borrow)
    borrowing.start()
    assert begun.wait(PATIENCE)
    if is_timed:
        clockwork.later(0.001, all_of(partial(order.append, "other"), done.set))
    else:
        clockwork.soon(all_of(partial(order.append, "other"), done.set))
    assert not done.wait(0.05)
    go.set()
    assert done.wait(PATIENCE)
    borrowing.join(PATIENCE)
    assert order == ["long", "other"]


def test_what_fails_at_once_is_told_and_ends_nothing(clockwork: Clockwork, failures: list[Exception]) -> None:
    error = ValueError("no")

    def fail() -> None:
        raise error

    assert clockwork.at_once(fail)
    assert failures == [error]
    assert clockwork.at_once(lambda: None)


def test_after_the_end_nothing_is_done_at_once_and_the_end_waits_for_who_is_at_it(clockwork: Clockwork) -> None:
    begun, go, done = threading.Event(), threading.Event(), list[str]()
    long = all_of(begun.set, partial(go.wait, PATIENCE), partial(done.append, "borrowed"))
    borrowing = threading.Thread(target=clockwork.at_once, args=(long,))
    borrowing.start()
    assert begun.wait(PATIENCE)
    closing = threading.Thread(target=all_of(clockwork.close, partial(done.append, "closed")))
    closing.start()
    assert not clockwork.at_once(done.append, "at once")
    go.set()
    closing.join(PATIENCE)
    borrowing.join(PATIENCE)
    assert done == ["borrowed", "closed"]
    assert not clockwork.at_once(done.append, "after the end")
    assert clockwork.later(0, done.append, "after the end").is_cancelled


def test_who_is_at_it_may_end_it(clockwork: Clockwork) -> None:
    assert clockwork.at_once(clockwork.close)
    assert not clockwork.soon(lambda: None)


def test_what_is_aside_comes_last_one_thing_after_the_other_and_leaves_turns_to_others(clockwork: Clockwork) -> None:
    held, go, order = threading.Event(), threading.Event(), list[str]()
    clockwork.aside(all_of(held.set, partial(go.wait, PATIENCE), partial(order.append, "aside")))
    assert held.wait(PATIENCE)
    clockwork.aside(partial(order.append, "aside, too"))
    clockwork.later(0, order.append, "due")
    assert clockwork.at_once(order.append, "at once")
    clockwork.soon(order.append, "soon")
    go.set()
    clockwork.close()
    assert order == ["at once", "aside", "soon", "due", "aside, too"]
    assert not clockwork.aside(partial(order.append, "after the end"))


def test_what_is_done_aside_may_end_it(clockwork: Clockwork, failures: list[Exception]) -> None:
    over = threading.Event()
    assert clockwork.aside(all_of(clockwork.close, over.set))
    assert over.wait(PATIENCE)
    assert (failures, clockwork.soon(over.clear)) == ([], False)
