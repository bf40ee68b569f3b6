"""Work for cells that takes long: no cell keeps another waiting with it, whatever it asks for and takes back."""

from __future__ import annotations

import asyncio
import threading

from casemate.tools.calls import Turns

_SECONDS = 30


async def _others_step_is_done(waiting: threading.Event, *, is_taken_back: bool) -> list[str]:
    """What another cell's step gives while a hundred of one cell have not come to an end."""
    greedy, other = Turns(), Turns()
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
