"""Connects one run or step to the approval broker, and pauses its cell while that only waits for answers.

A requester is bound to its run or step: no other code can put its name on a question.
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
    from casemate.approvals.worker import Worker
    from casemate.model.approval import ApprovalVerdict, Question
    from casemate.policy.hosts import HostRules
    from casemate.redaction.redaction import Redaction

QUIET = 0.1  # seconds without a request from the cell or an answer (docs/how-to/approvals.md)
_END_WITHIN = 5.0  # seconds for an approver to handle its cancellation
_OVER = "the run or step that asked is over"
_BATCH = 0.02  # seconds in which deferred jobs are batched, because each thread switch costs other threads time


class Origin(NamedTuple):
    """The owner of questions: a single run, or a step (``run``) of a ``session``."""

    namespace: str
    session: str | None
    run: str


class Pausable(Protocol):
    """The part of a cell that pausing needs."""

    def pause(self) -> None:
        """Stop all its processes, and its clock."""

    def read_now(self, then: Callable[[], object]) -> None:
        """Call ``then`` when the sink has all that the program has written so far, unless the cell has ended."""

    def resume(self) -> None:
        """Let them continue."""


class RequestBroker(Protocol):
    """The part of the approval broker that a requester needs."""

    channels: list[Channel]
    worker: Worker

    def decide(self, requester: Requester, question: Question, *, inline: bool) -> Future[ApprovalVerdict]:
        """Come to a verdict about a question of this requester."""

    def withdraw(self, requester: Requester) -> list[str]:
        """End the requests of ``requester``, which is over. Returns their ids."""


class Requester:
    """Asks the broker for one run or step. The first requester that asks makes the broker.

    ``stream``: where its events are followed. ``loop``: where it was begun. ``redaction``: for its secrets, if any.
    ``asks``: whether approvers may be asked; otherwise only rules decide. ``for_later``: asks for later runs or steps.
    """

    def __init__(
        self,
        get_broker: Callable[[], RequestBroker],
        origin: Origin,
        stream: Channel | None,
        loop: asyncio.AbstractEventLoop,
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
        self.pending_count = self.decided_count = self.unrecorded_count = 0  # kept by the broker
        self.asked_count = 0
        self._get_broker = get_broker
        self._redaction = redaction
        self._lock = threading.Lock()  # guards the fields below
        self._broker: RequestBroker | None = None
        self._pause: CellPause | None = None
        self._cell: Pausable | None = None
        self._withdrawn: list[str] = []
        self._deferred: deque[Callable[[], object]] = deque()
        self._has_deferred = False

    def attach(self, cell: Pausable) -> None:
        """Pause ``cell`` from now on while it only waits for answers."""
        with self._lock:
            self._cell = cell
            if self._pause:
                self._pause.attach(cell)

    def after_output(self, then: Callable[[], object]) -> None:
        """Call ``then`` from any thread when all that the program wrote before the question has been delivered."""
        with self._lock:
            cell = self._cell
        if cell is None:
            then()
        else:
            cell.read_now(then)

    @property
    def pause(self) -> CellPause:
        """The pausing of its cell. Only after its first question."""
        assert self._pause
        return self._pause

    def decide(self, question: Question, *, inline: bool = False) -> Future[ApprovalVerdict]:
        """Decide whether ``question`` may cross, by rules or by an approver.

        Thread-safe. It never blocks. A verdict always comes, no later than at the end of this run or step. It
        sets ``question``'s namespace, session and run, and copies its arguments at once. ``inline``: this thread can
        wait for a millisecond, so this may decide what rules allow before it returns.
        """
        return self._connect().decide(self, question, inline=inline)

    def bind(self, question: Question) -> Question:
        """``question`` as asked by this run or step."""
        return replace(question, namespace=self.namespace, session=self.session, run=self.run, agent=self._agent)

    @property
    def is_code(self) -> bool:
        """Whether a program or an agent asks, not the application or a person."""
        return self._cell is not None or bool(self._agent)

    def defer(self, job: Callable[[], object]) -> None:
        """Run ``job``, which must not raise, soon in the broker's thread, in order and batched. Jobs deferred before
        `end` have run when it returns. Thread-safe."""
        worker = self._connect().worker
        with self._lock:
            is_first, self._has_deferred = not self._deferred, True
            self._deferred.append(job)
        if is_first and not worker.submit_beside(_BATCH, self._run_beside):
            self._run_deferred()

    def _run_beside(self) -> None:
        """Run one deferred job. The next one comes after other jobs that wait for the thread."""
        if self._run_one_deferred():
            self._connect().worker.submit_beside(0, self._run_beside)

    def _run_deferred(self) -> None:
        while self._run_one_deferred():
            pass

    def _run_one_deferred(self) -> bool:
        """Run the first deferred job. False if there is none."""
        with self._lock:
            job = self._deferred.popleft() if self._deferred else None
        if job is not None:
            job()
        return job is not None

    def redact(self, value: Any) -> Any:
        """Remove the secrets of this run from JSON values."""
        return value if self._redaction is None else self._redaction.value(value)

    def close(self, why: str = _OVER) -> None:
        """End it: nothing crosses the wall for it after this. Thread-safe and idempotent."""
        if not self.is_over:
            self.end_reason, self.is_over = why, True
        with self._lock:
            broker, pause = self._broker, self._pause
        if broker and pause:
            pause.end()
            self._withdrawn += broker.withdraw(self)

    async def end(self) -> None:
        """Close it, and wait for a bounded time until its calls of approvers have ended."""
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
    """Pauses the cell of one run or step, and its clock, while it only waits for answers. `attach` and `end` are
    thread-safe. The other methods run in the broker's thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._cell: Pausable | None = None
        self._lock = threading.Lock()  # nothing is paused after `end`
        self._is_over = False
        self._is_paused = False
        self._is_check_due = False
        self._pending_count = 0
        self._last_change = 0.0  # time of the last request or answer

    def attach(self, cell: Pausable) -> None:
        """Set the cell to pause."""
        self._cell = cell

    def note_request(self, pending_count: int) -> None:
        """The cell sent a request. ``pending_count``: how many wait now."""
        self._pending_count, self._last_change = pending_count, time.monotonic()
        self._check_later(QUIET)

    def note_answer(self, pending_count: int) -> None:
        """Resume the cell, because an answer came. ``pending_count``: how many requests wait now."""
        self._resume()
        self.note_request(pending_count)

    def end(self) -> None:
        """The run or step is over, or about to end."""
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
