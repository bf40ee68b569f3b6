"""Runs in a service, followed to their end, and plans of programs and cells."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from casemate.errors import CasemateError
from casemate.model.approval import ApprovalRequest as LocalRequest
from casemate.model.approval import Decision
from casemate.model.call_options import DecisionOptions
from casemate.model.events import Done, Event, request_of
from casemate.model.execution import Prover
from casemate.model.options import complete, takes_options
from casemate.model.plan import Plan, ReadyStart, Secrets
from casemate.operations.documents import error_from, event_of, execution_of, revive, revive_fields
from casemate.remote.client import RemoteOperations

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan
    from casemate.model.execution import Execution
    from casemate.model.kinds import Content

_EACH = 45.0  # seconds of one waiting request
_BEGINS_WITHIN = 1.0  # seconds for a run to start after its caller was cancelled
_ENDS_WITHIN = 30.0  # seconds for a service to end an abandoned run


class ApprovalRequest(LocalRequest):
    """A request of a service. Answering it sends a request there, which raises the service's errors, such as ``Denied``
    for callers who may not answer."""

    __slots__ = ()

    @takes_options(DecisionOptions)
    async def approve(self, **options: Unpack[DecisionOptions]) -> bool:
        """See :meth:`casemate.ApprovalRequest.approve`."""
        decision = Decision(True, **complete(DecisionOptions, options, "approve"))
        return await asyncio.to_thread(self._decide, decision)

    async def deny(self, reason: str = "") -> bool:
        """See :meth:`casemate.ApprovalRequest.deny`."""
        return await asyncio.to_thread(self._decide, Decision(reason=reason))


def request_from(remote: RemoteOperations, source: Mapping[str, Any]) -> ApprovalRequest:
    """An approval request from its document. It can be answered."""
    request = request_of(source)
    values = {name: getattr(request, name) for name in LocalRequest.__slots__ if not name.startswith("_")}
    return ApprovalRequest(**values, _answer=partial(decide, remote, request.id))


def decide(remote: RemoteOperations, request: str, decision: Decision) -> bool:
    """Answer a request. Blocks, and raises the service's errors."""
    values = {name: getattr(decision, name) for name in Decision.__slots__}
    answer = {name: value for name, value in values.items() if value is not None}
    is_answered: bool = remote.call_blocking("approvals.decide", {"request": request, **answer})
    return is_answered


@dataclass(frozen=True, slots=True)
class RemoteContent:
    """An artifact of a run in the service, fetched on demand. Implements :class:`casemate.model.execution.Content`.
    Blocks, and raises the service's errors."""

    remote: RemoteOperations
    run: str
    name: str

    def read_bytes(self) -> bytes:
        return self.remote.block(lambda remote: remote.download("artifacts", self.run, self.name))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy it to ``path``, replacing that. Also raises ``OSError``."""
        self.remote.block(lambda remote: remote.save(("artifacts", self.run, self.name), Path(path)))


class Run:
    """A run in the service. It continues when no client follows it. ``id`` is that of its execution."""

    def __init__(self, state: Mapping[str, Any], remote: RemoteOperations) -> None:
        """``state``: the service's answer."""
        self.id: str = state["run"]
        self._remote = remote

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def stream(self, cursor: int = 0) -> AsyncGenerator[Event]:
        """Events as they happen, from number ``cursor`` on, counted from 0. ``Done`` is the last. Leaving early does
        not affect the run. Raises the service's errors."""
        async with contextlib.aclosing(
            self._remote.stream("runs.stream", {"run": self.id, "cursor": cursor})
        ) as events:
            async for event in events:
                if event["event"] == "approval":
                    yield request_from(self._remote, event["request"])
                else:
                    one = event_of(event, partial(RemoteContent, self._remote))
                    yield Done(self._signable(one.execution)) if isinstance(one, Done) else one

    def _signable(self, execution: Execution) -> Execution:
        sign = self._remote.call_blocking
        return replace(execution, prover=Prover(lambda one: sign("evidence.statement", {"run": one.id})))

    async def wait(self) -> Execution:
        """Wait for the outcome. Raises the run's error if it has no outcome."""
        seen: list[str] = []
        while True:
            state = await self._remote("runs.wait", {"run": self.id, "seconds": _EACH, "told": seen})
            if state["status"] == "done":
                return self._outcome(state)
            seen = [one["id"] for one in state["approvals"]]

    async def cancel(self) -> None:
        """End the run, and wait for its end. A step is interrupted. Does nothing if the run is over."""
        await self._remote("runs.cancel", {"run": self.id})

    def _outcome(self, state: Mapping[str, Any]) -> Execution:
        if state["execution"] is None:
            raise error_from(state["error"] or {})
        return self._signable(execution_of(state["execution"], partial(RemoteContent, self._remote)))


async def run_to_end(start: Callable[[], Awaitable[Run]]) -> Execution:
    """Start a run and wait for it. Cancelling this ends the run."""
    run = await _begin(start)
    try:
        return await run.wait()
    except asyncio.CancelledError:
        await _cancel(run)
        raise


async def stream_to_end(start: Callable[[], Awaitable[Run]]) -> AsyncGenerator[Event]:
    """Start a run and follow its events. Leaving early ends the run."""
    run = await _begin(start)
    is_over = False
    try:
        async with contextlib.aclosing(run.stream()) as events:
            async for event in events:
                is_over = isinstance(event, Done)
                yield event
    finally:
        if not is_over:
            await _cancel(run)


async def _begin(start: Callable[[], Awaitable[Run]]) -> Run:
    """Start the run, and end it if the caller is cancelled meanwhile."""
    beginning = asyncio.ensure_future(start())  # noqa: TID251 - always awaited below
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([beginning], timeout=_BEGINS_WITHIN)
        finally:
            beginning.cancel()  # it waits for an approver to allow a secret
        with contextlib.suppress(CasemateError, asyncio.CancelledError):  # it never began
            await _cancel(await beginning)
        raise


async def _cancel(run: Run) -> None:
    """End the run. A service that is gone has ended it already."""
    with contextlib.suppress(CasemateError, TimeoutError):
        async with asyncio.timeout(_ENDS_WITHIN):
            await run.cancel()


async def plan_program(remote: RemoteOperations, start: Callable[[], Awaitable[Run]]) -> ProgramPlan:
    """The plan of a program that the service tries out with ``start``. Cancelling this ends the attempt."""
    from casemate.api.call_plan import PlannedCall, ProgramPlan

    execution = await run_to_end(start)

    async def begin() -> Run:
        return Run(await remote("plans.run", {"plan": execution.id}), remote)

    plan = await remote("plans.get", {"plan": execution.id})
    calls: tuple[PlannedCall, ...] = revive(tuple[PlannedCall, ...], plan["calls"])
    return ProgramPlan(calls, execution, lambda: run_to_end(begin))


def plan_from(
    told: Mapping[str, Any], code: str | bytes, files: Mapping[str, Content] | None, stdin: str | bytes | None
) -> Plan:
    """The plan in a service's answer ``told`` about a run of ``code`` with ``files`` and ``stdin``, which the answer
    does not repeat. Each secret's value is a mask, and the order of ``waiting`` is empty."""
    from casemate.execution.request import make_request
    from casemate.sessions.inspection import MASK

    given = make_request(code, told["language"], namespace="", files=files, stdin=stdin)
    waiting = told["waiting"]
    plan: Plan = revive_fields(
        Plan,
        told,
        deadline=math.inf if told["deadline"] is None else told["deadline"],
        waiting=waiting if isinstance(waiting, str) else revive_fields(ReadyStart, waiting, order=b""),
        secrets=Secrets(dict.fromkeys(told["secrets"], MASK)),
        code=given.code,
        files=given.files,
        stdin=given.stdin,
    )
    return plan
