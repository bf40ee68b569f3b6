"""What is shown of a question, and the states of pending requests. Pure: no clock, no thread, nobody is asked here.

Each request goes from *asked* to exactly one end. Whatever comes after that changes nothing:

    asked ──approve──> approved
          ──deny─────> denied
          ──expire───> expired      nobody answered in time
          ──withdraw─> withdrawn    the run or step that asked is over
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from casemate.errors import InvalidArgument
from casemate.model.approval import Question
from casemate.policy.canonical import MOST_BYTES, canonical, fingerprint

State = Literal["asked", "approved", "denied", "expired", "withdrawn"]
End = Literal["approved", "denied", "expired", "withdrawn"]

SHOWN_AT_ONCE = 16  # requests of one session: as many as a person can look through
MOST_PENDING = 2000  # requests of one run; a program with so many calls at once has a limit on threads to meet first
MOST_PENDING_BYTES = 8 << 20  # of the arguments of one run's pending requests
MOST_BYTES_OF_CALLER = 32 << 20  # of those of all runs of one caller
MOST_ASKED = 10_000  # requests in the life of one run: nobody answers more
_ENDS_KNOWN = 4096  # of requests that are over, to tell who answers late what came of them


class Unshowable(ValueError):
    """The question cannot be shown, so it cannot be answered. The message says why."""


@dataclass(frozen=True, slots=True)
class ShownArguments:
    """A question's arguments as canonical JSON (``text``), and the ``hash`` to which a decision binds."""

    text: str
    hash: str

    def copy(self) -> dict[str, Any]:
        """A fresh copy of the arguments: everybody who is asked gets one."""
        copy: dict[str, Any] = json.loads(self.text)
        return copy


def show_arguments(question: Question) -> ShownArguments:
    """What is shown of ``question``. Raises :class:`Unshowable`."""
    if not isinstance(question.arguments, dict):
        raise Unshowable("its arguments are not a mapping")
    try:
        text = canonical(question.arguments)
        digest = fingerprint(question, text)
    except InvalidArgument as error:
        raise Unshowable(str(error)) from None
    if len(text) > MOST_BYTES:
        raise Unshowable(f"its arguments take {len(text):,} bytes; {MOST_BYTES:,} are the most")
    return ShownArguments(text.decode(), digest)


@dataclass(slots=True)
class _Pending:
    queue: str
    run: str
    size: int
    caller: str
    is_shown: bool = False


@dataclass(slots=True)
class _RunCounts:
    pending: int = 0
    pending_bytes: int = 0
    asked: int = 0


class RequestStates:
    """Every request by its id. A ``queue`` is a session, or a run of its own: requests are shown in its order."""

    def __init__(self) -> None:
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._ends: OrderedDict[str, tuple[State, str]] = OrderedDict()  # and the run that asked
        self._runs: dict[str, _RunCounts] = {}
        self._not_shown: dict[str, deque[str]] = {}  # requests by queue; some of them are over
        self._shown_counts: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()  # by caller

    def add(self, request: str, queue: str, run: str, size: int, caller: str = "") -> str:
        """Add a request whose arguments take ``size`` bytes. Returns why it is refused, which changes nothing."""
        counts = self._runs.setdefault(run, _RunCounts())
        if counts.asked >= MOST_ASKED:
            return f"this run has asked {MOST_ASKED:,} times, which is the most"
        if counts.pending >= MOST_PENDING or counts.pending_bytes + size > MOST_PENDING_BYTES:
            return f"{counts.pending:,} requests of this run wait already"
        if self._bytes_of[caller] + size > MOST_BYTES_OF_CALLER:
            return f"requests with {self._bytes_of[caller]:,} bytes wait already for who asks"
        self._bytes_of[caller] += size
        counts.asked += 1
        counts.pending += 1
        counts.pending_bytes += size
        self._pending[request] = _Pending(queue, run, size, caller)
        self._not_shown.setdefault(queue, deque()).append(request)
        return ""

    def show_next(self, queue: str) -> str | None:
        """Mark the next request of ``queue`` as shown, unless enough are; its id."""
        not_shown = self._not_shown.get(queue)
        while not_shown and self._shown_counts.get(queue, 0) < SHOWN_AT_ONCE:
            pending = self._pending.get(request := not_shown.popleft())
            if pending is not None:
                pending.is_shown = True
                self._shown_counts[queue] = self._shown_counts.get(queue, 0) + 1
                return request
        return None

    def settle(self, request: str, end: End) -> bool:
        """End a request. Only the first end counts; whether this was it."""
        pending = self._pending.pop(request, None)
        if pending is None:
            return False
        counts = self._runs[pending.run]
        counts.pending -= 1
        counts.pending_bytes -= pending.size
        self._bytes_of[pending.caller] -= pending.size
        if not self._bytes_of[pending.caller]:
            del self._bytes_of[pending.caller]
        if pending.is_shown:
            self._shown_counts[pending.queue] -= 1
        self._ends[request] = end, pending.run
        if len(self._ends) > _ENDS_KNOWN:
            self._ends.popitem(last=False)
        return True

    def state_of(self, request: str) -> State | None:
        """The state of a request; None for one that never was, or was long ago."""
        return "asked" if request in self._pending else self._ends.get(request, (None, ""))[0]

    def run_of(self, request: str) -> str:
        """The run that has asked; empty for one that never was, or was long ago."""
        pending = self._pending.get(request)
        return pending.run if pending is not None else self._ends.get(request, (None, ""))[1]

    def list_shown(self) -> Iterator[str]:
        """Pending requests that are shown, the oldest first."""
        return (request for request, pending in self._pending.items() if pending.is_shown)

    def list_pending(self) -> Iterator[str]:
        """All pending requests, the oldest first."""
        return iter(self._pending)

    def forget_run(self, run: str) -> None:
        """Forget a run that is over and has no pending request."""
        self._runs.pop(run, None)

    def forget_queue(self, queue: str) -> None:
        """Forget a queue in which nobody asks for now; harmless while requests are pending in it."""
        if not self._shown_counts.get(queue) and not any(
            one in self._pending for one in self._not_shown.get(queue, ())
        ):
            self._not_shown.pop(queue, None)
            self._shown_counts.pop(queue, None)
