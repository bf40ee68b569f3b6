"""A cell whose standard streams are its caller's: what the wall needs besides, which is next to nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from casemate.walls.native.carrying import close_all

if TYPE_CHECKING:
    from casemate.walls.wall import Standard, Stream


class Silent:
    """The sink of a cell that says nothing to the wall."""

    def output(self, stream: Stream, data: bytes) -> None:
        pass

    def frame(self, frame: bytes) -> None:
        pass

    def is_full(self) -> bool:
        return False


def copies_of(standard: Standard) -> dict[str, int]:
    """Copies of a program's streams, by name, for its launch. Raises ``OSError``."""
    made: dict[str, int] = {}
    try:
        for name in ("stdin", "stdout", "stderr"):
            made[name] = os.dup(getattr(standard, name))
    except OSError:
        close_all([*made.values()])
        raise
    return made
