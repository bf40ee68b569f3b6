"""Through whom somebody is asked: what a channel is to the broker, and the channels that need no more than a list."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from casemate.model.approval import ApprovalRequest, Decision

    Emit = Callable[[ApprovalRequest, int], None]

# Whether somebody looks at a request from now on, so that its time begins; will later; or never.
Receipt = Literal["shown", "queued", "unavailable"]


class Channel(Protocol):
    """Somebody who can be asked. ``name`` is on record as who has answered. Called in the broker's thread."""

    name: str

    @property
    def is_available(self) -> bool:
        """Whether anybody can be asked now."""

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop | None) -> Receipt:
        """Show a request whose arguments take ``size`` bytes. ``loop``: in which the run was begun."""

    def withdraw(self, request: str) -> None:
        """The request needs no answer any more. Harmless for one that was never shown."""

    async def wait_closed(self, requests: set[str], seconds: float) -> None:
        """Wait, at most so long, until nobody looks at ``requests`` any more, which are over. From any event loop."""


class RequestStore(Channel, Protocol):
    """A channel that keeps requests also when what asked is gone, and what was answered then."""

    def list_withdrawn(self) -> list[ApprovalRequest]:
        """Requests whose cells are gone, and that can be answered."""

    def decide(self, request: str, decision: Decision) -> bool:
        """Answer one of these; False where there is none."""

    def connect(self, sink: AnswerSink) -> None:
        """``sink`` takes answers that were given beforehand."""


class AnswerSink(Protocol):
    """What a channel tells the broker. From any thread."""

    def start_timeout(self, request: str) -> bool:
        """Somebody looks at the request from now on; False when that is no longer needed."""

    def answer(self, request: str, decision: Decision, by: str, note: str = "") -> bool:
        """An answer; whether it was the first. ``note`` is for the record alone."""

    def drop_channel(self, channel: Channel, request: str = "") -> None:
        """Nobody answers through this channel any more: this request, or any."""


class StreamChannel:
    """Events of a run's stream. Whoever follows it answers through the request itself."""

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

    def withdraw(self, request: str) -> None:
        """Whoever answers learns that it was too late."""

    async def wait_closed(self, requests: set[str], seconds: float) -> None:
        """Nobody is called."""


class QueueChannel:
    """The list of pending requests, for other parts of the application, as long as any of them holds it open."""

    name = "queue"

    def __init__(self) -> None:
        self._holders = 0
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def is_available(self) -> bool:
        return self._holders > 0

    def add_holder(self) -> None:
        """One more holds it open."""
        with self._lock:
            self._holders += 1

    def remove_holder(self) -> bool:
        """One less; whether that was the last."""
        with self._lock:
            self._holders -= 1
            return not self._holders

    def notify(self) -> None:
        """Tell the watchers that the list has changed. From any thread."""
        with self._lock:
            watchers = list(self._watchers)
        for call in watchers:
            call()

    @contextlib.contextmanager
    def watch(self, call: Callable[[], None]) -> Iterator[None]:
        """``call`` whenever the list has changed, from any thread, as long as this is entered."""
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

    async def wait_closed(self, requests: set[str], seconds: float) -> None:
        """Nobody is called."""


def decision_of(answer: object) -> Decision:
    """What an approver has answered: only a real True, or a Decision that holds one, allows."""
    from casemate.model.approval import Decision

    if not isinstance(answer, Decision):
        return Decision(allow=answer is True)
    return answer if isinstance(answer.allow, bool) else Decision(reason=answer.reason)
