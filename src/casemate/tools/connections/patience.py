"""When a server that failed is started again: later and later, and not for ever. Pure: the time is told."""

from __future__ import annotations

_FIRST, _LONGEST = 0.5, 30.0  # seconds between two starts
MOST_FAILURES = 6  # one after the other, after which it is left alone
_ALONE_SECONDS = 300.0


class Patience:
    """With one server. Times are seconds of a clock that only goes on."""

    def __init__(self) -> None:
        self.failures = 0
        self._last = 0.0

    def failed(self, now: float) -> None:
        """It could not be started, or died before it was of any use."""
        self.failures += 1
        self._last = now

    def worked(self) -> None:
        """It was of use."""
        self.failures = 0

    def delay(self, now: float) -> float:
        """Seconds until it may be started again."""
        if not self.failures:
            return 0.0
        pause: float = min(_FIRST * 2 ** (self.failures - 1), _LONGEST)
        return max(0.0, self._last + pause - now)

    def is_over(self, now: float) -> bool:
        """Whether it failed so often that it is left alone for some minutes."""
        return self.failures >= MOST_FAILURES and now < self._last + _ALONE_SECONDS
