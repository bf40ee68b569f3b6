"""What a door asks: bound to one run or step, whose name nobody else can put on a question."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.model.caller import caller

if TYPE_CHECKING:
    import asyncio

    from casemate.approvals.channels import Channel
    from casemate.approvals.pausing import Pausable, Pausing
    from casemate.approvals.plane import Plane
    from casemate.model.approval import Question, Verdict
    from casemate.redaction.redaction import Redaction

_END_WITHIN = 5.0  # seconds that an approver has to take note of its cancellation
_OVER = "what asked is over"
_TOGETHER = 0.02  # seconds in which what may be done afterwards is gathered: each change of thread takes others' time


class Of(NamedTuple):
    """Whose questions: a run of its own, or a step (``run``) of a ``session``."""

    namespace: str
    session: str | None
    run: str


class Asker:
    """One run's or step's way to the plane, which is made when the first of all asks.

    ``stream``: where its events are followed; ``loop``: where it was begun; ``redaction``: of its secrets, if any;
    ``asks``: somebody may be asked, else only rules decide; ``ahead``: for what later runs or steps will ask.
    """

    def __init__(
        self,
        plane_of: Callable[[], Plane],
        of: Of,
        stream: Channel | None,
        loop: asyncio.AbstractEventLoop | None,
        redaction: Redaction | None = None,
        *,
        asks: bool = True,
        ahead: bool = False,
    ) -> None:
        self.asks, self.ahead = asks, ahead
        self.namespace, self.session, self.run = of.namespace, of.session, of.run
        self.queue = of.session or of.run
        self.caller = caller()
        self.stream = stream
        self.loop = loop
        self.is_over = False
        self.why_over = _OVER
        self.pending = self.decided = self.unrecorded = 0  # the plane's to count
        self.asked = 0
        self._plane_of = plane_of
        self._redaction = redaction
        self._lock = threading.Lock()  # of what follows
        self._plane: Plane | None = None
        self._pausing: Pausing | None = None
        self._cell: Pausable | None = None
        self._over: list[str] = []
        self._afterwards: deque[Callable[[], object]] = deque()
        self._has_more = False

    def attach(self, cell: Pausable) -> None:
        """Its cell, which stands still while it only waits for answers."""
        with self._lock:
            self._cell = cell
            if self._pausing:
                self._pausing.attach(cell)

    @property
    def pausing(self) -> Pausing:
        """When its cell stands still: of one that has asked."""
        assert self._pausing
        return self._pausing

    def decide(self, question: Question, *, here: bool = False) -> Future[Verdict]:
        """Whether ``question`` may cross: by rules, or by whoever is asked. From any thread; never blocks, and always
        comes to a verdict, at the latest when this run or step is over. ``question``'s namespace, session and run are
        put in here, its arguments are copied at once. ``here``: this thread has a millisecond to spare, so what rules
        allow may be decided before this returns."""
        from casemate.approvals.shown import Unshowable, shown
        from casemate.approvals.states import MOST_ASKED
        from casemate.model.approval import Verdict

        future: Future[Verdict] = Future()
        future.set_running_or_notify_cancel()  # nobody takes a question back but by the end of the run
        self.asked += 1
        if self.asked > MOST_ASKED:  # not even looked at: a flood must not hold up others
            future.set_result(Verdict(False, "limit", f"this run has asked {MOST_ASKED:,} times, which is the most"))
            return future
        plane = self._asking()
        own = replace(question, namespace=self.namespace, session=self.session, run=self.run)
        try:
            plane.decide(self, own, shown(own), future, here=here)
        except Unshowable as error:
            plane.refuse(self, own, future, str(error))
        return future

    def afterwards(self, step: Callable[[], object]) -> None:
        """Have ``step``, which must not raise, called in the plane's thread, with others like it: soon, in their order,
        and at the latest in `end`, for what came before that. From any thread."""
        clockwork = self._asking().clockwork
        with self._lock:
            is_first, self._has_more = not self._afterwards, True
            self._afterwards.append(step)
        if is_first and clockwork.later(_TOGETHER, clockwork.aside, self._do_one).is_cancelled:
            self._catch_up()

    def _do_one(self) -> None:
        """Do one thing that was put off; the next one after whatever else there is to do."""
        with self._lock:
            step = self._afterwards.popleft() if self._afterwards else None
        if step is not None:
            step()
            self._asking().clockwork.aside(self._do_one)

    def _catch_up(self) -> None:
        """Do all that was put off."""
        while True:
            with self._lock:
                step = self._afterwards.popleft() if self._afterwards else None
            if step is None:
                return
            step()

    def without_secrets(self, question: Question) -> Question:
        """What of ``question`` anybody may be told. Its hash stays that of the whole."""
        if (redaction := self._redaction) is None:
            return question
        return replace(
            question,
            summary=redaction.text(question.summary),
            arguments=redaction.value(question.arguments),
            server=redaction.text(question.server),
            tool=redaction.text(question.tool),
        )

    def redacted(self, value: Any) -> Any:
        """JSON values without the secrets of this run."""
        return value if self._redaction is None else self._redaction.value(value)

    def close(self, why: str = _OVER) -> None:
        """It is over, or is to end: nothing of it crosses any more. From any thread; harmless when repeated."""
        if not self.is_over:
            self.why_over, self.is_over = why, True
        with self._lock:
            plane, pausing = self._plane, self._pausing
        if plane and pausing:
            pausing.end()
            self._over += plane.withdraw(self)

    async def end(self) -> None:
        """The same, and wait until no approver is called for it any more. Bounded."""
        self.close()
        if self._over and self._plane:
            for channel in self._plane.channels:
                await channel.ended(set(self._over), _END_WITHIN)
        if self._has_more and self._plane:
            if not self._plane.clockwork.soon(self._catch_up):
                self._catch_up()
            await self._plane.clockwork.caught_up(_END_WITHIN)

    def _asking(self) -> Plane:
        from casemate.approvals.pausing import Pausing

        with self._lock:
            if self._plane is None:
                self._plane = self._plane_of()
                self._pausing = Pausing(self._plane.clockwork)
                if self._cell:
                    self._pausing.attach(self._cell)
            return self._plane
