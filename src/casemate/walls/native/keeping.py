"""What a link needs to know of who keeps cells ready."""

from __future__ import annotations

from typing import Any, Protocol


class Keeper(Protocol):
    """Who keeps cells ready. All of it is called in the pump thread."""

    def hear(self, message: dict[str, Any]) -> None:
        """The supervisor tells of a zygote."""
        ...

    def next_time(self) -> float | None:
        """When it wants to be called next, in monotonic seconds; None for not at all."""
        ...

    def on_time(self) -> None:
        """It may be that time."""
        ...
