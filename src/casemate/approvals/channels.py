"""The channels through which approvers are asked: their interface, and those that need only a list."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from casemate.model.approval import ApprovalRequest, Decision

    Emit = Callable[[ApprovalRequest, int], None]

# Whether an approver sees a request now, so that its timeout starts; will see it later; or never will.
Receipt = Literal["shown", "queued", "unavailable"]


class Channel(Protocol):
    """A way to ask approvers. The record has ``name`` as the one who answered. Called in the broker's thread."""

    name: str

    @property
    def is_available(self) -> bool:
        """Whether an approver can be asked now."""

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop) -> Receipt:
        """Show a request whose arguments take ``size`` bytes. ``loop``: the run's event loop."""

    def withdraw(self, request: str) -> None:  # noqa: ARG002 - for those that keep it
        """The request no longer needs an answer. This channel may not have shown it."""
        return

    async def wait_closed(self, requests: set[str], seconds: float) -> None:  # noqa: ARG002 - for those that call
        """Wait at most ``seconds`` until no approver sees ``requests``, which are over. From any event loop."""
        return


class RequestStore(Channel, Protocol):
    """A channel that keeps requests after their runs are gone, and keeps the answers to them."""

    def list_withdrawn(self) -> list[ApprovalRequest]:
        """Requests whose cells are gone but that can still be answered."""

    def decide(self, request: str, decision: Decision) -> bool:
        """Answer one of these. False if there is none."""

    def connect(self, sink: AnswerSink) -> None:
        """Give ``sink`` the answers that were given in advance."""


class AnswerSink(Protocol):
    """The broker's side of a channel. Thread-safe."""

    def start_timeout(self, request: str) -> bool:
        """Start the request's timeout, because an approver sees it now. False if it no longer needs an answer."""

    def answer(self, request: str, decision: Decision, by: str, note: str = "") -> bool:
        """Answer a request. Returns whether the answer was the first. ``note`` is only for the record."""

    def drop_channel(self, channel: Channel, request: str = "") -> None:
        """This channel gives no more answers to ``request``, or to any."""


class StreamChannel(Channel):
    """Shows requests as events of a run's stream. The request's own methods answer it, and say if it is too late."""

    name = "stream"

    def __init__(self, emit: Emit, is_followed: Callable[[], bool]) -> None:
        self._emit = emit
        self._is_followed = is_followed

    @property
    def is_available(self) -> bool:
        return self._is_followed()

    def show(self, request: ApprovalRequest, size: int, loop: Any) -> Receipt:  # noqa: ARG002 - not ours
        try:
            self._emit(request, size)
        except RuntimeError:  # its event loop is closed
            return "unavailable"
        return "shown"


class QueueChannel(Channel):
    """The list of pending requests, for other parts of the application, while any of them holds it open."""

    name = "queue"

    def __init__(self) -> None:
        self._holders = 0
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def is_available(self) -> bool:
        return self._holders > 0

    def add_holder(self) -> None:
        """Add a holder."""
        with self._lock:
            self._holders += 1

    def remove_holder(self) -> bool:
        """Remove a holder. Returns whether it was the last."""
        with self._lock:
            self._holders -= 1
            return not self._holders

    def notify(self) -> None:
        """Tell the watchers that the list changed. Thread-safe."""
        with self._lock:
            watchers = list(self._watchers)
        for call in watchers:
            call()

    @contextlib.contextmanager
    def watch(self, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` from any thread whenever the list changes, within this context."""
        with self._lock:
            self._watchers.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._watchers.remove(call)

    def show(self, request: ApprovalRequest, size: int, loop: Any) -> Receipt:  # noqa: ARG002 - it is looked up
        self.notify()
        return "shown"

    def withdraw(self, request: str) -> None:  # noqa: ARG002 - it is looked up no more
        self.notify()


def decision_of(answer: object) -> Decision:
    """The decision in an approver's answer: only a real True, or a Decision that holds one, allows."""
    from casemate.model.approval import Decision

    if not isinstance(answer, Decision):
        return Decision(allow=answer is True)
    return answer if isinstance(answer.allow, bool) else Decision(reason=answer.reason)
