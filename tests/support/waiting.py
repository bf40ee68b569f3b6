"""Waiting for what must come about, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

MAX_WAIT = 60.0  # seconds until something that must happen is taken as not happening


def until(holds: Callable[[], Any], what: str = "it did not come about", seconds: float = MAX_WAIT) -> Any:
    """Look again and again until ``holds``, less and less often; what it gave. Fail when it never does."""
    pauses = _pauses(what, seconds)
    while not (found := holds()):
        time.sleep(next(pauses))
    return found


async def until_async(holds: Callable[[], Any], what: str = "it did not come about") -> Any:
    """The same in an event loop."""
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
