"""Turns of executions: so many at once, while the machine has room; the others wait, as far as they may, by turns."""

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

MOST_WAITING = 1000  # of a namespace: each is little more than its request, and whoever comes later had better go away
_LONGEST = 60.0  # seconds: nobody is sent away for longer
_RECENT = 0.2  # how much the last turn counts when it is said how often one comes
_SEEN_FOR = 0.1  # seconds for which a look at the machine holds: one takes a hundredth of a run
_LOOK_EVERY = 0.25  # seconds, while somebody waits for room and not for a turn
_EVERY = {"high": 1, "normal": 4, "agents": 16, "low": 64}  # of so many turns of a namespace about one, at the least


class Claim(NamedTuple):
    """Who wants a turn, for an agent's ``account`` or without one. ``by``: when it must have come, by the loop's clock.
    ``refused`` is told of the first refusal after one that was let wait."""

    namespace: str = ""
    account: str = ""
    refused: Callable[[QueueFull], None] = lambda _: None
    priority: Priority = "normal"
    by: float | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """Where it waits. Agents are below others, whatever they say."""
        return self.namespace, "agents" if self.account and self.priority != "low" else self.priority, self.account


class Slots:
    """Lets ``most`` executions go on at once, and knows how many do and how many wait. ``look``: at the machine.

    The next turn is of the namespace of which the fewest run; there of the priority that is due; there of the account
    of which the fewest run; of several, the one whose last turn is longest ago. For one event loop.
    """

    def __init__(self, most: int, look: Callable[[], Room] = machine.look) -> None:
        self.most = most
        self.room, self._seen = Room(), -math.inf  # what the machine had left, and when
        self._look = look
        self._begun = 0  # since then
        self._missed = math.inf  # since when somebody waits for room
        self._queues: dict[tuple[str, ...], OrderedDict[asyncio.Future[None], Claim]] = {}  # by place
        self._running, self._waiting = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()  # by place, and above
        self._turns = Counter[tuple[str, ...]]()  # so far, in all and by namespace
        self._due = Counter[tuple[str, ...]]()  # by place and above: on the clock of what it is in, which turns move
        self._next_look: asyncio.TimerHandle | None = None
        self._told: set[tuple[str, ...]] = set()  # places at which somebody was refused
        self._every = 0.0  # seconds from one end of an execution to the next, while somebody waited
        self._last_end: float | None = None

    def counts(self, *place: str) -> tuple[int, int]:
        """How many executions run and wait: of all, or of one namespace."""
        return self._running[place], self._waiting[place]

    def verdict(self) -> Verdict:
        """Whether one more may begin now."""
        now = time.monotonic()
        if now - self._seen > _SEEN_FOR:
            self.room, self._seen, self._begun = self._look(), now, 0
        running = self._running[()]
        if running >= self.most:
            return Verdict("wait", "turns")
        return decide(self.room, min(self._begun, running), running, now - self._missed)

    def check_waits(self, claim: Claim) -> None:
        """Raises ``QueueFull`` where one more may not even wait. An agent's account has no more places than are free:
        half of them, or fewer where other accounts wait, so that no number of these takes all."""
        running, waiting = self.counts(claim.namespace)
        own = sum(self._waiting[claim.namespace, level, claim.account] for level in _EVERY) if claim.account else 0
        if waiting >= MOST_WAITING or own >= max(1, MOST_WAITING - waiting):
            raise self._refuse(claim, f"{running} executions run and {waiting} wait: no more may wait", "turns")
        self._told.discard(claim.place)

    @contextlib.asynccontextmanager
    async def turn(
        self, claim: Claim, lock: asyncio.Lock | None = None, has_cell: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[None]:
        """Wait for a turn, and have it. A step has its session's ``lock``, too; where its session ``has_cell``, none
        has to be started. Raises ``QueueFull``."""
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
                words = f"its turn did not come in time: {why or self._words_for(missing)}"
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
                self._end(place)  # it had just come
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
            self._seen, self._missed = -math.inf, now  # it has given back what it had
        self._hand_on()

    def _hand_on(self) -> None:
        """Whoever waits begins, each in its turn, or is sent away where no room is to be expected."""
        while self._queues and (verdict := self.verdict()).act != "wait":
            running, due = self._running, self._due
            place = min(self._queues, key=lambda at: (running[at[:1]], due[at[:1]], due[at[:2]], running[at], due[at]))
            turn = next(iter(self._queues[place]))
            claim = self._remove(turn, place)
            if turn.done():
                continue  # it has just been cancelled
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
        """About how many seconds it takes until the next in line has its turn, as it went so far."""
        return float(min(_LONGEST, max(1, math.ceil(self._every))))


def _count(counter: Counter[tuple[str, ...]], place: tuple[str, ...], change: int) -> None:
    """So many more at ``place``, in its namespace and priority, in its namespace, and in all; who has none is gone."""
    for depth in range(len(place) + 1):
        counter[place[:depth]] += change
        if not counter[place[:depth]]:
            del counter[place[:depth]]
