"""What a program would call, found out before anybody allows it."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from casemate.approvals.asker import Of
from casemate.errors import PlanDenied
from casemate.execution import pipeline
from casemate.execution.request import new_id
from casemate.model.approval import Question
from casemate.tools.broker import Broker
from casemate.tools.calls import Foreseen

if TYPE_CHECKING:
    from casemate.model.execution import Execution
    from casemate.model.request import Request
    from casemate.rooms import Rooms


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
        request = replace(self._request, id=new_id())
        await self._be_allowed(request)
        own = [replace(question, namespace=request.namespace, run=request.id) for question in self._questions]
        self._rooms.approvals.grant(own, "plan")
        async with self._rooms.slot():
            self._rooms.check_open()
            return await pipeline.execute(request, self._rooms.house)

    async def _be_allowed(self, request: Request) -> None:
        """Raises :class:`PlanDenied`."""
        asker = self._rooms.approvals.asker(Of(request.namespace, None, request.id), None)
        calls = [{"server": call.server, "tool": call.tool, "arguments": call.arguments} for call in self.calls]
        summary = f"run a program that makes {len(calls)} calls of tools"
        try:
            question = Question("plan", summary, {"program": _described(request), "calls": calls})
            verdict = await asyncio.wrap_future(asker.decide(question))
        finally:
            await asker.end()
        if not verdict.allow:
            raise PlanDenied(verdict.reason or f"nobody allowed it ({verdict.by})")


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
    house = rooms.house
    offers = tuple(
        replace(offer, foreseen=foreseen) if isinstance(offer, Broker) else offer for offer in house.offers()
    )
    workspace_mode = "overlay" if house.workspace else house.workspace_mode
    throwaway = replace(
        house, offers=lambda: offers, asks=False, keeps=False, workspace_mode=workspace_mode, output_dir=None
    )
    async with rooms.slot():
        rooms.check_open()
        execution = await pipeline.execute(request, throwaway)
    calls = tuple(PlannedCall(one.server, one.tool, dict(one.arguments)) for one in foreseen.calls)
    return ProgramPlan(calls, execution, request, foreseen.calls, rooms)
