"""How many descriptors the door may hold, and how cells share them."""

from __future__ import annotations

import resource

_LEAST_SHARES = 4  # into which they are divided, however few cells there are
_UNLIMITED = 1 << 16  # descriptors of a process that has no limit


class Descriptors:
    """How many all openings of a door may hold: half of what this process may have, so that cells cannot take them all
    from the application."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.all = (_UNLIMITED if soft == resource.RLIM_INFINITY else soft) // 2
        self.left = self.all
        self.shares = 0

    def share(self) -> Share:
        """One opening's."""
        self.shares += 1
        return Share(self)


class Share:
    """What one opening may hold of ``pot``: as much as every other, so that it cannot take them all from these."""

    def __init__(self, pot: Descriptors) -> None:
        self._pot = pot
        self._held = 0

    @property
    def most(self) -> int:
        """How many it may hold now."""
        return self._pot.all // max(_LEAST_SHARES, self._pot.shares)

    def take(self, count: int) -> bool:
        """Whether it may hold ``count`` more; it does, then."""
        if self._held + count > self.most or count > self._pot.left:
            return False
        self._held += count
        self._pot.left -= count
        return True

    def give(self, count: int) -> None:
        """They are closed again."""
        self._held -= count
        self._pot.left += count

    def end(self) -> None:
        """Nobody takes of it any more. What it still holds is given as it is closed."""
        self._pot.shares -= 1
