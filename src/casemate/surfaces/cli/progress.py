"""Shows the progress of long work on standard error, if that is a terminal with this process in its foreground."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from casemate.model.limits import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress as Bars

_AFTER = 0.5  # seconds: shorter work shows nothing


class Progress:
    """One bar, which is removed at the end of the block. Its methods may be called from any thread."""

    def __init__(self, *, shows: bool) -> None:
        self._shows = shows and _is_watched()
        self._began = time.monotonic()
        self._bars: Bars | None = None
        self._lock = threading.Lock()
        self._later: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove the bar for good, because a question or other output follows. May be called again."""
        with self._lock:
            self._shows = False
            if self._later is not None:
                self._later.cancel()
            if self._bars is not None:
                self._bars.stop()

    @contextlib.contextmanager
    def hide(self) -> Iterator[None]:
        """Take the bar away while a person is asked."""
        with self._lock:
            shows, self._shows = self._shows, False
            if self._bars is not None:
                self._bars.stop()
        try:
            yield
        finally:
            with self._lock:
                self._shows = shows
                if shows and self._bars is not None:
                    self._bars.start()

    def wait(self, text: str) -> None:
        """Show work of unknown length, in the running event loop."""
        if self._shows:
            self._later = asyncio.get_running_loop().call_later(_AFTER, self._show, text)

    def files(self, number: int, size: int) -> None:
        """Show how many files and bytes are done."""
        self._show(f"{number} files, {format_size(size)}")

    def bytes(self, reached: int, total: int | None = None) -> None:
        """Show how many bytes of ``total`` are done."""
        of = f" of {format_size(total)}" if total else ""
        self._show(f"{format_size(reached)}{of}", reached, total)

    def _show(self, text: str, reached: int = 0, total: int | None = None) -> None:
        with self._lock:
            if not self._shows or time.monotonic() - self._began < _AFTER:
                return
            if self._bars is None:
                self._bars = _make_bars()
                self._bars.add_task(text, total=total)
                self._bars.start()
            self._bars.update(self._bars.task_ids[0], description=text, completed=reached, total=total)


def _is_watched() -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        screen = sys.stderr.fileno()
        return os.isatty(screen) and os.tcgetpgrp(screen) == os.getpgrp()
    return False


def _make_bars() -> Bars:
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn

    class Bar(BarColumn):
        def render(self, task: Task) -> RenderableType:  # type: ignore[override]
            return super().render(task) if task.total else ""

    text = TextColumn("casemate: {task.description}", markup=False)
    return Progress(SpinnerColumn(), text, Bar(), TimeElapsedColumn(), console=Console(stderr=True), transient=True)
