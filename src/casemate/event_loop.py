"""The event loop of casemate's own threads and commands."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread as executors
import contextlib
import os
import selectors
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_open: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()


def close_at_exit(one: Any) -> None:
    """Call ``one.close()`` when the interpreter ends, in the order of these calls, unless `forget_at_exit` comes first,
    or a thread of the program still runs. Otherwise the interpreter itself ends daemon threads, and compiled code in
    one may then abort the process."""
    _open.setdefault(one)


def forget_at_exit(one: Any) -> None:
    """Undo `close_at_exit`."""
    _open.pop(one, None)


def _close_all() -> None:
    if any(_is_programs(thread) for thread in threading.enumerate()):
        return
    for one in [*_open]:
        if one in _open:
            with contextlib.suppress(Exception):
                closing = one.close()
                if closing is not None:
                    run_in_loop(closing)


def _is_programs(thread: threading.Thread) -> bool:
    is_of_executor = thread in executors._threads_queues or type(thread).__module__.startswith("concurrent.")
    return not (thread.daemon or thread is threading.main_thread() or is_of_executor)


os.register_at_fork(after_in_child=_open.clear)  # a child has none of these threads
with contextlib.suppress(RuntimeError):  # the interpreter is ending
    # atexit would be too late: executors, which closing needs, end before it.
    threading._register_atexit(_close_all)  # type: ignore[attr-defined]


def polling_loop() -> asyncio.AbstractEventLoop:
    """An event loop on poll(2). The kernel limits epoll watches per user, so one cell could leave none to the user's
    other programs (epoll(7), max_user_watches). It does not limit poll."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``, in a polling loop."""
    with asyncio.Runner(loop_factory=polling_loop) as runner:
        return runner.run(work)
