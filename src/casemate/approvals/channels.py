"""Through whom somebody is asked: what each channel is to the plane, and the two that need no more than a list."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from casemate.model.approval import ApprovalRequest, Decision

    Emit = Callable[[ApprovalRequest, int], None]

# Whether somebody looks at a request from now on, so that its time begins; will when its turn comes; or never.
Held = Literal["taken", "waits", "gone"]


class Channel(Protocol):
    """Somebody who can be asked. ``name`` is on record as who has answered. Called in the plane's thread."""

    name: str

    @property
    def is_there(self) -> bool:
        """Whether anybody can be asked now."""
        ...

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop | None) -> Held:
        """Show a request whose arguments take ``size`` bytes. ``loop``: in which the run was begun."""
        ...

    def withdraw(self, request: str) -> None:
        """It needs no answer any more. Harmless for one that was never shown."""
        ...

    async def ended(self, requests: set[str], seconds: float) -> None:
        """Wait, at most so long, until nobody is at ``requests`` any more, which are over. From any event loop."""
        ...


class Keeper(Channel, Protocol):
    """A channel that holds requests also when what asked is gone, and what was answered then."""

    def open(self) -> list[ApprovalRequest]:
        """Requests whose cells are gone, and that can be answered."""
        ...

    def decide(self, request: str, decision: Decision) -> bool:
        """Answer one of these; False where there is none."""
        ...

    def connect(self, desk: Desk) -> None:
        """Whom it tells of answers that were given beforehand."""
        ...


class Desk(Protocol):
    """What a channel tells the plane. From any thread."""

    def taken(self, request: str) -> bool:
        """Somebody looks at it from now on; False when that is no longer needed."""
        ...

    def answer(self, request: str, decision: Decision, by: str, note: str = "") -> bool:
        """An answer; whether it was the first. ``note`` is for the record alone."""
        ...

    def gone(self, channel: Channel, request: str = "") -> None:
        """Through this channel nobody answers any more: this request, or any."""
        ...


class StreamChannel:
    """Events of a run's stream. Whoever follows it answers through the request itself."""

    name = "stream"

    def __init__(self, emit: Emit, is_followed: Callable[[], bool]) -> None:
        self._emit = emit
        self._is_followed = is_followed

    @property
    def is_there(self) -> bool:
        return self._is_followed()

    def show(self, request: ApprovalRequest, size: int, loop: Any) -> Held:  # noqa: ARG002 - not ours
        try:
            self._emit(request, size)
        except RuntimeError:  # its event loop is closed
            return "gone"
        return "taken"

    def withdraw(self, request: str) -> None:
        """Whoever answers is told that it was too late."""

    async def ended(self, requests: set[str], seconds: float) -> None:
        """Nobody is called."""


class HeldChannel:
    """The sandbox holds requests for other parts of the application, as long as any of them wants that."""

    name = "queue"

    def __init__(self) -> None:
        self._holders = 0
        self._told: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        return self._holders > 0

    def open(self) -> None:
        """One more wants it."""
        with self._lock:
            self._holders += 1

    def close(self) -> bool:
        """One less; whether that was the last."""
        with self._lock:
            self._holders -= 1
            return not self._holders

    def tell(self) -> None:
        """What waits is another now. From any thread."""
        with self._lock:
            told = list(self._told)
        for call in told:
            call()

    @contextlib.contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """``call`` whenever what waits is another, from any thread, as long as this is entered."""
        with self._lock:
            self._told.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._told.remove(call)

    def show(self, request: ApprovalRequest, size: int, loop: Any) -> Held:  # noqa: ARG002 - it is looked up
        self.tell()
        return "taken"

    def withdraw(self, request: str) -> None:  # noqa: ARG002 - it is looked up
        """It is looked up no more."""
        self.tell()

    async def ended(self, requests: set[str], seconds: float) -> None:
        """Nobody is called."""


def decision_of(answer: object) -> Decision:
    """What an approver has answered: only a real True, or a Decision that holds one, allows."""
    from casemate.model.approval import Decision

    if answer is True:
        return Decision(allow=True)
    if isinstance(answer, Decision) and answer.allow is True:
        return answer
    return Decision(reason=answer.reason) if isinstance(answer, Decision) else Decision()
