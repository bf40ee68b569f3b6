"""One run's or step's way to the approval broker, and its cell, which is paused while it only waits for answers.

A requester is bound to its run or step: nobody else can put its name on a question.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from casemate.model.operation import agent, caller

if TYPE_CHECKING:
    import asyncio

    from casemate.approvals.channels import Channel
    from casemate.approvals.requests import ShownArguments
    from casemate.approvals.worker import Worker
    from casemate.model.approval import ApprovalVerdict, Question
    from casemate.policy.hosts import HostRules
    from casemate.redaction.redaction import Redaction

QUIET = 0.1  # seconds in which the cell sent no request and no answer came (docs/how-to/approvals.md)
_END_WITHIN = 5.0  # seconds that an approver has to take note of its cancellation
_OVER = "what asked is over"
_BATCH = 0.02  # seconds in which deferred jobs are gathered: each change of thread takes others' time


class Origin(NamedTuple):
    """Whose questions: a run of its own, or a step (``run``) of a ``session``."""

    namespace: str
    session: str | None
    run: str


class Pausable(Protocol):
    """What is needed of a cell to pause it."""

    def pause(self) -> None:
        """Stop everything in it, and its clock."""

    def read_now(self, then: Callable[[], object]) -> None:
        """Call ``then`` once the sink has what the program has written by now; not where the cell has ended."""

    def resume(self) -> None:
        """Let it go on."""


class RequestBroker(Protocol):
    """What a requester needs of the approval broker."""

    channels: list[Channel]
    worker: Worker

    def decide(
        self,
        requester: Requester,
        question: Question,
        shown: ShownArguments,
        future: Future[ApprovalVerdict],
        *,
        inline: bool,
    ) -> None:
        """Have ``future`` hold a verdict, once there is one."""

    def refuse(self, requester: Requester, question: Question, future: Future[ApprovalVerdict], why: str) -> None:
        """Deny what cannot even be shown."""

    def withdraw(self, requester: Requester) -> list[str]:
        """End the requests of ``requester``, which is over; their ids."""


class Requester:
    """Asks the broker for one run or step. The broker is made when the first of all asks.

    ``stream``: where its events are followed; ``loop``: where it was begun; ``redaction``: of its secrets, if any;
    ``asks``: somebody may be asked, else only rules decide; ``for_later``: asks for what later runs or steps will do.
    """

    def __init__(
        self,
        get_broker: Callable[[], RequestBroker],
        origin: Origin,
        stream: Channel | None,
        loop: asyncio.AbstractEventLoop | None,
        redaction: Redaction | None = None,
        *,
        asks: bool = True,
        for_later: bool = False,
    ) -> None:
        self.asks, self.for_later = asks, for_later
        self.namespace, self.session, self.run = origin
        self.queue = origin.session or origin.run
        self.caller, self._agent = caller(), agent()
        self.context = copy_context()
        self.stream = stream
        self.loop = loop
        self.hosts: HostRules | None = None  # what its cell may reach, once it has a network
        self.is_over = False
        self.end_reason = _OVER
        self.pending_count = self.decided_count = self.unrecorded_count = 0  # the broker counts
        self.asked_count = 0
        self._get_broker = get_broker
        self._redaction = redaction
        self._lock = threading.Lock()  # of what follows
        self._broker: RequestBroker | None = None
        self._pause: CellPause | None = None
        self._cell: Pausable | None = None
        self._withdrawn: list[str] = []
        self._deferred: deque[Callable[[], object]] = deque()
        self._has_deferred = False

    def attach(self, cell: Pausable) -> None:
        """``cell`` is paused from now on while it only waits for answers."""
        with self._lock:
            self._cell = cell
            if self._pause:
                self._pause.attach(cell)

    def after_output(self, then: Callable[[], object]) -> None:
        """Call ``then`` when what the program wrote before it asked has been handed on, from any thread."""
        with self._lock:
            cell = self._cell
        if cell is None:
            then()
        else:
            cell.read_now(then)

    @property
    def pause(self) -> CellPause:
        """When its cell is paused. Only once it has asked."""
        assert self._pause
        return self._pause

    def decide(self, question: Question, *, inline: bool = False) -> Future[ApprovalVerdict]:
        """Have it decided whether ``question`` may cross: by rules, or by whoever is asked.

        From any thread; never blocks, and always comes to a verdict, at the latest when this run or step is over.
        ``question``'s namespace, session and run are put in here, its arguments are copied at once. ``inline``: this
        thread can wait for a millisecond, so what rules allow may be decided before this returns.
        """
        from casemate.approvals.requests import MOST_ASKED, Unshowable, show_arguments
        from casemate.model.approval import ApprovalVerdict

        future: Future[ApprovalVerdict] = Future()
        future.set_running_or_notify_cancel()  # nobody takes a question back but by the end of the run
        self.asked_count += 1
        if self.asked_count > MOST_ASKED:  # not even looked at: a run that asks without end must not hold up others
            future.set_result(
                ApprovalVerdict(False, "limit", f"this run has asked {MOST_ASKED:,} times, which is the most")
            )
            return future
        broker, bound = self._connect(), self.bind(question)
        try:
            broker.decide(self, bound, show_arguments(bound), future, inline=inline)
        except Unshowable as error:
            broker.refuse(self, bound, future, str(error))
        return future

    def bind(self, question: Question) -> Question:
        """``question`` as this run or step asks it."""
        return replace(question, namespace=self.namespace, session=self.session, run=self.run, agent=self._agent)

    @property
    def is_code(self) -> bool:
        """Whether a program or an agent asks, and not the application or a person."""
        return self._cell is not None or bool(self._agent)

    def defer(self, job: Callable[[], object]) -> None:
        """Run ``job``, which must not raise, in the broker's thread, with others like it: soon, in their order, and
        before `end` returns what came before that. From any thread."""
        worker = self._connect().worker
        with self._lock:
            is_first, self._has_deferred = not self._deferred, True
            self._deferred.append(job)
        if is_first and worker.submit_later(_BATCH, worker.submit_idle, self._run_one_deferred).is_cancelled:
            self._run_deferred()

    def _run_one_deferred(self) -> None:
        """Run one job; the next one comes after whatever else there is to do."""
        with self._lock:
            job = self._deferred.popleft() if self._deferred else None
        if job is not None:
            job()
            self._connect().worker.submit_idle(self._run_one_deferred)

    def _run_deferred(self) -> None:
        while True:
            with self._lock:
                job = self._deferred.popleft() if self._deferred else None
            if job is None:
                return
            job()

    def redact_question(self, question: Question) -> Question:
        """``question`` as anybody may see it. Its hash stays that of the whole."""
        if (redaction := self._redaction) is None:
            return question
        return replace(
            question,
            summary=redaction.text(question.summary),
            arguments=redaction.value(question.arguments),
            server=redaction.text(question.server),
            tool=redaction.text(question.tool),
        )

    def redact(self, value: Any) -> Any:
        """JSON values without the secrets of this run."""
        return value if self._redaction is None else self._redaction.value(value)

    def close(self, why: str = _OVER) -> None:
        """It is over, or is to end: nothing of it crosses any more. From any thread; harmless when repeated."""
        if not self.is_over:
            self.end_reason, self.is_over = why, True
        with self._lock:
            broker, pause = self._broker, self._pause
        if broker and pause:
            pause.end()
            self._withdrawn += broker.withdraw(self)

    async def end(self) -> None:
        """The same, and wait until no approver is called for it any more. Bounded."""
        self.close()
        if self._withdrawn and self._broker:
            for channel in self._broker.channels:
                await channel.wait_closed(set(self._withdrawn), _END_WITHIN)
        if self._has_deferred and self._broker:
            if not self._broker.worker.submit(self._run_deferred):
                self._run_deferred()
            await self._broker.worker.drain(_END_WITHIN)

    def _connect(self) -> RequestBroker:
        with self._lock:
            if self._broker is None:
                self._broker = self._get_broker()
                self._pause = CellPause(self._broker.worker)
                if self._cell:
                    self._pause.attach(self._cell)
            return self._broker


class CellPause:
    """Pauses the cell of one run or step, and its clock, while it only waits for answers. `attach` and `end` may be
    called from any thread, the others in the broker's."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._cell: Pausable | None = None
        self._lock = threading.Lock()  # nothing is paused after `end`
        self._is_over = False
        self._is_paused = False
        self._is_check_due = False
        self._pending_count = 0
        self._last_change = 0.0  # when the last request or answer came

    def attach(self, cell: Pausable) -> None:
        """The cell is there."""
        self._cell = cell

    def note_request(self, pending_count: int) -> None:
        """The cell sent a request; ``pending_count``: how many of them wait now."""
        self._pending_count, self._last_change = pending_count, time.monotonic()
        self._check_later(QUIET)

    def note_answer(self, pending_count: int) -> None:
        """An answer came."""
        self._resume()
        self.note_request(pending_count)

    def end(self) -> None:
        """The run or step is over, or is to end."""
        self._resume(is_over=True)

    def _resume(self, *, is_over: bool = False) -> None:
        with self._lock:
            self._is_over = self._is_over or is_over
            if self._is_paused and self._cell:
                self._cell.resume()
            self._is_paused = False

    def _check_later(self, seconds: float) -> None:
        if self._pending_count and not self._is_check_due and not self._is_paused:
            self._is_check_due = True
            self._worker.submit_later(seconds, self._check)

    def _check(self) -> None:
        self._is_check_due = False
        missing = self._last_change + QUIET - time.monotonic()
        if missing > 0:
            self._check_later(missing)
            return
        with self._lock:
            if self._pending_count and self._cell and not self._is_over and not self._is_paused:
                self._is_paused = True
                self._cell.pause()
