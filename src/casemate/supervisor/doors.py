"""The host's sockets in networks of cells: those that a cell begins with, and others while it lives."""

from __future__ import annotations

from casemate.supervisor import cells, listeners

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Doors:
    """``say`` sends the host a message, with descriptors."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say

    def open(self, known: cells.Cell, request: dict[str, Any]) -> None:
        """Make the sockets that a cell begins with; their descriptors go to the host, and stay nowhere else.

        Raises ``OSError``.
        """
        self._make(known, request["listeners"], 0)

    def more(self, known: cells.Cell, message: dict[str, Any]) -> None:
        """Make others; the host is told why there are none where they cannot be made."""
        number = message["number"]
        try:
            self._make(known, message["listeners"], number)
        except OSError as error:
            self._say({"op": "listening", "id": known.id, "number": number, "errno": error.errno or 0})

    def _make(self, known: cells.Cell, wanted: list[list[object]], number: int) -> None:
        known.keep_namespaces()
        fds = listeners.make(known.network, wanted)
        try:
            self._say({"op": "listening", "id": known.id, "number": number, "errno": 0, "count": len(fds)}, fds)
        finally:
            cells.close_all(fds)
