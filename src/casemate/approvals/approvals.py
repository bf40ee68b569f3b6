"""``sandbox.approvals``: the requests that wait, their answers, and the rules; and where runs get their askers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from casemate.approvals.asker import Asker, Of
from casemate.approvals.channels import HeldChannel
from casemate.model.caller import caller

if TYPE_CHECKING:
    from casemate.approvals.callback import Approve
    from casemate.approvals.channels import Channel, Keeper
    from casemate.approvals.plane import Plane, Record, RecordNow
    from casemate.model.approval import ApprovalRequest, Decision, Kind, Question, Scope
    from casemate.policy.rules import Rulebook
    from casemate.redaction.redaction import Redaction

_ALLOWED_ALL = (
    "Approvals are switched off (approve=casemate.allow_all): whatever asked to cross the wall and no rule denied was "
    "allowed, and nobody has seen it before."
)


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
        asked: Record | None = None,
        record_now: RecordNow | None = None,
    ) -> None:
        """``approve``, ``timeout``: as of :class:`casemate.Sandbox`; ``record``: writes a row of the record; ``rules``
        makes those that decide without asking, and remember answers; ``has_rules``: some are written;
        ``asked``: writes a row when somebody is asked; ``record_now``: as ``record``, where that takes no time."""
        self._asks = not _allows_all(approve)
        self.notes = () if self._asks else (_ALLOWED_ALL,)
        self._approve = approve
        self._timeout = timeout
        self._record = record
        self._asked = asked
        self._record_now = record_now
        self._make_rules = rules
        self._has_rules = has_rules
        self._rules: Rulebook | None = None
        self._held = HeldChannel()
        self._keeper: Keeper | None = None
        self._lock = threading.Lock()  # of the plane
        self._made: Plane | None = None
        self._is_closed = False

    @property
    def rules(self) -> Rulebook:
        """The rules in force, the remembered answers among them."""
        with self._lock:
            if self._rules is None:
                self._rules, self._has_rules = self._make_rules(), True
            return self._rules

    def _plane(self) -> Plane:
        """Made when the first question comes: most runs ask nothing, and it takes time to load."""
        from casemate.approvals.plane import Plane

        rules = self.rules
        with self._lock:
            if self._made is None:
                self._made = Plane(
                    rules, self._record, self._timeout, asks=self._asks, asked=self._asked, record_now=self._record_now
                )
                self._made.channels.append(self._held)
                if self._keeper is not None:
                    self._keeper.connect(self._made)
                    self._made.channels.append(self._keeper)
                if self._approve is not None and self._asks:
                    self._made.channels.append(_callback(self._approve, self._made))
                if self._is_closed:
                    self._made.close()
            return self._made

    def pending(self) -> list[ApprovalRequest]:
        """Requests that wait for an answer, the oldest first: at most sixteen of each session, the others follow.

        In a service also those whose cells have ended with it, and that can be answered still: their ``state`` is
        ``"withdrawn"``.
        """
        kept = self._keeper.open() if self._keeper is not None else []
        return [*kept, *self._plane().pending()]

    @property
    def waiting(self) -> int:
        """How many wait for an answer, also those whose turn to be shown has not come."""
        return 0 if self._made is None else len(self._made.all_pending(None))

    def decide(
        self,
        request_id: str,
        allow: bool = False,
        *,
        scope: Scope = "once",
        uses: int | None = None,
        expires: float | None = None,
        reason: str = "",
        content: Mapping[str, Any] | None = None,
    ) -> bool:
        """Answer a request by its id: only ``allow=True`` allows, anything else denies.

        The other arguments are those of :class:`casemate.Decision`. False, and nothing changed, when there is no such
        request or it is over. Raises :class:`casemate.InvalidArgument`, and the request waits on.
        """
        from casemate.model.approval import Decision

        decision = Decision(allow is True, scope, uses, expires, reason, content)
        if self._keeper is not None and self._keeper.decide(str(request_id), decision):
            self._held.tell()
            return True
        return self._plane().answer(str(request_id), decision, "queue", _note())

    def keep(self, keeper: Keeper) -> None:
        """From now on, and before anything asks, ``keeper`` holds every request, also when what asked is gone."""
        self._keeper = keeper

    def deny_all(self, reason: str = "", *, session: str | None = None) -> int:
        """Deny everything that waits, also what is not shown yet; of one session, or of all. How many that were."""
        from casemate.model.approval import Decision

        plane = self._plane()
        requests = plane.all_pending(session)
        return sum(plane.answer(request, Decision(reason=reason), "queue", _note()) for request in requests)

    @contextlib.contextmanager
    def open(self) -> Iterator[Approvals]:
        """Hold requests for other parts of the application as long as this is entered, also where there is no approver
        and no stream: somebody will look at :meth:`pending`. What only that holds is denied when it is left."""
        self._held.open()
        try:
            yield self
        finally:
            if self._held.close():
                self.left(self._held)

    @contextlib.contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """``call`` whenever :meth:`pending` may give something else, from any thread, as long as this is entered. What
        waits is held meanwhile, as by :meth:`open`."""
        with self.open(), self._held.telling(call):
            yield

    def asker(
        self,
        of: Of,
        stream: Channel | None,
        redaction: Redaction | None = None,
        *,
        asks: bool = True,
        ahead: bool = False,
    ) -> Asker:
        """The way to the plane of one run or step, begun in the event loop that runs. Without ``asks`` only rules
        decide. ``ahead``: what is allowed is for later runs or steps, and remembered for them."""
        return Asker(self._plane, of, stream, asyncio.get_running_loop(), redaction, asks=asks, ahead=ahead)

    def grant(self, questions: Sequence[Question], by: str) -> None:
        """Somebody has allowed exactly these, of a run that has not begun: each as often as it is there, without being
        asked again, unless a rule denies it."""
        self._plane().grant(questions, by)

    def left(self, channel: Channel) -> None:
        """Nobody follows this stream any more, or looks at what is held."""
        if self._made:
            self._made.gone(channel)

    def may_ask(self, kind: Kind, *, stream: bool) -> bool:
        """Whether a question of this ``kind`` could be allowed; ``stream``: that of its run is followed."""
        somebody = stream or self._approve is not None or self._held.is_there
        if not somebody and not self._has_rules:
            return False
        if any(rule.kind == kind and rule.effect == "allow" for rule in self.rules.answers):
            return True  # what was allowed ahead, for one
        rules = self.rules.rules
        written = [rule for rule in rules.written if rule.kind == kind]
        if any(rule.effect == "allow" for rule in written):
            return True
        return somebody and (bool(written) or rules.default(kind)[0] != "deny")

    def answerer(self, request_id: str) -> Callable[[Decision], bool]:
        """How a request that was kept as data is answered."""
        return lambda decision: self._plane().answer(request_id, decision, "request")

    def forget_session(self, namespace: str, session: str) -> None:
        """A session is over: what was answered for it holds no more."""
        if self._made and self._made.clockwork.is_running:
            self._made.clockwork.soon(self._made.rules.forget, namespace, session, "")

    def close(self) -> None:
        """Withdraw whatever waits, and end. Blocks, bounded; harmless when repeated."""
        with self._lock:
            self._is_closed, made = True, self._made
        if made:
            made.close()


def _allows_all(approve: Approve | None) -> bool:
    """Whether nobody is asked, because everything may cross that no rule denies."""
    if approve is None:
        return False
    from casemate.model.approval import allow_all

    return approve is allow_all


def _note() -> str:
    """Who answers, where a surface knows that: for the record."""
    return f"answered by {name}" if (name := caller()) else ""


def _callback(approve: Approve, plane: Plane) -> Channel:
    from casemate.approvals.callback import AsyncCallback, ThreadCallback

    return AsyncCallback(approve, plane) if _is_async(approve) else ThreadCallback(approve, plane)


def _is_async(approve: Approve) -> bool:
    import inspect

    call = getattr(approve, "__call__", None)  # noqa: B004 - an object with an async __call__
    return inspect.iscoroutinefunction(approve) or inspect.iscoroutinefunction(call)
