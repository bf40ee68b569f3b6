"""``sandbox.approvals``: the requests that wait, their answers, and the rules; and where runs get their askers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from casemate.approvals.asker import Asker, Of
from casemate.approvals.callback import Approve, AsyncCallback, ThreadCallback
from casemate.approvals.channels import HeldChannel
from casemate.approvals.plane import Plane, Record
from casemate.model.approval import ApprovalRequest, Decision, Kind, Scope, allow_all

if TYPE_CHECKING:
    from casemate.approvals.channels import Channel
    from casemate.policy.rules import Rulebook

_ALLOWED_ALL = (
    "Approvals are switched off (approve=casemate.allow_all): whatever asked to cross the wall and no rule denied was "
    "allowed, and nobody has seen it before."
)


class Approvals:
    """The approvals of one sandbox. Every method may be called from any thread."""

    def __init__(self, approve: Approve | None, timeout: float | None, record: Record, rules: Rulebook) -> None:
        """``approve``, ``timeout``: as of :class:`casemate.Sandbox`; ``record``: writes a row of the record; ``rules``
        decide without asking, and remember answers."""
        self._plane = Plane(rules, record, timeout, asks=approve is not allow_all)
        self._held = HeldChannel()
        self._plane.channels.append(self._held)
        self.notes = (_ALLOWED_ALL,) if approve is allow_all else ()
        if approve is not None and approve is not allow_all:
            kind = AsyncCallback if _is_async(approve) else ThreadCallback
            self._plane.channels.append(kind(approve, self._plane))

    @property
    def rules(self) -> Rulebook:
        """The rules in force, the remembered answers among them."""
        return self._plane.rules

    def pending(self) -> list[ApprovalRequest]:
        """Requests that wait for an answer, the oldest first: at most sixteen of each session, the others follow."""
        return self._plane.pending()

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
        decision = Decision(allow is True, scope, uses, expires, reason, content)
        return self._plane.answer(str(request_id), decision, "queue")

    def deny_all(self, reason: str = "", *, session: str | None = None) -> int:
        """Deny everything that waits, also what is not shown yet; of one session, or of all. How many that were."""
        requests = self._plane.all_pending(session)
        return sum(self._plane.answer(request, Decision(reason=reason), "queue") for request in requests)

    @contextlib.contextmanager
    def open(self) -> Iterator[Approvals]:
        """Hold requests for other parts of the application as long as this is entered, also where there is no approver
        and no stream: somebody will look at :meth:`pending`. What only that holds is denied when it is left."""
        self._held.open()
        try:
            yield self
        finally:
            if self._held.close():
                self._plane.gone(self._held)

    def asker(self, of: Of, stream: Channel | None) -> Asker:
        """The way to the plane of one run or step, begun in the event loop that runs."""
        return Asker(self._plane, of, stream, asyncio.get_running_loop())

    def left(self, stream: Channel) -> None:
        """Nobody follows this stream any more."""
        self._plane.gone(stream)

    def may_ask(self, kind: Kind, *, stream: bool) -> bool:
        """Whether a question of this ``kind`` could be allowed; ``stream``: that of its run is followed."""
        return self._plane.may_ask(kind, stream=stream)

    def answerer(self, request_id: str) -> Callable[[Decision], bool]:
        """How a request that was kept as data is answered."""
        return lambda decision: self._plane.answer(request_id, decision, "request")

    def forget_session(self, namespace: str, session: str) -> None:
        """A session is over: what was answered for it holds no more."""
        if self._plane.clockwork.is_running:
            self._plane.clockwork.soon(self._plane.rules.forget, namespace, session, "")

    def close(self) -> None:
        """Withdraw whatever waits, and end. Blocks, bounded; harmless when repeated."""
        self._plane.close()


def _is_async(approve: Callable[..., Any]) -> bool:
    call = getattr(approve, "__call__", None)  # noqa: B004 - an object with an async __call__
    return inspect.iscoroutinefunction(approve) or inspect.iscoroutinefunction(call)
