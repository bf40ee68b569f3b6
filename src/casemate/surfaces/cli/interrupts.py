"""Runs a command's event loop so that Ctrl-C always wakes it.

Python's own handler runs only after the loop's wait if the signal comes just before it, or to another thread. The
descriptor of ``signal.set_wakeup_fd`` is written at once, which ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from casemate.event_loop import polling_loop

if TYPE_CHECKING:
    from casemate.api.sandbox import Sandbox

T = TypeVar("T")
_MANY = 4096  # bytes: one for each signal


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` as ``asyncio.run`` does. Raises what ``work`` raises, and ``KeyboardInterrupt``."""
    with asyncio.Runner(loop_factory=polling_loop) as runner, _bell(runner.get_loop()):
        return runner.run(work)


def run_in(sandbox: Sandbox, work: Callable[[Sandbox], Awaitable[T]]) -> T:
    """Do ``work`` in ``sandbox``, and close it. Raises as `run`."""

    async def enter() -> T:
        async with sandbox:
            return await work(sandbox)

    return run(enter())


@contextlib.contextmanager
def _bell(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    wakeup, rung = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        loop.add_reader(wakeup, _listen, wakeup)
        before = signal.set_wakeup_fd(rung, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(wakeup)
    finally:
        os.close(wakeup)
        os.close(rung)


def _listen(wakeup: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(wakeup, _MANY)
