"""What the end of a run needs, loaded while its cell starts, when this process would only wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

# In the order in which they are needed.
_ALWAYS = (
    "casemate.model.events",
    "casemate.walls.wall",
    "casemate.execution.collect",
    "casemate.execution.seal",
    "concurrent.futures.thread",  # asyncio's threads, in which a sandbox is closed
)
_WITH_FILES = ("casemate.artifacts.collect", "casemate.workspace.apply", "casemate.execution.gather")
_A_WHILE = 0.05  # seconds that a short program runs: who leaves no file need not wait for what collects them


@contextmanager
def loading_the_rest() -> Iterator[None]:
    """As long as this is entered, load what the end always needs, and later what it may need: one module in each turn
    of the event loop, so that what a cell says waits for one at most."""
    loop = asyncio.get_running_loop()
    is_over = False

    def load(names: list[str]) -> None:
        if names and not is_over:
            import_module(names.pop(0))
            loop.call_soon(load, names)

    loop.call_soon(load, _not_loaded(_ALWAYS))
    later = loop.call_later(_A_WHILE, load, _not_loaded(_WITH_FILES))
    try:
        yield
    finally:
        is_over = True
        later.cancel()


def _not_loaded(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in sys.modules]
