"""The queue of executions. It bounds how many run at once and waits for capacity of the machine."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, NamedTuple

from casemate.errors import QueueFull
from casemate.model.room import PATIENCE, Missing, Room, Verdict, decide
from casemate.telemetry.rows import TURN
from casemate.walls import machine

if TYPE_CHECKING:
    from casemate.model.call_options import Priority

MOST_WAITING = 1000  # of a namespace
_LONGEST = 60.0  # seconds; the largest retry_after
_RECENT = 0.2  # weight of the latest interval in the moving average
_SEEN_FOR = 0.1  # seconds that a reading of the machine's capacity stays valid; reading it takes 1 % of a run
_LOOK_EVERY = 0.25  # seconds between readings while a ticket waits for capacity
_EVERY = {"high": 1, "normal": 4, "agents": 16, "low": 64}  # at least about one start in so many of a namespace's


class Claim(NamedTuple):
    namespace: str = ""
    account: str = ""  # of an agent; empty for other callers
    refused: Callable[[QueueFull], None] = lambda _: None  # called on the first refusal since one was let wait
    priority: Priority = "normal"
    by: float | None = None  # the deadline for starting, on the loop's clock

    @property
    def place(self) -> tuple[str, str, str]:
        """Its queue: namespace, level, account. An agent is below other callers even if it claims a high priority."""
        return self.namespace, "agents" if self.account and self.priority != "low" else self.priority, self.account


class Slots:
    """Lets at most ``most`` executions run at once. ``look`` reads the machine's capacity.

    Picks the namespace with the fewest running, then the due priority, then the account with the fewest running; ties
    go to the one that started longest ago. Counters have an entry for each place and its prefixes. For one event loop.
    """

    def __init__(self, most: int, look: Callable[[], Room] = machine.look) -> None:
        self.most = most
        self.room, self._seen = Room(), -math.inf  # the last reading of the capacity, and its time
        self._look = look
        self._begun = 0  # executions started since that reading
        self._missed = math.inf  # when the wait for capacity began
        self._queues: dict[tuple[str, ...], OrderedDict[asyncio.Future[None], Claim]] = {}  # by place
        self._running, self._waiting = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        self._turns = Counter[tuple[str, ...]]()  # starts so far, in all and by namespace
        self._due = Counter[tuple[str, ...]]()  # the lowest is next; in starts of all, or of the namespace for a level
        self._next_look: asyncio.TimerHandle | None = None
        self._told: set[tuple[str, ...]] = set()  # places whose refusal was reported
        self._every = 0.0  # average seconds between the ends of executions while tickets waited
        self._last_end: float | None = None

    def counts(self, *place: str) -> tuple[int, int]:
        """How many executions run and how many wait, in all or in one namespace."""
        return self._running[place], self._waiting[place]

    def verdict(self) -> Verdict:
        """Whether one more may start now."""
        now = time.monotonic()
        if now - self._seen > _SEEN_FOR:
            self.room, self._seen, self._begun = self._look(), now, 0
        running = self._running[()]
        if running >= self.most:
            return Verdict("wait", "turns")
        return decide(self.room, min(self._begun, running), running, now - self._missed)

    def check_waits(self, claim: Claim) -> None:
        """Raise ``QueueFull`` if one more may not wait. An agent's account may hold no more places than are free: at
        most half of them, and fewer when other accounts wait, so that agents cannot fill the queue."""
        running, waiting = self.counts(claim.namespace)
        own = sum(self._waiting[claim.namespace, level, claim.account] for level in _EVERY) if claim.account else 0
        if waiting >= MOST_WAITING or own >= max(1, MOST_WAITING - waiting):
            raise self._refuse(claim, f"{running} executions run and {waiting} wait: no more may wait", "turns")
        self._told.discard(claim.place)

    @contextlib.asynccontextmanager
    async def turn(
        self, claim: Claim, lock: asyncio.Lock | None = None, has_cell: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[None]:
        """Wait for a slot and hold it for the block. A step also holds its session's ``lock``; if its session
        ``has_cell``, it needs no capacity for one. Raises ``QueueFull``."""
        asked, is_held, why = time.time_ns(), False, "the session is busy"
        try:
            try:
                async with contextlib.nullcontext() if claim.by is None else asyncio.timeout_at(claim.by):
                    is_held, why = lock is not None and await lock.acquire(), ""
                    is_free = self._running[()] < self.most
                    if is_free and (has_cell() or (not self._queues and self.verdict().act == "start")):
                        self._begin(claim.place)
                    else:
                        self.check_waits(claim)
                        await self._wait(claim)
            except TimeoutError:
                missing: Missing = ("" if why else self.verdict().missing) or "turns"
                words = f"it could not start in time: {why or self._words_for(missing)}"
                raise self._refuse(claim, words, missing) from None
            try:
                TURN.set((asked, time.time_ns()))
                yield
            finally:
                self._end(claim.place)
        finally:
            if lock is not None and is_held:
                lock.release()

    async def _wait(self, claim: Claim) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = claim.place
        if not self._queues:
            self._missed = math.inf
        if not self._waiting[place[:2]]:
            self._due[place[:2]] = self._turns[place[:1]] + _EVERY[place[1]]
        if place not in self._queues:
            self._queues[place], self._due[place] = OrderedDict(), self._turns[()]
        self._queues[place][turn] = claim
        _count(self._waiting, place, 1)
        self._hand_on()
        try:
            await turn
        except BaseException:
            if turn in self._queues.get(place, ()):
                self._remove(turn, place)
            elif not turn.cancelled() and turn.exception() is None:
                self._end(place)  # it was cancelled just after it got the slot
            raise

    def _remove(self, turn: asyncio.Future[None], place: tuple[str, ...]) -> Claim:
        claim = self._queues[place].pop(turn)
        if not self._queues[place]:
            del self._queues[place], self._due[place]
        _count(self._waiting, place, -1)
        return claim

    def _begin(self, place: tuple[str, ...]) -> None:
        self._begun += 1
        _count(self._running, place, 1)
        self._turns[()] += 1
        self._turns[place[:1]] += 1
        self._due[place[:1]] = self._turns[()]
        self._due[place[:2]] = self._turns[place[:1]] + _EVERY[place[1]]
        if place in self._queues:
            self._due[place] = self._turns[()]

    def _end(self, place: tuple[str, ...]) -> None:
        _count(self._running, place, -1)
        now = time.monotonic()
        if self._queues and self._last_end is not None:
            self._every += (_RECENT if self._every else 1.0) * (now - self._last_end - self._every)
        self._last_end = now
        if self._missed < math.inf:
            self._seen, self._missed = -math.inf, now  # an execution freed memory: read the capacity again
        self._hand_on()

    def _hand_on(self) -> None:
        """Start waiting tickets in order, or refuse them if no capacity is to be expected."""
        while self._queues and (verdict := self.verdict()).act != "wait":
            running, due = self._running, self._due
            place = min(self._queues, key=lambda at: (running[at[:1]], due[at[:1]], due[at[:2]], running[at], due[at]))
            turn = next(iter(self._queues[place]))
            claim = self._remove(turn, place)
            if turn.done():
                continue  # cancelled
            if verdict.act == "refuse":
                turn.set_exception(self._refuse(claim, self._words_for(verdict.missing), verdict.missing))
            else:
                self._missed = math.inf
                self._begin(place)
                turn.set_result(None)
        if self._queues and self._running[()] < self.most:
            self._missed = min(self._missed, time.monotonic())
            if self._next_look is None:
                self._next_look = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self._hand_on()

    def _refuse(self, claim: Claim, words: str, missing: Missing) -> QueueFull:
        within = PATIENCE if missing != "turns" and not self._running[()] else self._turn_within()
        full = QueueFull(words, retry_after=within, missing=missing)
        if claim.place not in self._told:
            self._told.add(claim.place)
            claim.refused(full)
        return full

    def _words_for(self, missing: Missing) -> str:
        if missing == "turns":
            return f"all {self.most} turns are taken"
        return f"this machine has no {missing} to spare: {self.room}"

    def _turn_within(self) -> float:
        """An estimate of the seconds until the next ticket starts."""
        return float(min(_LONGEST, max(1, math.ceil(self._every))))


def _count(counter: Counter[tuple[str, ...]], place: tuple[str, ...], change: int) -> None:
    """Add ``change`` at ``place`` and all its prefixes; entries at zero are removed."""
    for depth in range(len(place) + 1):
        counter[place[:depth]] += change
        if not counter[place[:depth]]:
            del counter[place[:depth]]
