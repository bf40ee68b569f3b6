"""The approval broker: where a question becomes a verdict. Rules decide first, then whoever can be asked, then the
rules once more.

One thread does all of it, in order. Whoever answers is told at once whether that answer was the first; what follows
from an answer happens in the thread. What goes wrong on the way denies. What rules allow without asking may be decided
in the thread that asks: only when no other job runs or waits, and its row is written before.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from casemate.approvals.requests import MOST_ASKED, End, RequestStates, ShownArguments
from casemate.approvals.worker import Timer, Worker
from casemate.errors import CasemateError
from casemate.model.approval import ApprovalRequest, ApprovalVerdict, Decision, Question
from casemate.model.operation import caller
from casemate.policy.canonical import fingerprint

if TYPE_CHECKING:
    from casemate.approvals.channels import Channel
    from casemate.approvals.requester import Requester
    from casemate.policy.rules import Rulebook

Record = Callable[[str, str, dict[str, Any]], object]  # run, namespace, detail; raises CasemateError
_MOST_NAMES = 20  # packages in a reason
_QUICK = 50_000  # steps of looking through rules: some milliseconds at the very most

NOBODY = "nobody is there to ask; a rule of the policy can allow it, or an approver (in Python: approve)"
GONE = "whoever was asked has gone"
BEYOND = "it is beyond a list of hosts that was given, and asking is switched off"
_CLOSED = "the sandbox was closed"
FAULT = ApprovalVerdict(False, "fault", "casemate itself failed to decide")


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A question on its way to a verdict. Rules match ``question``; people and the record see ``redacted``, which is
    the same without secrets. ``id``: once somebody is asked; ``channels``: through which an answer may come."""

    requester: Requester
    question: Question
    redacted: Question
    shown: ShownArguments
    future: Future[ApprovalVerdict]
    id: str = ""
    request: ApprovalRequest | None = None
    channels: list[Channel] = field(default_factory=list)
    timer: Timer | None = None


class ApprovalBroker:
    """``rules`` decide without asking; ``channels``: who may be asked besides the stream of a run; ``timeout``: seconds
    that somebody has to answer, None for as long as it takes. ``asks``: False where asking is switched off.
    ``namespace``: of all that ask. ``record`` writes a row, without waiting for anybody, and may raise
    ``CasemateError``; so does ``record_request``, when somebody is asked."""

    def __init__(
        self,
        rules: Rulebook,
        record: Record,
        timeout: float | None,
        *,
        asks: bool,
        namespace: str = "",
        record_request: Record | None = None,
    ) -> None:
        self.rules = rules
        self._namespace = namespace
        self.channels: list[Channel] = []
        self.worker = Worker(lambda _error: self._deny_all(FAULT))
        self._record = record
        self._record_request = record_request
        self._timeout = timeout
        self._asks = asks
        self._states = RequestStates()
        self._pending: dict[str, PendingRequest] = {}
        self._lock = threading.Lock()  # of the states and the pending requests
        self._current: PendingRequest | None = None  # what the thread is at
        self._is_showing = False

    # -- from any thread

    def decide(
        self,
        requester: Requester,
        question: Question,
        shown: ShownArguments,
        future: Future[ApprovalVerdict],
        *,
        inline: bool = False,
    ) -> None:
        """Have ``future`` hold a verdict, once there is one. ``inline``: what rules allow, if that takes no time, is
        decided in this thread, before this returns."""
        copy = replace(question, arguments=shown.copy())
        pending = PendingRequest(requester, copy, requester.redact_question(copy), shown, future)
        is_inline = inline and self._is_quick(shown)
        if is_inline and self.worker.run_inline(self._allow_by_rule, pending) and future.done():
            return
        if not self.worker.submit(self._consider, pending):
            future.set_result(ApprovalVerdict(False, "withdrawn", _CLOSED))

    def refuse(self, requester: Requester, question: Question, future: Future[ApprovalVerdict], why: str) -> None:
        """Deny what cannot even be shown."""
        bare = replace(question, arguments={})
        pending = PendingRequest(requester, bare, requester.redact_question(bare), ShownArguments("", ""), future)
        if not self.worker.submit(self._finish, pending, ApprovalVerdict(False, "form", why)):
            future.set_result(ApprovalVerdict(False, "form", why))

    def answer(self, request: str, decision: Decision, by: str, note: str = "") -> bool:
        """Answer a request; whether that was the first answer, and in time."""
        is_first = self._settle(request, "approved" if decision.allow is True else "denied")
        if is_first:
            self.worker.submit(self._apply_answer, request, decision, by, note)
        else:
            self.ignore(request, decision, by, note)
        return is_first

    def ignore(self, request: str, decision: Decision, by: str, note: str = "") -> None:
        """Put an answer on record that changes nothing."""
        self.worker.submit(self._record_late_answer, request, decision, by, note, caller())

    def start_timeout(self, request: str) -> bool:
        """Somebody looks at the request from now on, so its time begins; False when that is no longer needed."""
        with self._lock:
            is_pending = self._states.state_of(request) == "asked"
        return is_pending and self.worker.submit(self._start_timer, request)

    def drop_channel(self, channel: Channel, request: str = "") -> None:
        """Nobody answers through this channel any more: this request, or any."""
        self.worker.submit(self._drop_channel, channel, request)

    def list_shown(self) -> list[ApprovalRequest]:
        """Pending requests that are shown, the oldest first."""
        with self._lock:
            requests = [self._pending[request].request for request in self._states.list_shown()]
        return [request for request in requests if request is not None]

    def list_pending(self, session: str | None) -> list[str]:
        """The ids of all pending requests, also those that are not shown yet; of one session or of all."""
        with self._lock:
            sessions = {request: self._pending[request].question.session for request in self._states.list_pending()}
        return [request for request, owner in sessions.items() if session is None or owner == session]

    def withdraw(self, requester: Requester) -> list[str]:
        """End the requests of ``requester``, which is over; their ids."""
        with self._lock:
            requests = [request for request, pending in self._pending.items() if pending.requester is requester]
        for request in requests:
            if self._settle(request, "withdrawn"):
                self.worker.submit(self._end, request, _withdrawal(requester), "withdrawn")
        self.worker.submit(self._forget_requester, requester)
        return requests

    def grant(self, questions: Sequence[Question], by: str) -> None:
        """Somebody has allowed exactly these, of a run that has not begun: each as often as it is there."""
        self.worker.submit(self._grant, tuple(questions), by)

    def close(self) -> None:
        """Withdraw everything, and end. Blocks, bounded."""
        with self._lock:
            requesters = {pending.requester for pending in self._pending.values()}
        for requester in requesters:
            requester.close(_CLOSED)
        self.worker.close()
        self._deny_all(ApprovalVerdict(False, "withdrawn", _CLOSED))

    def _settle(self, request: str, end: End) -> bool:
        with self._lock:
            return self._states.settle(request, end)

    def _is_quick(self, shown: ShownArguments) -> bool:
        return self.rules.effort(len(shown.text)) <= _QUICK

    # -- inline, in the thread that asks

    def _allow_by_rule(self, pending: PendingRequest) -> None:
        """Decide what rules allow, if its row can be written at once. Else nothing has happened, and the broker's
        thread decides."""
        self._current, requester = pending, pending.requester
        ruling = self.rules.rule_on(pending.question, time.monotonic())
        if ruling and ruling.verdict.allow and not requester.is_over and self._write_now(pending, ruling.verdict):
            requester.decided_count += 1
            verdict = self.rules.spend(ruling, pending.question)
            requester.pause.note_request(requester.pending_count)
            pending.future.set_result(verdict)
        self._current = None

    def _write_now(self, pending: PendingRequest, verdict: ApprovalVerdict) -> bool:
        requester = pending.requester
        try:
            self._record(requester.run, requester.namespace, _decision_row(pending, verdict, "allowed"))
        except CasemateError:
            return False
        return True

    # -- in the broker's thread

    def _grant(self, questions: Sequence[Question], by: str) -> None:
        counts = Counter(fingerprint(question) for question in questions)
        distinct = {fingerprint(question): question for question in questions}
        for digest, count in counts.items():
            decision = Decision(True, scope="run", uses=count + 1)  # of which the answer that is remembered takes one
            self.rules.remember(decision, distinct[digest], time.monotonic(), by)

    def _consider(self, pending: PendingRequest) -> None:
        self._current, requester = pending, pending.requester
        verdict = self._decide_without_asking(pending) or self._add(pending)
        if verdict is None:
            requester.pending_count += 1
        requester.pause.note_request(requester.pending_count)
        if verdict is not None:
            self._finish(pending, verdict)
            return
        self._current = None
        requester.after_output(lambda: self.worker.submit(self._show_due, requester.queue))

    def _decide_without_asking(self, pending: PendingRequest) -> ApprovalVerdict | None:
        verdict = self._rule_without_asking(pending)
        names = (
            [] if verdict is None or verdict.allow else self.rules.list_unallowed(pending.question, time.monotonic())
        )
        if verdict is None or not names:
            return verdict
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return replace(verdict, reason=f"no rule allows {', '.join(names[:_MOST_NAMES])}{more}: {verdict.reason}")

    def _rule_without_asking(self, pending: PendingRequest) -> ApprovalVerdict | None:
        if pending.requester.is_over:
            return _withdrawal(pending.requester)
        verdict = self.rules.verdict(pending.question, time.monotonic())
        if verdict is not None:
            return verdict
        if not pending.requester.asks:
            return ApprovalVerdict(False, "nobody", NOBODY)
        if not self._asks:
            return (
                ApprovalVerdict(False, "allow_all", BEYOND)
                if pending.question.beyond
                else ApprovalVerdict(True, "allow_all")
            )
        if not any(channel.is_available for channel in self._channels_for(pending.requester)):
            return ApprovalVerdict(False, "nobody", NOBODY)
        return None

    def _add(self, pending: PendingRequest) -> ApprovalVerdict | None:
        """Have it wait for an answer. Returns a verdict where it may not."""
        requester = pending.requester
        with self._lock:
            if requester.is_over:  # nothing of it is added after that, so that all of it is withdrawn
                return _withdrawal(requester)
            request = os.urandom(16).hex()
            refusal = self._states.add(
                request, requester.queue, requester.run, len(pending.shown.text), requester.caller
            )
            if refusal:
                return ApprovalVerdict(False, "limit", refusal)
            pending.id = request
            self._pending[request] = pending
        return None

    def _channels_for(self, requester: Requester) -> list[Channel]:
        return [*self.channels, *([requester.stream] if requester.stream else [])]

    def _show_due(self, queue: str) -> None:
        """Show requests as far as they may be shown. An answer may have decided some of them meanwhile."""
        if self._is_showing:
            return
        self._is_showing = True
        try:
            while request := self._show_next(queue):
                pending = self._pending[request]
                verdict = self.rules.verdict(pending.question, time.monotonic())
                if verdict is not None:
                    self._decide_now(pending, verdict)
                else:
                    self._show(pending)
        finally:
            self._is_showing = False

    def _show_next(self, queue: str) -> str | None:
        with self._lock:
            return self._states.show_next(queue)

    def _show(self, pending: PendingRequest) -> None:
        question, requester = pending.redacted, pending.requester
        pending.request = ApprovalRequest(
            pending.id, question.kind, question.summary, question.namespace, question.session, question.run,
            deepcopy(dict(question.arguments)), pending.shown.hash, question.server, question.tool,
            requester.caller, _answer=lambda decision: self.answer(pending.id, decision, "request"),
        )  # fmt: skip
        for channel in self._channels_for(requester):
            if not channel.is_available:
                continue
            receipt = channel.show(pending.request, len(pending.shown.text), requester.loop)
            if receipt != "unavailable":
                pending.channels.append(channel)
            if receipt == "shown":
                self._start_timer(pending.id)
        if not pending.channels:
            self._decide_now(pending, ApprovalVerdict(False, "nobody", GONE))
        elif self._record_request is not None and requester.decided_count < MOST_ASKED:
            row = {name: value for name, value in _question_row(pending).items() if value}
            with contextlib.suppress(CasemateError):  # then its decision cannot be recorded, and nothing crosses
                self._record_request(requester.run, requester.namespace, row)

    def _start_timer(self, request: str) -> None:
        pending = self._pending.get(request)
        if pending is not None and pending.timer is None and self._timeout is not None:
            pending.timer = self.worker.submit_later(self._timeout, self._expire, request)

    def _expire(self, request: str) -> None:
        if self._settle(request, "expired"):
            why = f"nobody answered within {self._timeout:g} s"
            self._end(request, ApprovalVerdict(False, "timeout", why), "denied: timeout")

    def _drop_channel(self, channel: Channel, request: str) -> None:
        affected = [one for one in self._pending.values() if channel in one.channels and request in ("", one.id)]
        for pending in affected:
            pending.channels.remove(channel)
            if not pending.channels:
                self._decide_now(pending, ApprovalVerdict(False, "nobody", GONE))

    def _decide_now(self, pending: PendingRequest, verdict: ApprovalVerdict) -> None:
        """Decide without an answer, unless one has just come."""
        if self._settle(pending.id, "approved" if verdict.allow else "denied"):
            self._end(pending.id, verdict)

    def _apply_answer(self, request: str, decision: Decision, by: str, note: str) -> None:
        pending = self._remove(request)
        verdict = ApprovalVerdict(
            decision.allow is True, by, decision.reason, decision.content, decision.scope, decision.expires
        )
        overruled = self._deny_despite_answer(pending) if verdict.allow else None
        verdict = overruled or verdict
        is_kept = decision.scope != "once" and overruled is None and not pending.requester.is_over
        if verdict.allow or is_kept:
            keep = self.rules.promise if pending.requester.for_later else self.rules.remember
            keep(decision, pending.question, time.monotonic(), by)
        self._finish(pending, verdict, decision=decision, note=note)
        if is_kept:
            self._decide_same(pending.shown.hash)

    def _deny_despite_answer(self, pending: PendingRequest) -> ApprovalVerdict | None:
        """Why it may not cross although somebody has allowed it: what asked is over, or a rule has come to deny it."""
        if pending.requester.is_over:
            return _withdrawal(pending.requester)
        now = time.monotonic()
        return (
            self.rules.verdict(pending.question, now) if self.rules.judge(pending.question, now)[0] == "deny" else None
        )

    def _decide_same(self, digest: str) -> None:
        """An answer that holds for more than one request may decide others that ask for the same."""
        for pending in [one for one in self._pending.values() if one.shown.hash == digest]:
            verdict = self.rules.verdict(pending.question, time.monotonic())
            if verdict is not None:
                self._decide_now(pending, verdict)

    def _remove(self, request: str) -> PendingRequest:
        """It has come to its end: nobody need answer any more."""
        with self._lock:
            pending = self._current = self._pending.pop(request)
        if pending.timer:
            pending.timer.cancel()
        for channel in pending.channels:
            channel.withdraw(request)
        return pending

    def _end(self, request: str, verdict: ApprovalVerdict, word: str = "") -> None:
        self._finish(self._remove(request), verdict, word)

    def _finish(
        self,
        pending: PendingRequest,
        verdict: ApprovalVerdict,
        word: str = "",
        decision: Decision | None = None,
        note: str = "",
    ) -> None:
        """Record the verdict, and only then hand it out. Who answers may quote a secret in the reason."""
        requester = pending.requester
        verdict = replace(verdict, reason=requester.redact(verdict.reason))
        try:
            self._write(pending, verdict, word or ("allowed" if verdict.allow else "denied"), decision, note)
        except CasemateError:
            verdict = ApprovalVerdict(False, "record", "the decision could not be recorded")
        if pending.id:
            requester.pending_count -= 1
            requester.pause.note_answer(requester.pending_count)
        self._current = None
        pending.future.set_result(verdict)
        if pending.id:
            self._show_due(requester.queue)

    def _write(
        self, pending: PendingRequest, verdict: ApprovalVerdict, word: str, decision: Decision | None, note: str
    ) -> None:
        requester = pending.requester
        requester.decided_count += 1
        if requester.decided_count > MOST_ASKED and not verdict.allow:
            requester.unrecorded_count += 1  # requests without end must not become rows without end
            return
        self._record(requester.run, requester.namespace, _decision_row(pending, verdict, word, decision, note))

    def _record_late_answer(self, request: str, decision: Decision, by: str, note: str, who: str) -> None:
        with self._lock:
            state, run = self._states.state_of(request), self._states.run_of(request)
        why = f"the request is {state}" if state else "there is no such request"
        detail = {
            "request": request, "decision": "ignored", "answer": "allowed" if decision.allow is True else "denied",
            "by": by, "note": note, "caller": who, "why": why,
        }  # fmt: skip
        self._try_record(run, self._namespace, detail)

    def _try_record(self, run: str, namespace: str, detail: dict[str, Any]) -> None:
        with contextlib.suppress(CasemateError):  # nothing crosses for it
            self._record(run, namespace, detail)

    def _forget_requester(self, requester: Requester) -> None:
        """It is over, and none of its requests is pending."""
        requester.unrecorded_count += max(0, requester.asked_count - MOST_ASKED)
        if requester.unrecorded_count:
            why = f"{requester.unrecorded_count} more were denied"
            self._try_record(requester.run, requester.namespace, {"decision": "denied", "by": "limit", "reason": why})
            requester.unrecorded_count = 0
        self.rules.forget(requester.namespace, requester.session, requester.run)
        with self._lock:
            self._states.forget_run(requester.run)
            self._states.forget_queue(requester.queue)

    def _deny_all(self, verdict: ApprovalVerdict) -> None:
        """Deny whatever is pending, unrecorded: the broker is closed or has failed itself."""
        with self._lock:
            denied = [pending for pending in self._pending.values() if self._states.settle(pending.id, "denied")]
            self._pending.clear()
        for pending in [*denied, *([self._current] if self._current else [])]:
            for channel in pending.channels:
                channel.withdraw(pending.id)
            pending.requester.pending_count = 0
            pending.requester.pause.note_answer(0)
            if not pending.future.done():
                pending.future.set_result(verdict)
        self._current = None


def _decision_row(
    pending: PendingRequest, verdict: ApprovalVerdict, word: str, decision: Decision | None = None, note: str = ""
) -> dict[str, Any]:
    """What is on record of a decision."""
    note = pending.requester.redact(note)
    detail = {**_question_row(pending), "decision": word, "by": verdict.by, "reason": verdict.reason, "note": note}
    if decision is not None and decision.scope != "once":
        detail |= {"scope": decision.scope, "uses": decision.uses, "expires": decision.expires}
    return {name: value for name, value in detail.items() if value}


def _question_row(pending: PendingRequest) -> dict[str, Any]:
    """What is on record of a question."""
    question = pending.redacted
    return {
        "session": question.session, "caller": pending.requester.caller, "request": pending.id,
        "kind": question.kind, "summary": question.summary,
        "server": question.server, "tool": question.tool, "arguments": question.arguments,
        "hash": pending.shown.hash,
    }  # fmt: skip


def _withdrawal(requester: Requester) -> ApprovalVerdict:
    """What asked is over."""
    return ApprovalVerdict(False, "withdrawn", requester.end_reason)
