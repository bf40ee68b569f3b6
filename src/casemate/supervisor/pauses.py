"""A cell that waits for somebody's answer stands still, and so does its clock: for exactly as long as nothing in it
has run."""

from __future__ import annotations

import time

from casemate.supervisor import standstill


class Pause:
    """One pause of the cell whose init is ``init``. ``stands``: whether all of it is known to stand still."""

    def __init__(self, init: int) -> None:
        self.stands = False
        self._standstill = standstill.Standstill(init)
        self._since = time.monotonic()  # up to when its clock is accounted for

    def stop(self) -> bool:
        """Stop what runs; whether all of it stands still."""
        self.stands = self._standstill.stop()
        self._since = time.monotonic()
        return self.stands

    def credit(self, now: float) -> float:
        """Seconds for which its clock has stood still since it was asked last: all, or none if anything has run."""
        self.stands = self.stands and self._standstill.holds()
        stood = now - self._since if self.stands else 0.0
        self._since = now
        return stood

    def end(self, now: float) -> float:
        """Let go on what was stopped; the credit up to ``now``."""
        credit = self.credit(now)
        self._standstill.end()
        return credit
