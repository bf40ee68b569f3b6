"""Turns at the cells of a sandbox: of each account one after the other, the operator's first."""

from __future__ import annotations

import asyncio

import pytest

from casemate.errors import QueueFull
from casemate.execution import slots
from casemate.execution.slots import Slots
from casemate.model.operation import Audience, Principal, called_by


def whose(name: str) -> Principal:
    audience = Audience.OPERATOR if name == "operator" else Audience.AGENT
    return Principal(name, audience, account=name.partition("/")[0])


async def order_of(waiting: list[str], most: int = 1) -> list[str]:
    """In which order those have their turns who wait while somebody else has all of them."""
    taken, ended, order = Slots(most), asyncio.Event(), list[str]()

    async def holds() -> None:
        async with taken:
            await ended.wait()

    async def waits(name: str) -> None:
        async with taken:
            order.append(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(most):
            group.create_task(holds())
        await asyncio.sleep(0)
        for name in waiting:
            with called_by(whose(name)):
                group.create_task(waits(name))
        await asyncio.sleep(0)
        assert (taken.running, taken.waiting) == (most, len(waiting))
        ended.set()
    assert (taken.running, taken.waiting, taken.is_taken()) == (0, 0, False)
    return order


def test_accounts_have_their_turns_one_after_the_other_and_the_operator_first() -> None:
    waiting = ["a/1", "a/2", "a/3", "b/1", "a/4", "operator", "b/2"]
    assert asyncio.run(order_of(waiting)) == ["operator", "a/1", "b/1", "a/2", "b/2", "a/3", "a/4"]


def test_many_names_of_one_account_have_the_turns_of_one() -> None:
    waiting = [*(f"many/{n}" for n in range(5)), "one/1"]
    assert asyncio.run(order_of(waiting)).index("one/1") == 1


def test_who_goes_before_its_turn_leaves_it_to_others() -> None:
    async def journey() -> str:
        taken = Slots(1)
        async with taken:
            gone = asyncio.ensure_future(taken.__aenter__())
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
        async with asyncio.timeout(5), taken:
            return "it came"

    assert asyncio.run(journey()) == "it came"


def test_a_turn_that_comes_to_who_is_just_going_is_handed_on() -> None:
    async def journey() -> int:
        taken = Slots(1)
        await taken.__aenter__()
        going, next_one = (asyncio.ensure_future(taken.__aenter__()) for _ in range(2))
        await asyncio.sleep(0)
        await taken.__aexit__(None, None, None)  # its turn has come, and it has not noticed
        going.cancel()
        await asyncio.wait([going, next_one], timeout=5)
        assert next_one.done()
        return taken.running

    assert asyncio.run(journey()) == 1


def test_beyond_so_many_that_wait_all_others_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST_WAITING", 2)
    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(order_of(["a/1", "a/2", "a/3"]))
    assert raised.group_contains(QueueFull)
