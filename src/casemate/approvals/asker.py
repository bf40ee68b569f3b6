"""What a door asks: bound to one run or step, whose name nobody else can put on a question."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from casemate.approvals.pausing import Pausable, Pausing
from casemate.approvals.plane import Case
from casemate.approvals.shown import Unshowable, shown
from casemate.model.approval import Question, Verdict

if TYPE_CHECKING:
    from casemate.approvals.channels import Channel
    from casemate.approvals.plane import Plane

_END_WITHIN = 5.0  # seconds that an approver has to take note of its cancellation
_OVER = "what asked is over"


@dataclass(frozen=True, slots=True)
class Of:
    """Whose questions: a run of its own, or a step (``run``) of a ``session``."""

    namespace: str
    session: str | None
    run: str


class Asker:
    """One run's or step's way to the plane. ``stream``: where its events are followed; ``loop``: where it was begun."""

    def __init__(self, plane: Plane, of: Of, stream: Channel | None, loop: asyncio.AbstractEventLoop | None) -> None:
        self.namespace, self.session, self.run = of.namespace, of.session, of.run
        self.queue = of.session or of.run
        self.stream = stream
        self.loop = loop
        self.pausing = Pausing(plane.clockwork)
        self.is_over = False
        self.why_over = _OVER
        self.pending = self.decided = self.unrecorded = 0  # the plane's to count
        self._plane = plane
        self._has_asked = False
        self._over: list[str] = []

    def attach(self, cell: Pausable) -> None:
        """Its cell, which stands still while it only waits for answers."""
        self.pausing.attach(cell)

    def decide(self, question: Question) -> Future[Verdict]:
        """Whether ``question`` may cross: by rules, or by whoever is asked. From any thread; never blocks, and always
        comes to a verdict, at the latest when this run or step is over. ``question``'s namespace, session and run are
        put in here, its arguments are copied at once."""
        self._has_asked = True
        future: Future[Verdict] = Future()
        future.set_running_or_notify_cancel()  # nobody takes a question back but by the end of the run
        own = replace(question, namespace=self.namespace, session=self.session, run=self.run)
        try:
            seen = shown(own)
        except Unshowable as error:
            self._plane.refuse(self, own, future, str(error))
            return future
        self._plane.decide(Case(self, replace(own, arguments=seen.arguments), seen, future))
        return future

    def close(self, why: str = _OVER) -> None:
        """It is over, or is to end: nothing of it crosses any more. From any thread; harmless when repeated."""
        if not self.is_over:
            self.why_over, self.is_over = why, True
        self.pausing.end()
        if self._has_asked:
            self._over += self._plane.withdraw(self)

    async def end(self) -> None:
        """The same, and wait until no approver is called for it any more. Bounded."""
        self.close()
        for channel in self._plane.channels:
            if self._over:
                await channel.ended(set(self._over), _END_WITHIN)
