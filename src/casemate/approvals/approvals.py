"""``sandbox.approvals``: pending requests, their answers, and the rules; and where runs get their requesters."""

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
    "Approvals are switched off (approve=casemate.allow_all): whatever asked to cross the wall and no rule denied was "
    "allowed, and nobody has seen it before."
)
_MOST_AT_ONCE = 16  # questions of one account that wait; its others are asked when these are answered
_RECORDED_WITHIN = 30.0  # seconds
_MOST_REASON = 500  # characters of the requester's own words


class AheadAnswer(NamedTuple):
    """What was decided about something ahead. ``scope``: "rule", "once", "session", "agent" or "namespace", how far it
    is allowed; empty where it is not. ``expires``: in seconds since 1970, None for the whole scope."""

    allowed: bool
    scope: str
    expires: float | None
    by: str
    reason: str


class Approvals:
    """The approvals of one sandbox. Every method may be called from any thread."""

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
        """``approve``, ``timeout``, ``namespace``: as of :class:`casemate.Sandbox`; ``record``: writes a row of the
        record; ``rules`` makes those that decide without asking, and remember answers; ``has_rules``: some are written;
        ``record_request``: writes a row when somebody is asked; ``notes``: what each result says."""
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
        self._lock = threading.Lock()  # of the broker
        self._broker: ApprovalBroker | None = None
        self._is_closed = False
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by account, or caller

    @property
    def rules(self) -> Rulebook:
        """The rules in force, the remembered answers among them."""
        with self._lock:
            if self._rules is None:
                self._rules, self._has_rules = self._make_rules(), True
            return self._rules

    def _get_broker(self) -> ApprovalBroker:
        """The broker, made when the first question comes: most runs ask nothing, and it takes time to load."""
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
            The oldest first, at most sixteen of each session; the others follow when these are answered. In a service
            also those whose cells have ended with it, and that can still be answered: their ``state`` is
            ``"withdrawn"``.
        """
        withdrawn = self._store.list_withdrawn() if self._store is not None else []
        return [*withdrawn, *self._get_broker().list_shown()]

    @property
    def pending_count(self) -> int:
        """How many requests wait for an answer, also those that are not shown yet."""
        return 0 if self._broker is None else len(self._broker.list_pending(None))

    @takes_options(DecisionOptions)
    def decide(self, request_id: str, allow: bool = False, **options: Unpack[DecisionOptions]) -> bool:
        """Answer a request.

        Args:
            request_id: Its ``id``.
            allow: Only True allows, anything else denies.
            **options: See :class:`casemate.model.call_options.DecisionOptions`.

        Returns:
            False, and nothing changed, when there is no such request or it is over.

        Raises:
            InvalidArgument: An argument means nothing. The request waits on.
        """
        from casemate.model.approval import Decision

        decision = Decision(allow is True, **complete(DecisionOptions, options, "decide"))
        if self._store is not None and self._store.decide(str(request_id), decision):
            self._queue.notify()
            return True
        return self._get_broker().answer(str(request_id), decision, "queue", _note())

    def ignore(self, request_id: str, *, allow: bool) -> None:
        """Put an answer on record that changes nothing: the request is over, or its answer is not the caller's."""
        from casemate.model.approval import Decision

        self._get_broker().ignore(request_id, Decision(allow is True), "queue", _note())

    async def drain(self) -> None:
        """Wait until all answers so far are on record."""
        await self._get_broker().worker.drain(_RECORDED_WITHIN)

    def set_store(self, store: RequestStore) -> None:
        """``store`` keeps every request, also when what asked is gone. To be called before anything asks."""
        self._store = store

    def deny_all(self, reason: str = "", *, session: str | None = None) -> int:
        """Deny everything that waits, also what is not shown yet; of one session, or of all. How many that were."""
        from casemate.model.approval import Decision

        broker = self._get_broker()
        requests = broker.list_pending(session)
        return sum(broker.answer(request, Decision(reason=reason), "queue", _note()) for request in requests)

    @contextlib.contextmanager
    def open(self) -> Iterator[Approvals]:
        """Keep requests pending for other parts of the application as long as this is entered, also where there is no
        approver and no stream: they look at :meth:`pending`. A request that only this keeps is denied at its end."""
        self._queue.add_holder()
        try:
            yield self
        finally:
            if self._queue.remove_holder():
                self.drop_channel(self._queue)

    @contextlib.contextmanager
    def watch(self, call: Callable[[], None]) -> Iterator[None]:
        """``call`` whenever :meth:`pending` may give something else, from any thread, as long as this is entered.
        Requests are kept pending meanwhile, as by :meth:`open`."""
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
        """Asks for one run or step, begun in the event loop that runs. Without ``asks`` only rules decide.
        ``for_later``: what is allowed is for later runs or steps, and remembered for them."""
        loop = asyncio.get_running_loop()
        return Requester(self._get_broker, origin, stream, loop, redaction, asks=asks, for_later=for_later)

    @contextlib.asynccontextmanager
    async def open_requester(
        self, namespace: str, session: str | None = None, *, for_later: bool = False
    ) -> AsyncGenerator[Requester]:
        """Asks, as a run of its own, for what is no run or step. When this is left, nothing of it crosses any more."""
        requester = self.requester(Origin(namespace, session, os.urandom(16).hex()), None, for_later=for_later)
        try:
            yield requester
        finally:
            await requester.end()

    def turn(self) -> asyncio.Semaphore:
        """To be entered for a question of one's own, of which so many wait at once for one account."""
        return self._turns.setdefault(account() or caller(), asyncio.Semaphore(_MOST_AT_ONCE))

    async def ask_ahead(
        self, question: Question, reason: str, namespace: str, session: str | None = None
    ) -> AheadAnswer:
        """Ask for what later runs or steps may do, of one session or of all, and wait for the answer. ``reason``: the
        requester's own words, which are shown."""
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
        """Somebody has allowed exactly these, of a run that has not begun: each as often as it is there, without being
        asked again, unless a rule denies it."""
        self._get_broker().grant(questions, by)

    def check(self, question: Question) -> None:
        """Raise ``Denied`` where a rule denies it to every caller. Nobody is asked, and no use is spent."""
        ruling = self.rules.rule_on(question, time.monotonic()) if self._has_rules else None
        if ruling is None or ruling.verdict.allow:
            return
        said = {"by": ruling.verdict.by, "reason": ruling.verdict.reason}
        about = {"kind": question.kind, "summary": question.summary, "arguments": question.arguments}
        self._record(question.run, question.namespace, {**about, "decision": "denied", **said})
        raise Denied(f"{question.summary}: {ruling.verdict.reason}", remediation="Change the policy, or do without it.")

    def drop_channel(self, channel: Channel) -> None:
        """Nobody follows this stream any more, or looks at the queue."""
        if self._broker:
            self._broker.drop_channel(channel)

    def may_ask(self, kind: Kind, *, stream: bool) -> bool:
        """Whether a question of this ``kind`` could be allowed; ``stream``: that of its run is followed."""
        somebody = stream or self._approve is not None or self._queue.is_available
        if not somebody and not self._has_rules:
            return False
        if any(rule.kind == kind and rule.effect == "allow" for rule in self.rules.answers):
            return True  # what was allowed for later, for one
        rules = self.rules.rules
        written = [rule for rule in rules.written if rule.kind == kind]
        if any(rule.effect == "allow" for rule in written):
            return True
        return somebody and (bool(written) or rules.default(kind)[0] != "deny")

    def answer_function(self, request_id: str) -> Callable[[Decision], bool]:
        """How a request that was kept as data is answered."""
        return lambda decision: self._get_broker().answer(request_id, decision, "request")

    def forget_session(self, namespace: str, session: str) -> None:
        """A session is over: what was answered for it holds no more."""
        if self._broker and self._broker.worker.is_running:
            self._broker.worker.submit(self._broker.rules.forget, namespace, session, "")

    def close(self) -> None:
        """Withdraw whatever waits, and end. Blocks, bounded; harmless when repeated."""
        with self._lock:
            self._is_closed, broker = True, self._broker
        if broker:
            broker.close()


def _allows_all(approve: Approve | None) -> bool:
    """Whether nobody is asked, because everything may cross that no rule denies."""
    if approve is None:
        return False
    from casemate.model.approval import allow_all

    return approve is allow_all


def _note() -> str:
    """Who answers, where a surface knows that: for the record."""
    return f"answered by {name}" if (name := caller()) else ""
