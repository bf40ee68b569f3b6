"""An event loop for a command that Ctrl-C wakes in any case.

Of a signal that comes in the instant before the loop waits, or to another thread, Python's own handler runs when that
wait is over, which may be long. Its descriptor for signals (``signal.set_wakeup_fd``) is written at once, and ends it.
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
    """As ``asyncio.run``. Raises what ``work`` raises, and ``KeyboardInterrupt``."""
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
        yield  # signals are the main thread's
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
