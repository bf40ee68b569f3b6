"""The event loop of casemate's own threads and commands."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def polling_loop() -> asyncio.AbstractEventLoop:
    """An event loop over poll(2). The kernel counts what epoll watches for each user, so that one cell could leave
    none to all other programs of the user (epoll(7), max_user_watches); of poll it counts nothing."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, in such a loop."""
    with asyncio.Runner(loop_factory=polling_loop) as runner:
        return runner.run(work)
