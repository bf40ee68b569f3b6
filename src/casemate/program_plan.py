"""What a program would call, found out before anybody allows it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.background import begin
from casemate.errors import PlanDenied
from casemate.execution import pipeline
from casemate.execution.asking import asking
from casemate.execution.request import new_id
from casemate.model.approval import Question
from casemate.tools.broker import Broker
from casemate.tools.calls import Foreseen

if TYPE_CHECKING:
    from casemate.execution.emitter import Emitter
    from casemate.execution.house import House
    from casemate.model.execution import Execution
    from casemate.model.limits import Limits
    from casemate.model.request import Request
    from casemate.rooms import Rooms
    from casemate.sessions.long_run import Run


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a tool that was not made. ``arguments``: exactly those that it would have had."""

    server: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """What a program did in a throwaway cell in which only calls that a rule allows were made.

    ``calls``: those that it would have made besides, in order; each gave it an empty answer, so what it did after the
    first may differ from what it will do. ``execution``: the outcome of that; what it changed in files is thrown away.
    """

    calls: tuple[PlannedCall, ...]
    execution: Execution
    _request: Request = field(repr=False)
    _questions: tuple[Question, ...] = field(repr=False)
    _rooms: Rooms = field(repr=False)

    async def run(self) -> Execution:
        """Have the whole list decided once (a request of kind "plan"), and run the program with exactly these calls
        allowed, each as often as it is in the list; any other asks, as ever.

        Raises :class:`PlanDenied` where it is not allowed, and as ``Sandbox.run``.
        """
        return await self._done(replace(self._request, id=new_id()))

    async def _done(self, request: Request, emitter: Emitter | None = None) -> Execution:
        await self._be_allowed(request, emitter)
        own = [replace(question, namespace=request.namespace, run=request.id) for question in self._questions]
        async with self._rooms.slot():
            self._rooms.check_open()
            self._rooms.approvals.grant(own, "plan")
            return await pipeline.execute(request, self._rooms.house, emitter)

    async def _be_allowed(self, request: Request, emitter: Emitter | None) -> None:
        """Raises :class:`PlanDenied`."""
        calls = [{"server": call.server, "tool": call.tool, "arguments": call.arguments} for call in self.calls]
        summary = f"run a program that makes {len(calls)} calls of tools"
        question = Question("plan", summary, {"program": _described(request), "calls": calls})
        async with asking(self._rooms.house, request, emitter) as asker:
            verdict = await asyncio.wrap_future(asker.decide(question))
        if not verdict.allow:
            raise PlanDenied(verdict.reason or f"nobody allowed it ({verdict.by})")


class Trial(NamedTuple):
    """A program that is tried out as a run that goes on by itself. ``plan``: what there is to be planned, given the
    outcome of that; ``size``: about how many bytes it holds until then and as long as it is kept."""

    run: Run
    plan: Callable[[Execution], ProgramPlan]
    size: int


def _described(request: Request) -> dict[str, Any]:
    """The program as it is shown: what it is, and what it is given besides."""
    given = {
        "files": sorted(request.files),
        "secrets": sorted(request.secrets.names),
        "allowed_domains": list(request.allowed_domains or ()),
    }
    code = {"language": request.language, "sha256": hashlib.sha256(request.code).hexdigest()}
    return code | {name: one for name, one in given.items() if one}


async def foresee(request: Request, rooms: Rooms) -> ProgramPlan:
    """What ``request``'s program would call. Raises as ``Sandbox.run``."""
    foreseen = Foreseen()
    return _planned(request, rooms, foreseen, await _tried(request, rooms, foreseen))


def begin_trial(request: Request, rooms: Rooms) -> Trial:
    """The same, going on by itself. Raises ``QueueFull``."""
    foreseen = Foreseen()
    run = begin(request, rooms, partial(_tried, request, rooms, foreseen))
    files = sum(len(content) for content in request.files.values() if isinstance(content, bytes))
    size = len(request.code) + len(request.stdin) + files
    return Trial(run, partial(_planned, request, rooms, foreseen), size)


def begin_planned(plan: ProgramPlan, within: Limits | None) -> Run:
    """What :meth:`ProgramPlan.run` does, going on by itself. ``within``: limits that narrow those of the plan, None for
    no more than these. Raises ``QueueFull``."""
    asked = plan._request.limits
    narrow = within if asked is None else asked.narrowed(within)
    request = replace(plan._request, id=new_id(), limits=narrow)
    return begin(request, plan._rooms, partial(plan._done, request))


async def _tried(request: Request, rooms: Rooms, foreseen: Foreseen, emitter: Emitter | None = None) -> Execution:
    async with rooms.slot():
        rooms.check_open()
        return await pipeline.execute(request, _throwaway(rooms.house, foreseen), emitter)


def _throwaway(house: House, foreseen: Foreseen) -> House:
    """One in which nobody is asked, calls are only foreseen, and nothing is kept."""
    offers = tuple(
        replace(offer, foreseen=foreseen) if isinstance(offer, Broker) else offer for offer in house.offers()
    )
    workspace_mode = "overlay" if house.workspace else house.workspace_mode
    return replace(
        house, offers=lambda: offers, asks=False, keeps=False, workspace_mode=workspace_mode, output_dir=None
    )


def _planned(request: Request, rooms: Rooms, foreseen: Foreseen, execution: Execution) -> ProgramPlan:
    calls = tuple(PlannedCall(one.server, one.tool, dict(one.arguments)) for one in foreseen.calls)
    return ProgramPlan(calls, execution, request, foreseen.calls, rooms)
