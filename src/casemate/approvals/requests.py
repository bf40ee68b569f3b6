"""Pending questions, and the states of requests. Pure: no clock, thread, input or output.

Each request goes from *asked* to exactly one end. Later events change nothing:

    asked ──approve──> approved
          ──deny─────> denied
          ──expire───> expired      no answer in time
          ──withdraw─> withdrawn    the run or step that asked is over
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from concurrent.futures import Future

    from casemate.approvals.channels import Channel
    from casemate.approvals.requester import Requester
    from casemate.model.approval import ApprovalRequest, ApprovalVerdict, Question

State = Literal["asked", "approved", "denied", "expired", "withdrawn"]
End = Literal["approved", "denied", "expired", "withdrawn"]

SHOWN_AT_ONCE = 16  # requests of one session, as many as a person can look through
MOST_PENDING = 2000  # requests of one run; a program with more calls at once meets its limit on threads first
MOST_PENDING_BYTES = 8 << 20  # of the arguments of one run's pending requests
MOST_BYTES_OF_CALLER = 32 << 20  # of the arguments of all runs of one caller
MOST_ASKED = 10_000  # requests in the life of one run, more than people answer
_ENDS_KNOWN = 4096  # ended requests to remember, to report late answers


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A question on its way to a verdict."""

    requester: Requester
    question: Question  # with its secrets; rules match this
    request: ApprovalRequest  # without secrets, for the record; has an id once it waits for an answer
    size: int  # bytes of its arguments
    future: Future[ApprovalVerdict]
    channels: list[Channel] = field(default_factory=list)  # those that may answer
    is_shown: bool = False
    shown: ApprovalRequest | None = None  # a copy of ``request`` for approvers
    has_timer: bool = False  # whether its timeout has started


@dataclass(slots=True)
class _RunCounts:
    pending: int = 0
    pending_bytes: int = 0
    asked: int = 0


class RequestStates:
    """All requests by id. Queues are sessions and runs without a session. Requests are shown in queue order."""

    def __init__(self) -> None:
        self._pending: OrderedDict[str, PendingRequest] = OrderedDict()
        self._ends: OrderedDict[str, tuple[State, str]] = OrderedDict()  # the end, and the run that asked
        self._runs: dict[str, _RunCounts] = {}
        self._not_shown: dict[str, deque[str]] = {}  # requests by queue, including some that are over
        self._shown_counts: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()  # by caller

    def add(self, request: str, pending: PendingRequest) -> str:
        """Add a request by its id. If it is refused, returns why and changes nothing."""
        requester, size = pending.requester, pending.size
        counts = self._runs.setdefault(requester.run, _RunCounts())
        if counts.asked >= MOST_ASKED:
            return f"this run has asked {MOST_ASKED:,} times, which is the limit"
        if counts.pending >= MOST_PENDING or counts.pending_bytes + size > MOST_PENDING_BYTES:
            return f"{counts.pending:,} requests of this run are already waiting"
        if self._bytes_of[requester.caller] + size > MOST_BYTES_OF_CALLER:
            return f"this caller already has waiting requests with {self._bytes_of[requester.caller]:,} bytes"
        self._bytes_of[requester.caller] += size
        counts.asked += 1
        counts.pending += 1
        counts.pending_bytes += size
        self._pending[request] = pending
        self._not_shown.setdefault(requester.queue, deque()).append(request)
        return ""

    def show_next(self, queue: str) -> PendingRequest | None:
        """Mark the next request of ``queue`` as shown, unless enough are shown."""
        not_shown = self._not_shown.get(queue)
        while not_shown and self._shown_counts.get(queue, 0) < SHOWN_AT_ONCE:
            pending = self._pending.get(not_shown.popleft())
            if pending is not None:
                pending.is_shown = True
                self._shown_counts[queue] = self._shown_counts.get(queue, 0) + 1
                return pending
        return None

    def settle(self, request: str, end: End) -> PendingRequest | None:
        """End a request and return it. None if it has ended before: only the first end counts."""
        pending = self._pending.pop(request, None)
        if pending is None:
            return None
        requester = pending.requester
        counts = self._runs[requester.run]
        counts.pending -= 1
        counts.pending_bytes -= pending.size
        self._bytes_of[requester.caller] -= pending.size
        if not self._bytes_of[requester.caller]:
            del self._bytes_of[requester.caller]
        if pending.is_shown:
            self._shown_counts[requester.queue] -= 1
        self._ends[request] = end, requester.run
        if len(self._ends) > _ENDS_KNOWN:
            self._ends.popitem(last=False)
        return pending

    def find(self, request: str) -> PendingRequest | None:
        """A pending request."""
        return self._pending.get(request)

    @property
    def pending(self) -> Iterable[PendingRequest]:
        """All pending requests, the oldest first."""
        return self._pending.values()

    def state_of(self, request: str) -> State | None:
        """The state of a request; None if it never existed or ended long ago."""
        return "asked" if request in self._pending else self._ends.get(request, (None, ""))[0]

    def run_of(self, request: str) -> str:
        """The run that asked; empty if the request never existed or ended long ago."""
        pending = self._pending.get(request)
        return pending.requester.run if pending is not None else self._ends.get(request, (None, ""))[1]

    def forget_run(self, run: str) -> None:
        """Forget a run that is over and has no pending request."""
        self._runs.pop(run, None)

    def forget_queue(self, queue: str) -> None:
        """Forget a queue, unless requests are pending in it."""
        if not self._shown_counts.get(queue) and not any(
            one in self._pending for one in self._not_shown.get(queue, ())
        ):
            self._not_shown.pop(queue, None)
            self._shown_counts.pop(queue, None)
