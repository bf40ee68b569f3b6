"""Requests, their states, and whose turn it is to be shown. Pure: no clock, no thread, nobody is asked here.

Each request goes from *asked* to exactly one end. Whatever comes after that changes nothing:

    asked ──approve──> approved
          ──deny─────> denied
          ──expire───> expired      nobody answered in time
          ──withdraw─> withdrawn    what asked is over
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

State = Literal["asked", "approved", "denied", "expired", "withdrawn"]
End = Literal["approved", "denied", "expired", "withdrawn"]

SHOWN_AT_ONCE = 16  # requests of one session: as many as a person can look through
MOST_PENDING = 2000  # requests of one run; a program with so many calls at once has a limit on threads to meet first
MOST_PENDING_BYTES = 64 << 20  # of the arguments of one run's pending requests
MOST_ASKED = 10_000  # requests in the life of one run: nobody answers more
_ENDS_KNOWN = 4096  # of requests that are over, to tell who answers late what came of them


@dataclass(slots=True)
class _Entry:
    queue: str
    run: str
    size: int
    is_shown: bool = False


@dataclass(slots=True)
class _Run:
    pending: int = 0
    pending_bytes: int = 0
    asked: int = 0


class States:
    """Every request by its id. A ``queue`` is a session, or a run of its own: requests are shown in its order."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, _Entry] = OrderedDict()
        self._ends: OrderedDict[str, State] = OrderedDict()
        self._runs: dict[str, _Run] = {}
        self._waiting: dict[str, deque[str]] = {}  # by queue; with some that are over
        self._shown: dict[str, int] = {}

    def ask(self, request: str, queue: str, run: str, size: int) -> str:
        """A new request whose arguments take ``size`` bytes; or why it is not taken, which changes nothing."""
        known = self._runs.setdefault(run, _Run())
        if known.asked >= MOST_ASKED:
            return f"this run has asked {MOST_ASKED:,} times, which is the most"
        if known.pending >= MOST_PENDING or known.pending_bytes + size > MOST_PENDING_BYTES:
            return f"{known.pending:,} requests of this run wait already"
        known.asked += 1
        known.pending += 1
        known.pending_bytes += size
        self._asked[request] = _Entry(queue, run, size)
        self._waiting.setdefault(queue, deque()).append(request)
        return ""

    def take_turn(self, queue: str) -> str | None:
        """The next request of ``queue`` whose turn it is to be shown, and which is shown from now on."""
        waiting = self._waiting.get(queue)
        while waiting and self._shown.get(queue, 0) < SHOWN_AT_ONCE:
            entry = self._asked.get(request := waiting.popleft())
            if entry is not None:
                entry.is_shown = True
                self._shown[queue] = self._shown.get(queue, 0) + 1
                return request
        return None

    def settle(self, request: str, end: End) -> bool:
        """The first answer, or end, of a request wins: whether this was it."""
        entry = self._asked.pop(request, None)
        if entry is None:
            return False
        known = self._runs[entry.run]
        known.pending -= 1
        known.pending_bytes -= entry.size
        if entry.is_shown:
            self._shown[entry.queue] -= 1
        self._ends[request] = end
        if len(self._ends) > _ENDS_KNOWN:
            self._ends.popitem(last=False)
        return True

    def state(self, request: str) -> State | None:
        """The state of a request; None for one that never was, or was long ago."""
        return "asked" if request in self._asked else self._ends.get(request)

    def shown(self) -> Iterator[str]:
        """Requests that are shown and wait for an answer, the oldest first."""
        return (request for request, entry in self._asked.items() if entry.is_shown)

    def asked(self) -> Iterator[str]:
        """The same with those whose turn has not come."""
        return iter(self._asked)

    def forget_run(self, run: str) -> None:
        """A run is over, and none of its requests is pending."""
        self._runs.pop(run, None)

    def forget_queue(self, queue: str) -> None:
        """Nobody will ask in this queue any more for now; harmless while requests are pending in it."""
        if not self._shown.get(queue) and not any(entry in self._asked for entry in self._waiting.get(queue, ())):
            self._waiting.pop(queue, None)
            self._shown.pop(queue, None)
