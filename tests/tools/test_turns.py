"""Work for cells that takes long: no cell keeps another waiting with it, whatever it asks for and takes back."""

from __future__ import annotations

import asyncio
import threading

from casemate.tools.calls import CallTurns

_SECONDS = 60


async def _others_step_is_done(waiting: threading.Event, *, is_taken_back: bool) -> list[str]:
    """What another cell's step gives while a hundred of one cell have not come to an end."""
    greedy, other = CallTurns(), CallTurns()
    steps = [asyncio.ensure_future(greedy.take(True, waiting.wait, _SECONDS)) for _ in range(100)]
    for step in steps:
        await asyncio.sleep(0)
        if is_taken_back:
            step.cancel()
    made = await asyncio.wait_for(other.take(True, str.upper, "done"), _SECONDS / 2)
    waiting.set()
    await asyncio.gather(*steps, return_exceptions=True)
    return [made, await greedy.take(True, str.upper, "goes on")]


def test_a_cell_with_a_hundred_slow_steps_keeps_one_thread_busy() -> None:
    assert asyncio.run(_others_step_is_done(threading.Event(), is_taken_back=False)) == ["DONE", "GOES ON"]


def test_a_cell_that_takes_its_slow_steps_back_keeps_one_thread_busy() -> None:
    assert asyncio.run(_others_step_is_done(threading.Event(), is_taken_back=True)) == ["DONE", "GOES ON"]


def test_one_request_of_a_cell_begins_in_each_turn_of_the_loop() -> None:
    async def begun_in_one_turn() -> list[int]:
        turns, count, seen = CallTurns(), 0, []

        async def ask() -> None:
            nonlocal count
            for _ in range(5):
                await turns.begin()
                count += 1

        asking = [asyncio.ensure_future(ask()) for _ in range(4)]
        while not all(one.done() for one in asking):
            before = count
            await asyncio.sleep(0)
            seen.append(count - before)
        assert count == 20
        return seen

    assert set(asyncio.run(begun_in_one_turn())) <= {0, 1}
