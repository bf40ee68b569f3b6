"""Where a question becomes a verdict: rules first, then whoever can be asked, then the rules once more.

One thread does all of it, in order. Whoever answers is told at once whether that came first; what follows from an
answer is done in the thread. What goes wrong on the way denies. What rules allow without further ado may be decided in
the thread that asks, in a turn of its own: with its row written before, and when nothing else is done or waits.
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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from casemate.approvals.cases import Case, asked_of, row_of, withdrawn
from casemate.approvals.clockwork import Clockwork
from casemate.approvals.shown import Shown
from casemate.approvals.states import MOST_ASKED, End, States
from casemate.errors import CasemateError
from casemate.model.approval import ApprovalRequest, Decision, Question, Verdict
from casemate.policy.canonical import fingerprint

if TYPE_CHECKING:
    from casemate.approvals.asker import Asker
    from casemate.approvals.channels import Channel
    from casemate.policy.rules import Rulebook

Record = Callable[[str, str, dict[str, Any]], object]  # run, namespace, detail; raises CasemateError
RecordNow = Callable[[str, str, dict[str, Any]], bool]  # the same, or False at once where that would take time
_QUICK = 50_000  # steps of looking through rules: some milliseconds at the very most

NOBODY = "nobody is there to ask"
GONE = "whoever was asked has gone"
BEYOND = "it is beyond a list of hosts that was given, and asking is switched off"
_CLOSED = "the sandbox was closed"
FAULT = Verdict(False, "fault", "casemate itself failed to decide")


class Plane:
    """``rules`` decide without asking; ``channels``: who may be asked besides the stream of a run; ``timeout``: seconds
    that somebody has to answer, None for as long as it takes. ``asks``: False where asking is switched off. ``record``
    writes a row, and may raise ``CasemateError``; so does ``asked``, when somebody is asked. ``record_now``: as
    ``record``, without waiting for anybody; without it everything is decided in the plane's thread."""

    def __init__(
        self,
        rules: Rulebook,
        record: Record,
        timeout: float | None,
        *,
        asks: bool,
        asked: Record | None = None,
        record_now: RecordNow | None = None,
    ) -> None:
        self.rules = rules
        self.channels: list[Channel] = []
        self.clockwork = Clockwork(self._failed)
        self._record = record
        self._record_asked = asked
        self._record_now = record_now
        self._timeout = timeout
        self._asks = asks
        self._states = States()
        self._cases: dict[str, Case] = {}
        self._lock = threading.Lock()  # of the states and the cases
        self._current: Case | None = None  # what the thread is at
        self._is_showing = False

    # -- from any thread

    def decide(
        self, asker: Asker, question: Question, seen: Shown, future: Future[Verdict], *, here: bool = False
    ) -> None:
        """Have ``future`` hold a verdict, once there is one. ``seen``: what is shown of the question. ``here``: what
        rules allow, if that takes no time, is decided in this thread, before this returns."""
        asked = replace(question, arguments=seen.arguments)
        case = Case(asker, asked, asker.without_secrets(asked), seen, future)
        if here and self._is_quick(seen) and self.clockwork.at_once(self._allow_by_rule, case) and future.done():
            return
        if not self.clockwork.soon(self._consider, case):
            case.future.set_result(Verdict(False, "withdrawn", _CLOSED))

    def refuse(self, asker: Asker, question: Question, future: Future[Verdict], why: str) -> None:
        """Deny what cannot even be shown."""
        nothing = Shown("", "")
        bare = replace(question, arguments={})
        case = Case(asker, bare, asker.without_secrets(bare), nothing, future)
        if not self.clockwork.soon(self._finish, case, Verdict(False, "form", why)):
            future.set_result(Verdict(False, "form", why))

    def answer(self, request: str, decision: Decision, by: str, note: str = "") -> bool:
        """Somebody answers; whether that was the first answer, and in time."""
        is_first = self._settle(request, "approved" if decision.allow is True else "denied")
        self.clockwork.soon(self._answered if is_first else self._came_late, request, decision, by, note)
        return is_first

    def taken(self, request: str) -> bool:
        """Somebody looks at it from now on, so its time begins; False when that is no longer needed."""
        with self._lock:
            is_pending = self._states.state(request) == "asked"
        return is_pending and self.clockwork.soon(self._begin_time, request)

    def gone(self, channel: Channel, request: str = "") -> None:
        """Through this channel nobody answers any more: this request, or any."""
        self.clockwork.soon(self._lose, channel, request)

    def pending(self) -> list[ApprovalRequest]:
        """Requests that are shown and wait, the oldest first."""
        with self._lock:
            requests = [self._cases[request].request for request in self._states.shown()]
        return [request for request in requests if request is not None]

    def all_pending(self, session: str | None) -> list[str]:
        """Also those whose turn has not come; of one session or of all."""
        with self._lock:
            asked = [(request, self._cases[request].question.session) for request in self._states.asked()]
        return [request for request, of in asked if session is None or of == session]

    def withdraw(self, asker: Asker) -> list[str]:
        """What asked is over, and so are its requests, which are given."""
        with self._lock:
            over = [request for request, case in self._cases.items() if case.asker is asker]
        for request in over:
            if self._settle(request, "withdrawn"):
                self.clockwork.soon(self._end, request, withdrawn(asker), "withdrawn")
        self.clockwork.soon(self._forget, asker)
        return over

    def grant(self, questions: Sequence[Question], by: str) -> None:
        """Somebody has allowed exactly these, of a run that has not begun: each as often as it is there."""
        self.clockwork.soon(self._grant, tuple(questions), by)

    def close(self) -> None:
        """Withdraw everything, and end. Blocks, bounded."""
        with self._lock:
            askers = {case.asker for case in self._cases.values()}
        for asker in askers:
            asker.close(_CLOSED)
        self.clockwork.close()
        self._give_up(Verdict(False, "withdrawn", _CLOSED))

    def _settle(self, request: str, end: End) -> bool:
        with self._lock:
            return self._states.settle(request, end)

    def _is_quick(self, seen: Shown) -> bool:
        return self._record_now is not None and self.rules.effort(len(seen.text)) <= _QUICK

    # -- in a turn of the asker's

    def _allow_by_rule(self, case: Case) -> None:
        """Decide what rules allow, if its row can be written at once. Else nothing has happened, and it is for the
        plane's thread, with all that is to be said of it."""
        self._current, asker = case, case.asker
        ruling = self.rules.ruling(case.question, time.monotonic())
        if ruling and ruling.verdict.allow and not asker.is_over and self._is_recorded(case, ruling.verdict):
            asker.decided += 1
            verdict = self.rules.spend(ruling, case.question)
            asker.pausing.asked(asker.pending)
            case.future.set_result(verdict)
        self._current = None

    def _is_recorded(self, case: Case, verdict: Verdict) -> bool:
        assert self._record_now is not None
        try:
            return self._record_now(case.asker.run, case.asker.namespace, row_of(case, verdict, "allowed"))
        except CasemateError:
            return False

    # -- in the plane's thread

    def _grant(self, questions: Sequence[Question], by: str) -> None:
        counted = Counter(fingerprint(question) for question in questions)
        once = {fingerprint(question): question for question in questions}
        for shown, count in counted.items():
            decision = Decision(True, scope="run", uses=count + 1)  # of which the answer that is remembered takes one
            self.rules.remember(decision, once[shown], time.monotonic(), by)

    def _consider(self, case: Case) -> None:
        self._current = case
        pausing = case.asker.pausing
        verdict = self._without_asking(case) or self._enter(case)
        if verdict is not None:
            pausing.asked(case.asker.pending)
            self._finish(case, verdict)
            return
        case.asker.pending += 1
        pausing.asked(case.asker.pending)
        self._current = None
        self._show_due(case.asker.queue)

    def _without_asking(self, case: Case) -> Verdict | None:
        if case.asker.is_over:
            return withdrawn(case.asker)
        verdict = self.rules.verdict(case.question, time.monotonic())
        if verdict is not None:
            return verdict
        if not case.asker.asks:
            return Verdict(False, "nobody", NOBODY)
        if not self._asks:
            return Verdict(False, "allow_all", BEYOND) if case.question.beyond else Verdict(True, "allow_all")
        if not any(channel.is_there for channel in self._channels_for(case.asker)):
            return Verdict(False, "nobody", NOBODY)
        return None

    def _enter(self, case: Case) -> Verdict | None:
        """Have it wait for an answer; or why it may not."""
        asker = case.asker
        with self._lock:
            if asker.is_over:  # nothing of it is entered after that, so that all of it is withdrawn
                return withdrawn(asker)
            request = os.urandom(16).hex()
            why = self._states.ask(request, asker.queue, asker.run, len(case.shown.text))
            if why:
                return Verdict(False, "limit", why)
            case.id = request
            self._cases[request] = case
        return None

    def _channels_for(self, asker: Asker) -> list[Channel]:
        return [*self.channels, *([asker.stream] if asker.stream else [])]

    def _show_due(self, queue: str) -> None:
        """Show requests whose turn has come; those that an answer has decided since need none of their own."""
        if self._is_showing:
            return
        self._is_showing = True
        try:
            while request := self._take_turn(queue):
                case = self._cases[request]
                verdict = self.rules.verdict(case.question, time.monotonic())
                if verdict is not None:
                    self._decide_now(case, verdict)
                else:
                    self._show(case)
        finally:
            self._is_showing = False

    def _take_turn(self, queue: str) -> str | None:
        with self._lock:
            return self._states.take_turn(queue)

    def _show(self, case: Case) -> None:
        question = case.told
        case.request = ApprovalRequest(
            case.id, question.kind, question.summary, question.namespace, question.session, question.run,
            deepcopy(dict(question.arguments)), case.shown.hash, question.server, question.tool,
            case.asker.caller, _answer=lambda decision: self.answer(case.id, decision, "request"),
        )  # fmt: skip
        for channel in self._channels_for(case.asker):
            if not channel.is_there:
                continue
            held = channel.show(case.request, len(case.shown.text), case.asker.loop)
            if held != "gone":
                case.holders.append(channel)
            if held == "taken":
                self._begin_time(case.id)
        if not case.holders:
            self._decide_now(case, Verdict(False, "nobody", GONE))
        elif self._record_asked is not None and case.asker.decided < MOST_ASKED:
            asked = {name: value for name, value in asked_of(case).items() if value}
            with contextlib.suppress(CasemateError):  # then its decision cannot be recorded, and nothing crosses
                self._record_asked(case.asker.run, case.asker.namespace, asked)

    def _begin_time(self, request: str) -> None:
        case = self._cases.get(request)
        if case is not None and case.expiry is None and self._timeout is not None:
            case.expiry = self.clockwork.later(self._timeout, self._expire, request)

    def _expire(self, request: str) -> None:
        if self._settle(request, "expired"):
            why = f"nobody answered within {self._timeout:g} s"
            self._end(request, Verdict(False, "timeout", why), "denied: timeout")

    def _lose(self, channel: Channel, request: str) -> None:
        for case in [case for case in self._cases.values() if channel in case.holders and request in ("", case.id)]:
            case.holders.remove(channel)
            if not case.holders:
                self._decide_now(case, Verdict(False, "nobody", GONE))

    def _decide_now(self, case: Case, verdict: Verdict) -> None:
        """Without an answer, unless one has just come."""
        if self._settle(case.id, "approved" if verdict.allow else "denied"):
            self._end(case.id, verdict)

    def _answered(self, request: str, decision: Decision, by: str, note: str) -> None:
        case = self._close_case(request)
        verdict = Verdict(
            decision.allow is True, by, decision.reason, decision.content, decision.scope, decision.expires
        )
        if verdict.allow:
            verdict = self._after_all(case, decision, by) or verdict
        self._finish(case, verdict, decision=decision, note=note)
        if verdict.allow and decision.scope != "once":
            for other in [other for other in self._cases.values() if other.shown.hash == case.shown.hash]:
                known = self.rules.verdict(other.question, time.monotonic())
                if known is not None:
                    self._decide_now(other, known)

    def _after_all(self, case: Case, decision: Decision, by: str) -> Verdict | None:
        """Why it may not cross although somebody has allowed it: what asked is over, or a rule has come to deny it."""
        if case.asker.is_over:
            return withdrawn(case.asker)
        now = time.monotonic()
        if self.rules.judge(case.question, now)[0] == "deny":
            return self.rules.verdict(case.question, now)
        keep = self.rules.promise if case.asker.ahead else self.rules.remember
        keep(decision, case.question, now, by)
        return None

    def _close_case(self, request: str) -> Case:
        """It has come to its end: nobody need answer any more."""
        with self._lock:
            case = self._current = self._cases.pop(request)
        if case.expiry:
            case.expiry.cancel()
        for channel in case.holders:
            channel.withdraw(request)
        return case

    def _end(self, request: str, verdict: Verdict, word: str = "") -> None:
        self._finish(self._close_case(request), verdict, word)

    def _finish(
        self, case: Case, verdict: Verdict, word: str = "", decision: Decision | None = None, note: str = ""
    ) -> None:
        """Record the verdict, and only then hand it out. Who answers may quote a secret in the reason."""
        asker = case.asker
        verdict = replace(verdict, reason=asker.redacted(verdict.reason))
        try:
            self._write(case, verdict, word or ("allowed" if verdict.allow else "denied"), decision, note)
        except CasemateError:
            verdict = Verdict(False, "record", "the decision could not be recorded")
        if case.id:
            asker.pending -= 1
            asker.pausing.answered(asker.pending)
        self._current = None
        case.future.set_result(verdict)
        if case.id:
            self._show_due(asker.queue)

    def _write(self, case: Case, verdict: Verdict, word: str, decision: Decision | None, note: str) -> None:
        asker = case.asker
        asker.decided += 1
        if asker.decided > MOST_ASKED and not verdict.allow:
            asker.unrecorded += 1  # a flood of requests must not become one of rows
            return
        self._record(asker.run, asker.namespace, row_of(case, verdict, word, decision, note))

    def _came_late(self, request: str, decision: Decision, by: str, note: str) -> None:
        with self._lock:
            state = self._states.state(request)
        answer = "allowed" if decision.allow is True else "denied"
        detail = {"request": request, "decision": "ignored", "answer": answer, "by": by, "note": note}
        self._try_record("", "", {**detail, "why": f"the request is {state}" if state else "there is no such request"})

    def _try_record(self, run: str, namespace: str, detail: dict[str, Any]) -> None:
        try:
            self._record(run, namespace, detail)
        except CasemateError:
            return  # nothing crosses for it

    def _forget(self, asker: Asker) -> None:
        """It is over, and none of its requests is pending."""
        asker.unrecorded += max(0, asker.asked - MOST_ASKED)
        if asker.unrecorded:
            why = f"{asker.unrecorded} more were denied"
            self._try_record(asker.run, asker.namespace, {"decision": "denied", "by": "limit", "reason": why})
            asker.unrecorded = 0
        self.rules.forget(asker.namespace, asker.session, asker.run)
        with self._lock:
            self._states.forget_run(asker.run)
            self._states.forget_queue(asker.queue)

    def _failed(self, _error: Exception) -> None:
        """The plane itself has failed."""
        self._give_up(FAULT)

    def _give_up(self, verdict: Verdict) -> None:
        """Whatever waits is denied, unrecorded."""
        with self._lock:
            waiting = [case for case in self._cases.values() if self._states.settle(case.id, "denied")]
            self._cases.clear()
        for case in [*waiting, *([self._current] if self._current else [])]:
            for channel in case.holders:
                channel.withdraw(case.id)
            case.asker.pending = 0
            case.asker.pausing.answered(0)
            if not case.future.done():
                case.future.set_result(verdict)
        self._current = None
