"""The approval broker turns a question into a verdict. It asks the rules first, then an approver, then the rules again.

One thread does all of it, in order. A caller that answers learns at once whether its answer was the first; the effects
follow in the thread. Faults on the way deny. The asking thread may itself decide what rules allow without asking, but
only if no other job runs or waits, and only after the row is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.approvals.requests import MOST_ASKED, End, PendingRequest, RequestStates
from casemate.approvals.worker import Worker
from casemate.errors import CasemateError, InvalidArgument
from casemate.model.approval import BY_RULE, ApprovalRequest, ApprovalVerdict, Decision, Question
from casemate.model.operation import caller
from casemate.policy.canonical import MOST_BYTES, canonical, fingerprint

if TYPE_CHECKING:
    from casemate.approvals.channels import Channel
    from casemate.approvals.requester import Requester
    from casemate.policy.rules import Rulebook

Record = Callable[[str, str, dict[str, Any]], object]  # run, namespace, detail; raises CasemateError
_MOST_NAMES = 20  # packages in a reason
_QUICK = 50_000  # steps of looking through rules: some milliseconds at most

NOBODY = f"no approver is available; an approver (in Python: approve) or {BY_RULE}"
GONE = "the approver that was asked is gone"
BEYOND = "it is not in a given list of hosts, and asking is switched off"
_CLOSED = "the sandbox was closed"
_IS_CLOSED = ApprovalVerdict(False, "withdrawn", _CLOSED)
_TOO_MANY = ApprovalVerdict(False, "limit", f"this run has asked {MOST_ASKED:,} times, which is the limit")
FAULT = ApprovalVerdict(False, "fault", "casemate itself failed to decide")


class ApprovalBroker:
    """``rules`` decide without asking. ``timeout``: seconds to answer; None for no limit. ``asks``: False if asking is
    switched off. ``namespace``: that of all requesters. ``record`` writes a row without blocking, and may raise
    ``CasemateError``; so does ``record_request``, when an approver is asked."""

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
        self.channels: list[Channel] = []  # approvers besides the streams of runs
        self.worker = Worker(lambda _error: self._deny_all(FAULT))
        self._record = record
        self._record_request = record_request
        self._timeout = timeout
        self._asks = asks
        self._states = RequestStates()
        self._lock = threading.Lock()  # guards the states
        self._current: PendingRequest | None = None  # what the thread works on
        self._is_showing = False

    # -- from any thread

    def decide(self, requester: Requester, question: Question, *, inline: bool = False) -> Future[ApprovalVerdict]:
        """Come to a verdict about a question of this requester. ``inline``: if rules allow it and this takes no time,
        decide in this thread before this returns."""
        future: Future[ApprovalVerdict] = Future()
        future.set_running_or_notify_cancel()  # a question can only be withdrawn by the end of the run
        requester.asked_count += 1
        if requester.asked_count > MOST_ASKED:  # a run that asks without end must not hold up other runs
            future.set_result(_TOO_MANY)
            return future
        bound, digest, why = requester.bind(question), "", ""
        try:
            text, digest = _canonical_arguments(bound)
        except InvalidArgument as error:
            text, why = b"{}", str(error)
        bound = replace(bound, arguments=json.loads(text))
        pending = PendingRequest(requester, bound, _request_of(requester, bound, digest), len(text), future)
        if why:
            self._submit(pending, self._finish, ApprovalVerdict(False, "form", why))
            return future
        is_quick = inline and self.rules.effort(len(text)) <= _QUICK
        if not (is_quick and self.worker.run_inline(self._allow_by_rule, pending) and future.done()):
            self._submit(pending, self._consider)
        return future

    def _submit(self, pending: PendingRequest, job: Callable[..., object], *arguments: Any) -> None:
        """Continue with a request in the broker's thread. Denies it if that thread has ended."""
        if not self.worker.submit(job, pending, *arguments):
            pending.future.set_result(_IS_CLOSED)

    def answer(self, request: str, decision: Decision, by: str, note: str = "") -> bool:
        pending = self._settle(request, "approved" if decision.allow is True else "denied")
        if pending is not None:
            self._submit(pending, self._apply_answer, decision, by, note)
        else:
            self.ignore(request, decision, by, note)
        return pending is not None

    def ignore(self, request: str, decision: Decision, by: str, note: str = "") -> None:
        """Record an answer that has no effect."""
        self.worker.submit(self._record_late_answer, request, decision, by, note, caller())

    def start_timeout(self, request: str) -> bool:
        with self._lock:
            pending = self._states.find(request)
        return pending is not None and self.worker.submit(self._start_timer, pending)

    def drop_channel(self, channel: Channel, request: str = "") -> None:
        self.worker.submit(self._drop_channel, channel, request)

    def list_shown(self) -> list[ApprovalRequest]:
        """The pending requests that are shown, the oldest first."""
        return [one.shown for one in self._list() if one.shown is not None]

    def list_pending(self, session: str | None) -> list[str]:
        """The ids of all pending requests of one session or of all, including those not shown yet."""
        return [one.request.id for one in self._list() if session is None or one.question.session == session]

    def _list(self) -> list[PendingRequest]:
        with self._lock:
            return list(self._states.pending)

    def withdraw(self, requester: Requester) -> list[str]:
        requests = [one.request.id for one in self._list() if one.requester is requester]
        for request in requests:
            if (pending := self._settle(request, "withdrawn")) is not None:
                self._submit(pending, self._end, _withdrawal(requester), "withdrawn")
        self.worker.submit(self._forget_requester, requester)
        return requests

    def grant(self, questions: Sequence[Question], by: str) -> None:
        """Grant exactly these questions to a run that has not begun, each as often as it occurs."""
        self.worker.submit(self._grant, tuple(questions), by)

    def close(self) -> None:
        """Withdraw everything and end. Blocks for a bounded time."""
        for requester in {pending.requester for pending in self._list()}:
            requester.close(_CLOSED)
        self.worker.close()
        self._deny_all(_IS_CLOSED)

    def _settle(self, request: str, end: End) -> PendingRequest | None:
        with self._lock:
            return self._states.settle(request, end)

    # -- inline, in the thread that asks

    def _allow_by_rule(self, pending: PendingRequest) -> None:
        """Decide what rules allow, if its row can be written at once. Else the broker's thread decides."""
        self._current, requester = pending, pending.requester
        ruling = self.rules.rule_on(pending.question, time.monotonic())
        if ruling and ruling.verdict.allow and not requester.is_over:
            row = _decision_row(pending, ruling.verdict, "allowed")
            if self._try_record(requester.run, requester.namespace, row):
                requester.decided_count += 1
                verdict = self.rules.spend(ruling, pending.question)
                requester.pause.note_request(requester.pending_count)
                pending.future.set_result(verdict)
        self._current = None

    # -- in the broker's thread

    def _grant(self, questions: Sequence[Question], by: str) -> None:
        counts = Counter(fingerprint(question) for question in questions)
        distinct = {fingerprint(question): question for question in questions}
        for digest, count in counts.items():
            decision = Decision(True, scope="run", uses=count + 1)  # the remembered answer takes one use
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
        """Make it wait for an answer. Returns a verdict if it may not."""
        requester = pending.requester
        with self._lock:
            if requester.is_over:  # later additions would miss the withdrawal
                return _withdrawal(requester)
            request = os.urandom(16).hex()
            refusal = self._states.add(request, pending)
            if refusal:
                return ApprovalVerdict(False, "limit", refusal)
            pending.request = replace(pending.request, id=request)
        return None

    def _channels_for(self, requester: Requester) -> list[Channel]:
        return [*self.channels, *([requester.stream] if requester.stream else [])]

    def _show_due(self, queue: str) -> None:
        """Show as many requests as may be shown. Earlier answers may have decided some of them."""
        if self._is_showing:
            return
        self._is_showing = True
        try:
            while (pending := self._show_next(queue)) is not None:
                verdict = self.rules.verdict(pending.question, time.monotonic())
                if verdict is not None:
                    self._decide_now(pending, verdict)
                else:
                    self._show(pending)
        finally:
            self._is_showing = False

    def _show_next(self, queue: str) -> PendingRequest | None:
        with self._lock:
            return self._states.show_next(queue)

    def _show(self, pending: PendingRequest) -> None:
        requester, request = pending.requester, pending.request
        arguments = deepcopy(dict(request.arguments))  # so that approvers cannot change what is recorded
        answer = partial(self.answer, request.id, by="request")
        asked = time.time()
        expires = None if self._timeout is None else asked + self._timeout
        pending.shown = replace(request, arguments=arguments, asked=asked, expires=expires, _answer=answer)
        for channel in self._channels_for(requester):
            if not channel.is_available:
                continue
            receipt = channel.show(pending.shown, pending.size, requester.loop)
            if receipt != "unavailable":
                pending.channels.append(channel)
            if receipt == "shown":
                self._start_timer(pending)
        if not pending.channels:
            self._decide_now(pending, ApprovalVerdict(False, "nobody", GONE))
        elif self._record_request is not None and requester.decided_count < MOST_ASKED:
            row = {name: value for name, value in _question_row(pending).items() if value}
            with contextlib.suppress(CasemateError):  # its decision cannot be recorded either, so nothing crosses
                self._record_request(requester.run, requester.namespace, row)

    def _start_timer(self, pending: PendingRequest) -> None:
        if not pending.has_timer and self._timeout is not None:
            pending.has_timer = True
            self.worker.submit_later(self._timeout, self._expire, pending.request.id)

    def _expire(self, request: str) -> None:
        if (pending := self._settle(request, "expired")) is not None:
            why = f"no approver answered within {self._timeout:g} s"
            self._end(pending, ApprovalVerdict(False, "timeout", why), "denied: timeout")

    def _drop_channel(self, channel: Channel, request: str) -> None:
        affected = [one for one in self._list() if channel in one.channels and request in ("", one.request.id)]
        for pending in affected:
            pending.channels.remove(channel)
            if not pending.channels:
                self._decide_now(pending, ApprovalVerdict(False, "nobody", GONE))

    def _decide_now(self, pending: PendingRequest, verdict: ApprovalVerdict) -> None:
        """Decide without an answer, unless one has just come."""
        if self._settle(pending.request.id, "approved" if verdict.allow else "denied") is not None:
            self._end(pending, verdict)

    def _apply_answer(self, pending: PendingRequest, decision: Decision, by: str, note: str) -> None:
        self._take_back(pending)
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
            self._decide_same(pending.request.hash)

    def _deny_despite_answer(self, pending: PendingRequest) -> ApprovalVerdict | None:
        """A denial that overrides an approver's yes: the asking run is over, or a rule denies it by now."""
        if pending.requester.is_over:
            return _withdrawal(pending.requester)
        now = time.monotonic()
        return (
            self.rules.verdict(pending.question, now) if self.rules.judge(pending.question, now)[0] == "deny" else None
        )

    def _decide_same(self, digest: str) -> None:
        """Apply an answer for more than one request to pending requests for the same."""
        for pending in [one for one in self._list() if one.request.hash == digest]:
            verdict = self.rules.verdict(pending.question, time.monotonic())
            if verdict is not None:
                self._decide_now(pending, verdict)

    def _take_back(self, pending: PendingRequest) -> None:
        """Withdraw a request from its channels, because it is decided."""
        self._current = pending
        for channel in pending.channels:
            channel.withdraw(pending.request.id)

    def _end(self, pending: PendingRequest, verdict: ApprovalVerdict, word: str = "") -> None:
        self._take_back(pending)
        self._finish(pending, verdict, word)

    def _finish(
        self,
        pending: PendingRequest,
        verdict: ApprovalVerdict,
        word: str = "",
        decision: Decision | None = None,
        note: str = "",
    ) -> None:
        """Record the verdict, then deliver it. The reason is redacted, because it may quote a secret."""
        self._current, requester, reason = pending, pending.requester, verdict.reason
        if BY_RULE in reason and pending.question.kind == "tool":
            from casemate.policy.proposal import name_rule

            reason = reason.replace(BY_RULE, f"{BY_RULE}: {name_rule(self.rules.rules.written, pending.question)}")
        verdict = replace(verdict, reason=requester.redact(reason))
        try:
            self._write(pending, verdict, word or ("allowed" if verdict.allow else "denied"), decision, note)
        except CasemateError:
            verdict = ApprovalVerdict(False, "record", "the decision could not be recorded")
        if pending.request.id:
            requester.pending_count = max(0, requester.pending_count - 1)  # it is 0 after a fault
            requester.pause.note_answer(requester.pending_count)
        self._current = None
        pending.future.set_result(verdict)
        if pending.request.id:
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

    def _try_record(self, run: str, namespace: str, detail: dict[str, Any]) -> bool:
        """Whether the row was written. If not, nothing may cross for it."""
        try:
            self._record(run, namespace, detail)
        except CasemateError:
            return False
        return True

    def _forget_requester(self, requester: Requester) -> None:
        """Forget a requester that is over and has no pending requests."""
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
        """Deny everything that is pending, without recording it: the broker is closed or has failed."""
        denied = [one for one in self._list() if self._settle(one.request.id, "denied") is not None]
        for pending in [*denied, *([self._current] if self._current else [])]:
            for channel in pending.channels:
                channel.withdraw(pending.request.id)
            pending.requester.pending_count = 0
            pending.requester.pause.note_answer(0)
            if not pending.future.done():
                pending.future.set_result(verdict)
        self._current = None


def _decision_row(
    pending: PendingRequest, verdict: ApprovalVerdict, word: str, decision: Decision | None = None, note: str = ""
) -> dict[str, Any]:
    """The row of a decision."""
    note = pending.requester.redact(note)
    detail = {**_question_row(pending), "decision": word, "by": verdict.by, "reason": verdict.reason, "note": note}
    if decision is not None and decision.scope != "once":
        detail |= {"scope": decision.scope, "uses": decision.uses, "expires": decision.expires}
    return {name: value for name, value in detail.items() if value}


def _question_row(pending: PendingRequest) -> dict[str, Any]:
    """The fields of a question's row."""
    request = pending.request
    return {
        "session": request.session, "caller": request.caller, "request": request.id,
        "kind": request.kind, "summary": request.summary,
        "server": request.server, "tool": request.tool, "arguments": request.arguments,
        "hash": request.hash,
    }  # fmt: skip


def _canonical_arguments(question: Question) -> tuple[bytes, str]:
    """The canonical JSON text of a question's arguments, and the hash that a decision binds to. Raises
    ``InvalidArgument`` if they cannot be shown, and so cannot be approved."""
    if not isinstance(question.arguments, dict):
        raise InvalidArgument("arguments", "are not a mapping")
    text = canonical(question.arguments)
    if len(text) > MOST_BYTES:
        raise InvalidArgument("arguments", f"take {len(text):,} bytes; the limit is {MOST_BYTES:,}")
    return text, fingerprint(question, text)


def _request_of(requester: Requester, question: Question, digest: str) -> ApprovalRequest:
    """``question`` without secrets, for approvers and the record. The hash remains that of the original."""
    redact = requester.redact
    return ApprovalRequest(
        "", question.kind, redact(question.summary), question.namespace, question.session, question.run,
        redact(question.arguments), digest, redact(question.server), redact(question.tool), requester.caller,
        line=question.line,
    )  # fmt: skip


def _withdrawal(requester: Requester) -> ApprovalVerdict:
    return ApprovalVerdict(False, "withdrawn", requester.end_reason)
