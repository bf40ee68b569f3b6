"""Turns of executions: so many at once, so many more that wait, and beyond that a refusal that says when to retry."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from casemate.errors import QueueFull
from casemate.model.operation import account
from casemate.telemetry.rows import TURN

MOST_WAITING = 1000  # each is little more than its request; whoever comes after them had better wait elsewhere
_LONGEST = 60.0  # seconds: nobody is sent away for longer
_RECENT = 0.2  # how much the last turn counts when it is said how often one comes


class Slots:
    """Lets ``most`` executions go on at once, and knows how many do and how many are ``waiting``.

    Those that wait have their turns by account, one of each in turn; the application's own, and an operator's, come
    before those of agents. ``refused`` is told of the first that finds no room, and again when there was some
    meanwhile. For one event loop.
    """

    def __init__(self, most: int, refused: Callable[[QueueFull], None] = lambda _: None) -> None:
        self.running = self.waiting = 0
        self._free = most
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by account; "" comes first
        self._refused = refused
        self._is_full = False
        self._every = 0.0  # seconds from one end of an execution to the next, while somebody waited
        self._last_end: float | None = None

    def is_taken(self) -> bool:
        """Whether one more would have to wait."""
        return self._free == 0

    def check_room(self) -> None:
        """Raises ``QueueFull`` where one more may not even wait."""
        if self.waiting < MOST_WAITING:
            self._is_full = False
            return
        full = QueueFull(
            f"{self.running} executions run and {self.waiting} wait: no more may wait",
            retry_after=self._room_within(),
        )
        if not self._is_full:
            self._is_full = True
            self._refused(full)
        raise full

    async def __aenter__(self) -> None:
        """Wait for a turn. Raises ``QueueFull``."""
        asked = time.time_ns()
        if self.is_taken():
            await self._wait()
        else:
            self._free -= 1
        self.running += 1
        TURN.set((asked, time.time_ns()))

    async def __aexit__(self, *_error: object) -> None:
        """The next one's turn."""
        self.running -= 1
        now = time.monotonic()
        if self.waiting and self._last_end is not None:
            self._every += (_RECENT if self._every else 1.0) * (now - self._last_end - self._every)
        self._last_end = now
        self._hand_on()

    async def _wait(self) -> None:
        self.check_room()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(account(), deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._hand_on()  # it had just come
            raise
        finally:
            self.waiting -= 1

    def _hand_on(self) -> None:
        """One more may go on: whoever waits whose turn it is."""
        self._free += 1
        while self._free and self._queues:
            whose = "" if "" in self._queues else next(iter(self._queues))
            turn = self._queues[whose].popleft()
            if self._queues[whose]:
                self._queues.move_to_end(whose)
            else:
                del self._queues[whose]
            if not turn.done():
                turn.set_result(None)
                self._free -= 1

    def _room_within(self) -> float:
        """About how many seconds it takes until the next in line has its turn, as it went so far."""
        return float(min(_LONGEST, max(1, math.ceil(self._every))))
