"""Turns at the cells of a sandbox: fair, by priority, in time, and none where the machine has no room."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from casemate.errors import QueueFull
from casemate.execution import slots
from casemate.execution.slots import Claim, Slots
from casemate.model import room
from casemate.model.room import Room

MIB = 1 << 20
WIDE = Room(8 << 30, 16 << 30, 0, 10_000)
FULL = Room(20 * MIB, 16 << 30, 0, 10_000)


def claim_of(name: str, **more: Any) -> Claim:
    """``name``: "operator", or an account and anything, "namespace:account/anything"."""
    namespace, _, whose = name.rpartition(":")
    account = "" if whose.startswith("operator") else whose.partition("/")[0]
    return Claim(namespace, account, **more)


async def order_of(waiting: list[Claim], most: int = 1) -> list[int]:
    """In which order those have their turns, by their numbers, who wait while somebody else has all of them."""
    taken, ended, order = Slots(most, lambda: WIDE), asyncio.Event(), list[int]()

    async def holds() -> None:
        async with taken.turn(Claim("elsewhere")):
            await ended.wait()

    async def waits(number: int, claim: Claim) -> None:
        async with taken.turn(claim):
            order.append(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(most):
            group.create_task(holds())
        await asyncio.sleep(0)
        for number, claim in enumerate(waiting):
            group.create_task(waits(number, claim))
        await asyncio.sleep(0)
        assert taken.counts() == (most, len(waiting))
        ended.set()
    assert taken.counts() == (0, 0)
    return order


def names_in_order(names: list[str], **more: Any) -> list[str]:
    return [names[number] for number in asyncio.run(order_of([claim_of(name, **more) for name in names]))]


def test_accounts_have_their_turns_one_after_the_other_and_the_operator_first() -> None:
    waiting = ["a/1", "a/2", "a/3", "b/1", "a/4", "operator", "b/2"]
    assert names_in_order(waiting) == ["operator", "a/1", "b/1", "a/2", "b/2", "a/3", "a/4"]


def test_many_names_of_one_account_have_the_turns_of_one() -> None:
    assert names_in_order([*(f"many/{n}" for n in range(5)), "one/1"]).index("one/1") == 1


def test_namespaces_have_their_turns_one_after_the_other_however_many_accounts_one_has() -> None:
    waiting = [*(f"wide:{account}/1" for account in "abcdefgh"), "narrow:a/1", "narrow:a/2", "narrow:a/3"]
    assert [name.partition(":")[0] for name in names_in_order(waiting)][:6] == ["wide", "narrow"] * 3


def test_priorities_come_in_their_order_and_no_agent_comes_before_the_operator() -> None:
    waiting = [
        claim_of(whose, priority=priority)
        for whose, priority in [("a", "low"), ("a", "normal"), ("operator", "low"), ("operator", "normal"),
                                ("b", "high"), ("operator", "high")]
    ]  # fmt: skip
    assert asyncio.run(order_of(waiting)) == [5, 3, 1, 4, 0, 2]


@pytest.mark.parametrize("lower", ["normal", "low"])
def test_what_is_less_urgent_comes_now_and_then_whatever_else_waits(lower: Any) -> None:
    waiting = [claim_of("operator", priority="high") for _ in range(200)] + [claim_of("operator", priority=lower)]
    assert 0 < asyncio.run(order_of(waiting)).index(200) < 70


async def shares_of(tasks: dict[str, int], most: int, total: int) -> Counter[str]:
    """Whose turns the first ``total`` are when so many tasks of each take one after the other, for as many passes of
    the loop as their names say."""
    taken, given = Slots(most, lambda: WIDE), list[str]()

    async def takes(name: str) -> None:
        while len(given) < total:
            async with taken.turn(claim_of(name)):
                given.append(name)
                for _ in range(int(name.rpartition("/")[2])):
                    await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name, count in tasks.items():
            for _ in range(count):
                group.create_task(takes(name))
    assert taken.counts() == (0, 0)
    assert not taken._queues
    return Counter(given[:total])


def test_ten_thousand_turns_of_fifty_tasks_are_shared_alike_by_namespaces_and_by_accounts() -> None:
    tasks = {"one:a/3": 30, "one:b/3": 8, "two:operator/3": 12}
    shares = asyncio.run(shares_of(tasks, most=8, total=10_000))
    assert shares["two:operator/3"] == pytest.approx(5000, rel=0.1)
    assert shares["one:a/3"] == pytest.approx(2500, rel=0.1)
    assert shares["one:b/3"] == pytest.approx(2500, rel=0.1)


def test_who_takes_long_in_each_turn_has_no_more_at_once_than_others() -> None:
    shares = asyncio.run(shares_of({"one:operator/40": 20, "two:operator/2": 20}, most=8, total=2000))
    assert shares["two:operator/2"] > 8 * shares["one:operator/40"]


def test_who_goes_before_its_turn_leaves_it_to_others() -> None:
    async def journey() -> str:
        taken = Slots(1, lambda: WIDE)
        async with taken.turn(Claim()):
            gone = asyncio.ensure_future(taken.turn(Claim()).__aenter__())
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
        async with asyncio.timeout(5), taken.turn(Claim()):
            return "it came"

    assert asyncio.run(journey()) == "it came"


def test_of_ten_thousand_who_went_before_their_turn_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST_WAITING", 20_000)

    def held(taken: Slots) -> int:
        gc.collect()
        return sum(isinstance(one, Claim) for one in gc.get_referents(*gc.get_referents(*vars(taken).values())))

    async def journey() -> None:
        taken = Slots(1, lambda: WIDE)
        async with taken.turn(Claim()):
            gone = [asyncio.ensure_future(taken.turn(claim_of(f"{n % 100}/1")).__aenter__()) for n in range(10_000)]
            await asyncio.sleep(0)
            assert (taken.counts(), held(taken)) == ((1, 10_000), 10_000)
            for one in gone:
                one.cancel()
            await asyncio.wait(gone)
            assert (taken.counts(), held(taken)) == ((1, 0), 0)

    asyncio.run(journey())


def test_a_turn_that_comes_to_who_is_just_going_is_handed_on() -> None:
    async def journey() -> tuple[int, int]:
        taken = Slots(1, lambda: WIDE)
        first, going, next_one = (taken.turn(Claim()) for _ in range(3))
        await first.__aenter__()
        waiting = [asyncio.ensure_future(one.__aenter__()) for one in (going, next_one)]
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)  # its turn has come, and it has not noticed
        waiting[0].cancel()
        await asyncio.wait(waiting, timeout=5)
        assert waiting[1].done()
        return taken.counts()

    assert asyncio.run(journey()) == (1, 0)


def test_beyond_so_many_that_wait_all_others_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST_WAITING", 2)
    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(order_of([Claim()] * 3))
    assert raised.group_contains(QueueFull)


def test_an_agent_s_account_fills_no_more_than_half_of_the_waiting_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST_WAITING", 4)

    async def journey() -> list[type]:
        taken = Slots(1, lambda: WIDE)
        async with taken.turn(Claim()):
            turns = [taken.turn(claim_of(name)) for name in ("a/1", "a/2", "a/3", "b")]
            ends = [asyncio.ensure_future(one.__aenter__()) for one in turns]
            await asyncio.sleep(0)
            refused = [type(one.exception()) for one in ends if one.done()]
            for one in ends:
                one.cancel()
            await asyncio.wait(ends)
            return refused

    assert asyncio.run(journey()) == [QueueFull]


def test_agents_of_two_accounts_together_leave_a_third_of_the_waiting_line_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "MOST_WAITING", 9)

    async def journey() -> tuple[int, int]:
        taken = Slots(1, lambda: WIDE)
        async with taken.turn(Claim()):
            turns = [taken.turn(claim_of(name)) for name in ("a", "b") * 9] + [taken.turn(Claim())]
            ends = [asyncio.ensure_future(one.__aenter__()) for one in turns]
            await asyncio.sleep(0)
            waiting, is_refused = taken.counts()[1], ends[-1].done()
            for one in ends:
                one.cancel()
            await asyncio.wait(ends)
            return waiting, is_refused

    assert asyncio.run(journey()) == (7, False), "three of each, and the operator"


def refused(look: Callable[[], Room], claim: Claim, most: int = 1, held: int = 0) -> QueueFull:
    """What a claim gets that waits in vain, where so many turns are held."""

    async def journey() -> QueueFull:
        taken = Slots(most, look)
        holders = [taken.turn(Claim(), has_cell=lambda: True) for _ in range(held)]
        for one in holders:
            await one.__aenter__()
        with pytest.raises(QueueFull) as raised:
            async with asyncio.timeout(20), taken.turn(claim):
                pass
        assert taken.counts() == (held, 0)
        for one in holders:
            await one.__aexit__(None, None, None)
        return raised.value

    return asyncio.run(journey())


@pytest.mark.parametrize(("look", "held", "missing"), [
    (lambda: WIDE, 1, "turns"),
    (lambda: FULL, 0, "memory"),
    (lambda: Room(8 << 30, 16 << 30, 0, 3), 0, "processes"),
])  # fmt: skip
def test_what_has_not_begun_in_time_is_refused_with_what_was_missing(
    look: Callable[[], Room], held: int, missing: str
) -> None:
    told = list[QueueFull]()
    full = refused(look, Claim(by=0.0, refused=told.append), held=held)
    assert (full.missing, told) == (missing, [full])
    assert full.retry_after >= 1


def test_where_nothing_of_ours_could_give_memory_back_it_is_waited_for_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "_LOOK_EVERY", 0.001)
    monkeypatch.setattr(room, "PATIENCE", 0.01)
    full = refused(lambda: FULL, Claim())
    assert (full.missing, full.retry_after) == ("memory", 30)
    assert "20 MiB of memory" in full.message


def test_whoever_waits_for_memory_begins_when_a_look_finds_it_and_nobody_looks_when_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "_LOOK_EVERY", 0.001)
    monkeypatch.setattr(slots, "_SEEN_FOR", 0.0)
    looks = iter([FULL, FULL, FULL, WIDE, WIDE])  # no more than these

    async def journey() -> None:
        taken = Slots(4, lambda: next(looks))
        async with asyncio.timeout(20), taken.turn(Claim()):
            assert taken.counts() == (1, 0)
            await asyncio.sleep(0.01)
        assert taken._next_look is None

    asyncio.run(journey())
    assert next(looks) is WIDE


def test_a_step_in_a_cell_that_lives_needs_no_memory_and_an_end_lets_others_begin() -> None:
    now = [FULL]

    async def journey() -> None:
        taken = Slots(4, lambda: now[0])
        step, run = taken.turn(Claim(), asyncio.Lock(), lambda: True), taken.turn(Claim())
        await step.__aenter__()
        waits = asyncio.ensure_future(run.__aenter__())
        await asyncio.sleep(0)
        assert taken.counts() == (1, 1)
        now[0] = WIDE
        await step.__aexit__(None, None, None)
        await asyncio.wait_for(waits, 0.2)  # before the next look
        assert taken.counts() == (1, 0)

    asyncio.run(journey())


def test_what_has_begun_and_ended_since_the_look_takes_no_room() -> None:
    async def journey() -> int:
        taken, count = Slots(1, lambda: Room(300 * MIB, 16 << 30, 0, 10_000)), 0
        for _ in range(100):
            async with taken.turn(Claim(by=0.0)):
                count += 1
        return count

    assert asyncio.run(journey()) == 100


def test_no_more_begin_at_once_than_one_look_has_found_room_for() -> None:
    spared = 100 * MIB

    async def journey() -> tuple[int, int]:
        taken = Slots(16, lambda: Room(spared + 5 * 32 * MIB, 20 * spared, 0, 10_000))
        turns = [taken.turn(Claim()) for _ in range(10)]
        begun = [asyncio.ensure_future(one.__aenter__()) for one in turns]
        await asyncio.sleep(0)
        counts = taken.counts()
        for one in begun:
            one.cancel()
        await asyncio.wait(begun)
        return counts

    assert asyncio.run(journey()) == (5, 5)
