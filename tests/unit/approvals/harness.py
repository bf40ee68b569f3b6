"""A whole broker without cells: what requesters ask it, and what it writes down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.support.waiting import MAX_WAIT

from casemate import ApprovalRequest
from casemate.approvals.approvals import Approvals
from casemate.approvals.channels import StreamChannel
from casemate.approvals.requester import Origin, Requester
from casemate.model.approval import ApprovalVerdict, Question
from casemate.model.kinds import Effect
from casemate.policy.rules import Rulebook, Rules


def question(path: str = "a", **others: Any) -> Question:
    return Question("tool", f"read {path}", {"path": path}, server="files", tool="read", **others)


class Harness:
    """``rows``: what is on record; ``events``: what a stream was told."""

    def __init__(
        self,
        approve: Callable[..., Any] | None = None,
        timeout: float | None = 60.0,
        rules: Rules | None = None,
        **effects: Effect,
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.runs: list[tuple[str, str]] = []
        self.events: list[ApprovalRequest] = []
        self.is_followed = True
        self.rules = Rulebook(rules or Rules(), time.monotonic(), time.time)
        for kind, effect in effects.items():
            self.rules.set_default(kind, effect)  # type: ignore[arg-type]
        self.approvals = Approvals(approve, timeout, self._record, lambda: self.rules, has_rules=True)
        self.record_fails: Exception | None = None

    def _record(self, run: str, namespace: str, detail: dict[str, Any]) -> None:
        if self.record_fails:
            raise self.record_fails
        self.runs.append((run, namespace))
        self.rows.append(detail)

    def requester(self, run: str = "run", session: str | None = "session", *, stream: bool = False) -> Requester:
        channel = None
        if stream:
            channel = StreamChannel(lambda request, _: self.events.append(request), lambda: self.is_followed)
        return self.approvals.requester(Origin("name", session, run), channel)

    def has_shown(self, many: int) -> bool:
        return len(self.events) >= many

    @property
    def decisions(self) -> list[str]:
        return [row["decision"] for row in self.rows]


async def verdict(future: Future[ApprovalVerdict]) -> ApprovalVerdict:
    async with asyncio.timeout(MAX_WAIT):
        return await asyncio.wrap_future(future)
