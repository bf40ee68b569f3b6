"""Runs of a service, followed to their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from casemate.api.call_plan import PlannedCall, ProgramPlan
from casemate.errors import CasemateError, InvalidArgument
from casemate.model.approval import ApprovalRequest as LocalRequest
from casemate.model.approval import Decision
from casemate.model.call_options import DecisionOptions
from casemate.model.events import Done, Event, request_of
from casemate.model.execution import Prover
from casemate.model.options import complete, takes_options
from casemate.operations.documents import error_from, event_of, execution_of
from casemate.remote.service import ServiceConnection

if TYPE_CHECKING:
    from casemate.model.execution import Execution

_EACH = 45.0  # seconds of one request that waits
_BEGINS_WITHIN = 1.0  # seconds that a run has to begin when nobody waits for it any more
_ENDS_WITHIN = 30.0  # seconds that a service has to end a run nobody waits for


class ApprovalRequest(LocalRequest):
    """One of a service's. Answering it is a request to that: raises what the service says, such as ``Denied`` for those
    who may not."""

    __slots__ = ()

    @takes_options(DecisionOptions)
    async def approve(self, **options: Unpack[DecisionOptions]) -> bool:
        """See :meth:`casemate.ApprovalRequest.approve`."""
        decision = Decision(True, **complete(DecisionOptions, options, "approve"))
        return await asyncio.to_thread(self._decide, decision)

    async def deny(self, reason: str = "") -> bool:
        """See :meth:`casemate.ApprovalRequest.deny`."""
        return await asyncio.to_thread(self._decide, Decision(reason=reason))


def request_from(service: ServiceConnection, source: Mapping[str, Any]) -> ApprovalRequest:
    """A request for approval from its document, which can be answered."""
    request = request_of(source)
    values = {name: getattr(request, name) for name in LocalRequest.__slots__ if not name.startswith("_")}
    return ApprovalRequest(**values, _answer=partial(decide, service, request.id))


def decide(service: ServiceConnection, request: str, decision: Decision) -> bool:
    """Answer a request; blocks. Raises what the service says."""
    values = {name: getattr(decision, name) for name in Decision.__slots__}
    answer = {name: value for name, value in values.items() if value is not None}
    is_answered: bool = service.call_blocking("approvals.decide", {"request": request, **answer})
    return is_answered


class Run:
    """A run that goes on in the service, whoever follows it. ``id`` is that of its execution."""

    def __init__(self, run: str, service: ServiceConnection) -> None:
        self.id = run
        self._service = service

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def stream(self, cursor: int = 0) -> AsyncGenerator[Event]:
        """Events from the one with number ``cursor`` on, counted from 0, as they happen; ``Done`` is the last. Leaving
        changes nothing. Raises what the service says."""
        if isinstance(cursor, bool) or not isinstance(cursor, int) or cursor < 0:
            raise InvalidArgument("cursor", f"{cursor!r} is not the number of an event, counted from 0")
        async with contextlib.aclosing(
            self._service.remote.stream("runs.stream", {"run": self.id, "cursor": cursor})
        ) as events:
            async for event in events:
                if event["event"] == "approval":
                    yield request_from(self._service, event["request"])
                else:
                    one = event_of(event, self._service.content)
                    yield Done(self._signable(one.execution)) if isinstance(one, Done) else one

    def _signable(self, execution: Execution) -> Execution:
        return replace(execution, prover=Prover(self._service.sign))

    async def wait(self) -> Execution:
        """The outcome, once it is over. Raises what became of it, where it has none."""
        seen: list[str] = []
        while True:
            state = await self._service.call("runs.wait", run=self.id, seconds=_EACH, told=seen)
            if state["status"] == "done":
                return self._outcome(state)
            seen = [one["id"] for one in state["approvals"]]

    async def cancel(self) -> None:
        """End it, and wait for its end; a step is interrupted. Harmless when it is over."""
        await self._service.call("runs.cancel", run=self.id)

    def _outcome(self, state: Mapping[str, Any]) -> Execution:
        if state["execution"] is None:
            raise error_from(state["error"] or {})
        return self._signable(execution_of(state["execution"], self._service.content))


async def run_to_end(start: Callable[[], Awaitable[Run]]) -> Execution:
    """Begin a run and wait for it; being cancelled ends it, too."""
    run = await _begin(start)
    try:
        return await run.wait()
    except asyncio.CancelledError:
        await _cancel(run)
        raise


async def stream_to_end(start: Callable[[], Awaitable[Run]]) -> AsyncGenerator[Event]:
    """Begin a run and follow its events; leaving early ends it."""
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
    """The run, which is ended when nobody waits for its beginning any more."""
    beginning = asyncio.ensure_future(start())  # noqa: TID251 - waited for below, whatever happens
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([beginning], timeout=_BEGINS_WITHIN)
        finally:
            beginning.cancel()  # it waits for somebody to allow a secret
        with contextlib.suppress(CasemateError, asyncio.CancelledError):  # it never began
            await _cancel(await beginning)
        raise


async def _cancel(run: Run) -> None:
    """Have it end; a service that is gone has ended it itself."""
    with contextlib.suppress(CasemateError, TimeoutError):
        async with asyncio.timeout(_ENDS_WITHIN):
            await run.cancel()


async def plan_program(service: ServiceConnection, start: Callable[[], Awaitable[Run]]) -> ProgramPlan:
    """The plan of a program that ``start`` has the service try out; being cancelled ends that, too."""
    execution = await run_to_end(start)

    async def begin() -> Run:
        return Run((await service.call("plans.run", plan=execution.id))["run"], service)

    plan = await service.call("plans.get", plan=execution.id)
    calls = tuple(PlannedCall(call["server"], call["tool"], call["arguments"]) for call in plan["calls"])
    return ProgramPlan(calls, execution, lambda: run_to_end(begin))
