"""How much a server may say that nobody has asked for. Pure: the time is told."""

from __future__ import annotations

_AT_ONCE = 10_000.0
_PER_SECOND = 500.0


class Flood:
    """A bucket that fills by 500 in each second, up to 10,000; who empties it is a flood."""

    def __init__(self, now: float) -> None:
        self._left = _AT_ONCE
        self._then = now

    def takes(self, now: float, cost: float = 1.0) -> bool:
        """Whether this much more is bearable at ``now`` (seconds of a clock that only goes on)."""
        self._left = min(_AT_ONCE, self._left + (now - self._then) * _PER_SECOND) - cost
        self._then = now
        return self._left >= 0
