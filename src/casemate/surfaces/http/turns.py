"""How much is begun in one turn of the event loop: whoever comes later waits for the next, and others get theirs."""

from __future__ import annotations

import asyncio

_EACH = 48  # requests begun and events sent in one turn, of some tenths of a millisecond each


class Turns:
    """Of one event loop."""

    def __init__(self) -> None:
        self._taken = 0

    async def take(self) -> None:
        """Wait until it is this one's turn."""
        while self._taken >= _EACH:  # noqa: ASYNC110 - the next turn is what is waited for
            await asyncio.sleep(0)
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._begin)
        self._taken += 1

    def _begin(self) -> None:
        self._taken = 0


TURNS = Turns()
