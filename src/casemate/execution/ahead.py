"""What the end of a run needs, loaded while its cell starts, when this process would only wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

# In the order in which they are needed: the last ones only where a run leaves files.
_LATER = (
    "casemate.model.events",
    "casemate.isolation.ending",
    "casemate.execution.collect",
    "casemate.execution.seal",
    "concurrent.futures.thread",  # asyncio's threads, in which a sandbox is closed
    "casemate.artifacts.collect",
    "casemate.workspace.apply",
    "casemate.execution.gather",
)


@contextmanager
def loading_the_rest() -> Iterator[None]:
    """As long as this is entered, load one of them in each turn of the event loop: what a cell says waits for one at
    most."""
    wanted = [name for name in _LATER if name not in sys.modules]
    is_over = False

    def load() -> None:
        if wanted and not is_over:
            import_module(wanted.pop(0))
            loop.call_soon(load)

    loop = asyncio.get_running_loop()
    loop.call_soon(load)
    try:
        yield
    finally:
        is_over = True
