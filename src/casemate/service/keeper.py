"""The approval broker's way to what is kept of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from casemate.errors import RecordUnavailable
from casemate.model.approval import ApprovalRequest, Decision
from casemate.operations.wire import document

if TYPE_CHECKING:
    from casemate.approvals.channels import AnswerSink, Receipt
    from casemate.service.kept_requests import Kept, KeptRequests

_KNOWN = {field.name for field in fields(ApprovalRequest) if field.repr}


class KeepingChannel:
    """Writes every request down before it counts as held, and takes it out once it is answered; what was allowed
    beforehand is answered at once. Implements :class:`casemate.approvals.channels.RequestStore` for one namespace."""

    name = "kept"

    def __init__(self, kept: KeptRequests, namespace: str, note: Callable[[str], None] = lambda _: None) -> None:
        """``note``: is told what goes wrong."""
        self._kept = kept
        self._namespace = namespace
        self._note = note
        self._sink: AnswerSink | None = None
        self._is_stopping = False

    @property
    def is_available(self) -> bool:
        return True

    def connect(self, sink: AnswerSink) -> None:
        """``sink`` takes answers."""
        self._sink = sink

    def show(self, request: ApprovalRequest, size: int, loop: asyncio.AbstractEventLoop | None) -> Receipt:  # noqa: ARG002
        """Keep it; "unavailable" where that cannot be done, so that it is not promised."""
        try:
            if not request.caller:  # nobody who could ask the same again
                return "shown"
            if self._kept.redeem(self._namespace, request.caller, request.hash):
                assert self._sink is not None
                reason = "allowed beforehand, for what was asked before the service was stopped"
                self._sink.answer(request.id, Decision(True, reason=reason), self.name)
                return "shown"
            self._kept.asked(request.caller, document(request))
        except RecordUnavailable as error:
            self._note(error.message)
            return "unavailable"
        return "shown"

    def withdraw(self, request: str) -> None:
        """It is answered, or what asked is over: unless that is so because the service ends."""
        if self._is_stopping:
            return
        try:
            self._kept.over(request)
        except RecordUnavailable as error:
            self._note(error.message)

    async def wait_closed(self, requests: set[str], seconds: float) -> None:
        """Nobody is called."""

    def stop(self) -> None:
        """From now on whatever ends does so because the service does: its requests stay."""
        self._is_stopping = True

    def list_withdrawn(self) -> list[ApprovalRequest]:
        """Those that can be answered although their cells are gone, which their state says: withdrawn."""
        return [self._request_of(one) for one in self._kept.open(self._namespace)]

    def decide(self, request: str, decision: Decision) -> bool:
        """Answer one of these: it holds once, for exactly the same of the same caller, whatever its scope says."""
        return self._kept.answer(request, self._namespace, allow=decision.allow is True)

    def _request_of(self, kept: Kept) -> ApprovalRequest:
        given = {name: value for name, value in kept.document.items() if name in _KNOWN}
        return ApprovalRequest(**{**given, "state": "withdrawn"}, _answer=partial(self.decide, kept.id))
