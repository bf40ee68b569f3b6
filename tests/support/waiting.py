"""Waits for conditions, also on a busy machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

MAX_WAIT = 60.0  # seconds before a wait fails


def until(holds: Callable[[], Any], what: str = "it did not come about", seconds: float = MAX_WAIT) -> Any:
    """Poll ``holds`` at growing intervals until its result is true, and return that. Fails after ``seconds``."""
    pauses = _pauses(what, seconds)
    while not (found := holds()):
        time.sleep(next(pauses))
    return found


async def until_async(holds: Callable[[], Any], what: str = "it did not come about") -> Any:
    """:func:`until` in an event loop."""
    pauses = _pauses(what, MAX_WAIT)
    while not (found := holds()):
        await asyncio.sleep(next(pauses))
    return found


def _pauses(what: str, seconds: float) -> Iterator[float]:
    deadline, pause = time.monotonic() + seconds, 0.002
    while time.monotonic() < deadline:
        yield pause
        pause = min(pause * 1.5, 0.03)
    raise AssertionError(f"not within {seconds:g} s: {what}")
