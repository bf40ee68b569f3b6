"""Work in a thread that always finishes before its caller goes on, even if the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from casemate.supervisor.trees.walk import Deadline

T = TypeVar("T")


async def to_thread_to_end(function: Callable[..., T], *arguments: object) -> T:
    """Call ``function(*arguments)`` in a thread. A cancellation ends its deadline and is raised after it returns."""
    with Deadline() as deadline:
        work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))  # noqa: TID251 - awaited below in every case
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
            deadline.end = 0.0
    if cancelled:
        work.exception()  # marked as retrieved; the cancellation is raised instead
        raise asyncio.CancelledError
    return work.result()
