"""``sandbox.approvals``: pending requests, answers and rules. Also makes the requesters of runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack
from weakref import WeakValueDictionary

from casemate.approvals.channels import QueueChannel
from casemate.approvals.requester import Origin, Requester
from casemate.errors import Denied, InvalidArgument
from casemate.model.call_options import DecisionOptions
from casemate.model.operation import account, agent, caller
from casemate.model.options import complete, takes_options
from casemate.visible import plain

if TYPE_CHECKING:
    from casemate.approvals.broker import ApprovalBroker, Record
    from casemate.approvals.callbacks import Approve
    from casemate.approvals.channels import Channel, RequestStore
    from casemate.model.approval import ApprovalRequest, Decision, Kind, Question
    from casemate.policy.rules import Rulebook
    from casemate.redaction.redaction import Redaction

_ALLOWED_ALL = (
    "Approvals are switched off (approve=casemate.allow_all): everything that asked to cross the wall was "
    "allowed without review, unless a rule denied it."
)
_MOST_AT_ONCE = 16  # questions of one account that wait; its others are asked when these are answered
_RECORDED_WITHIN = 30.0  # seconds
_MOST_REASON = 500  # characters of the requester's reason


class AheadAnswer(NamedTuple):
    """An advance decision."""

    allowed: bool
    scope: str  # how far it is allowed: "rule", "once", "session", "agent" or "namespace"; empty if denied
    expires: float | None  # in seconds since 1970; None for the whole scope
    by: str
    reason: str


class Approvals:
    """The approvals of one sandbox. Thread-safe."""

    def __init__(
        self,
        approve: Approve | None,
        timeout: float | None,
        record: Record,
        rules: Callable[[], Rulebook],
        *,
        has_rules: bool,
        namespace: str = "",
        record_request: Record | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """``approve``, ``timeout``, ``namespace``: see :class:`casemate.Sandbox`. ``record``: writes a row of the
        record. ``rules``: makes the rules that decide without asking and remember answers. ``has_rules``: whether any
        rules are written. ``record_request``: writes a row when an approver is asked. ``notes``: added to each
        result."""
        self._namespace = namespace
        self._asks = not _allows_all(approve)
        self.notes = notes if self._asks else (_ALLOWED_ALL, *notes)
        self._approve = approve
        self._timeout = timeout
        self._record = record
        self._record_request = record_request
        self._make_rules = rules
        self._has_rules = has_rules
        self._rules: Rulebook | None = None
        self._queue = QueueChannel()
        self._store: RequestStore | None = None
        self._lock = threading.Lock()  # guards the broker
        self._broker: ApprovalBroker | None = None
        self._is_closed = False
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by account or caller

    @property
    def rules(self) -> Rulebook:
        """The rules in force, including remembered answers."""
        with self._lock:
            if self._rules is None:
                self._rules, self._has_rules = self._make_rules(), True
            return self._rules

    def _get_broker(self) -> ApprovalBroker:
        """The broker, made for the first question: most runs ask nothing, and it takes time to load."""
        from casemate.approvals.broker import ApprovalBroker

        rules = self.rules
        with self._lock:
            if self._broker is None:
                self._broker = ApprovalBroker(
                    rules, self._record, self._timeout, asks=self._asks, namespace=self._namespace,
                    record_request=self._record_request,
                )  # fmt: skip
                self._broker.channels.append(self._queue)
                if self._store is not None:
                    self._store.connect(self._broker)
                    self._broker.channels.append(self._store)
                if self._approve is not None and self._asks:
                    from casemate.approvals.callbacks import callback_channel

                    self._broker.channels.append(callback_channel(self._approve, self._broker))
                if self._is_closed:
                    self._broker.close()
            return self._broker

    def pending(self) -> list[ApprovalRequest]:
        """List the requests that wait for an answer.

        Returns:
            The oldest first, at most sixteen of each session; more follow when these are answered. In a service, this
            also lists requests whose cells ended with it but that can still be answered. Their ``state`` is
            ``"withdrawn"``.
        """
        withdrawn = self._store.list_withdrawn() if self._store is not None else []
        return [*withdrawn, *self._get_broker().list_shown()]

    @property
    def pending_count(self) -> int:
        """The number of requests that wait for an answer, including those not shown yet."""
        return 0 if self._broker is None else len(self._broker.list_pending(None))

    @takes_options(DecisionOptions)
    def decide(self, request_id: str, allow: bool = False, **options: Unpack[DecisionOptions]) -> bool:
        """Answer a request.

        Args:
            request_id: Its ``id``.
            allow: Only True allows, anything else denies.
            **options: See :class:`casemate.model.call_options.DecisionOptions`.

        Returns:
            False, with no effect, if there is no such request or it is over.

        Raises:
            InvalidArgument: An argument is invalid. The request keeps waiting.
        """
        from casemate.model.approval import Decision

        decision = Decision(allow is True, **complete(DecisionOptions, options, "decide"))
        if self._store is not None and self._store.decide(str(request_id), decision):
            self._queue.notify()
            return True
        return self._get_broker().answer(str(request_id), decision, "queue", _note())

    def ignore(self, request_id: str, *, allow: bool) -> None:
        """Record an answer that has no effect, because the request is over or the caller may not answer it."""
        from casemate.model.approval import Decision

        self._get_broker().ignore(request_id, Decision(allow is True), "queue", _note())

    async def drain(self) -> None:
        """Wait until all answers so far are recorded."""
        await self._get_broker().worker.drain(_RECORDED_WITHIN)

    def set_store(self, store: RequestStore) -> None:
        """Keep every request in ``store``, even after its run ended. Call this before any request."""
        self._store = store

    def deny_all(self, reason: str = "", *, session: str | None = None) -> int:
        """Deny all pending requests of one session or of all, including those not shown yet. Returns their number."""
        from casemate.model.approval import Decision

        broker = self._get_broker()
        requests = broker.list_pending(session)
        return sum(broker.answer(request, Decision(reason=reason), "queue", _note()) for request in requests)

    @contextlib.contextmanager
    def open(self) -> Iterator[Approvals]:
        """Keep requests pending within this context, for parts of the application that poll :meth:`pending`, even
        without an approver or a followed stream. Requests that only this keeps pending are denied at its end."""
        self._queue.add_holder()
        try:
            yield self
        finally:
            if self._queue.remove_holder():
                self.drop_channel(self._queue)

    @contextlib.contextmanager
    def watch(self, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` from any thread whenever :meth:`pending` may have changed, within this context. Keeps requests
        pending meanwhile, like :meth:`open`."""
        with self.open(), self._queue.watch(call):
            yield

    def requester(
        self,
        origin: Origin,
        stream: Channel | None,
        redaction: Redaction | None = None,
        *,
        asks: bool = True,
        for_later: bool = False,
    ) -> Requester:
        """The requester of one run or step, begun in the running event loop. Without ``asks``, only rules decide.
        ``for_later``: decisions are remembered for later runs or steps."""
        loop = asyncio.get_running_loop()
        return Requester(self._get_broker, origin, stream, loop, redaction, asks=asks, for_later=for_later)

    @contextlib.asynccontextmanager
    async def open_requester(
        self, namespace: str, session: str | None = None, redaction: Redaction | None = None, *, for_later: bool = False
    ) -> AsyncGenerator[Requester]:
        """A requester for questions outside a run or step. It acts as a separate run; nothing crosses after its end."""
        origin = Origin(namespace, session, os.urandom(16).hex())
        requester = self.requester(origin, None, redaction, for_later=for_later)
        try:
            yield requester
        finally:
            await requester.end()

    def turn(self) -> asyncio.Semaphore:
        """A semaphore to hold while a question waits. It bounds the questions of one account that wait at once."""
        return self._turns.setdefault(account() or caller(), asyncio.Semaphore(_MOST_AT_ONCE))

    async def ask_ahead(
        self, question: Question, reason: str, namespace: str, session: str | None = None
    ) -> AheadAnswer:
        """Ask in advance what later runs or steps may do, in one session or all, and wait for the answer. ``reason``:
        the requester's own words, which the approver sees."""
        if not isinstance(reason, str):
            raise InvalidArgument("reason", f"{reason!r} is not a str")
        said = plain(reason[:_MOST_REASON], by=lambda _: " ").strip()
        words = f", they say: {said}" if said else ""
        asked = replace(question, summary=f"{question.summary}, asked for ahead{words}")
        async with self.turn(), self.open_requester(namespace, session, for_later=True) as requester:
            verdict = await asyncio.wrap_future(requester.decide(asked))
        if not verdict.allow:
            return AheadAnswer(False, "", None, verdict.by, verdict.reason)
        wide = "session" if session is not None else "agent" if agent() else "namespace"
        scope = {"": "rule", "session": wide}.get(verdict.scope, "once")
        expires = None if verdict.expires is None else time.time() + verdict.expires
        return AheadAnswer(True, scope, expires, verdict.by, verdict.reason)

    def grant(self, questions: Sequence[Question], by: str) -> None:
        """Grant exactly these questions to a run that has not begun, after an approver allowed them. Each is granted as
        often as it occurs, without another request, unless a rule denies it."""
        self._get_broker().grant(questions, by)

    def check(self, question: Question) -> None:
        """Raise ``Denied`` if a rule denies the question to every caller. Asks no approver and spends no use."""
        ruling = self.rules.rule_on(question, time.monotonic()) if self._has_rules else None
        if ruling is None or ruling.verdict.allow:
            return
        said = {"by": ruling.verdict.by, "reason": ruling.verdict.reason}
        about = {"kind": question.kind, "summary": question.summary, "arguments": question.arguments}
        self._record(question.run, question.namespace, {**about, "decision": "denied", **said})
        raise Denied(f"{question.summary}: {ruling.verdict.reason}", remediation="Change the policy, or do without it.")

    def drop_channel(self, channel: Channel) -> None:
        """Drop a stream that is no longer followed, or the queue."""
        if self._broker:
            self._broker.drop_channel(channel)

    def may_ask(self, kind: Kind, *, stream: bool) -> bool:
        """Whether a question of this ``kind`` could be allowed. ``stream``: whether the run's stream is followed."""
        somebody = stream or self._approve is not None or self._queue.is_available
        if not somebody and not self._has_rules:
            return False
        if any(rule.kind == kind and rule.effect == "allow" for rule in self.rules.answers):
            return True  # such as an earlier answer for later runs
        rules = self.rules.rules
        written = [rule for rule in rules.written if rule.kind == kind]
        if any(rule.effect == "allow" for rule in written):
            return True
        return somebody and (bool(written) or rules.default(kind)[0] != "deny")

    def answer_function(self, request_id: str) -> Callable[[Decision], bool]:
        """A function that answers a request which was kept as data."""
        return lambda decision: self._get_broker().answer(request_id, decision, "request")

    def forget_session(self, namespace: str, session: str) -> None:
        """Forget the answers for a session that is over."""
        if self._broker and self._broker.worker.is_running:
            self._broker.worker.submit(self._broker.rules.forget, namespace, session, "")

    def close(self) -> None:
        """Withdraw all requests and end. Blocks for a bounded time."""
        with self._lock:
            self._is_closed, broker = True, self._broker
        if broker:
            broker.close()


def _allows_all(approve: Approve | None) -> bool:
    """Whether no approver is asked, because everything may cross unless a rule denies it."""
    if approve is None:
        return False
    from casemate.model.approval import allow_all

    return approve is allow_all


def _note() -> str:
    """Who answers, for the record, if the surface knows that."""
    return f"answered by {name}" if (name := caller()) else ""
