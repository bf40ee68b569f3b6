"""What would come of a program, told before it is run: the facade's part that looks ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from casemate.api.options import RunOptions
from casemate.errors import Unavailable
from casemate.model.options import complete, takes_options

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan, Trial
    from casemate.api.wiring import Rooms
    from casemate.model.plan import Plan
    from casemate.model.request import Request
    from casemate.sessions.session import Session


class Planning:
    """Of a :class:`casemate.Sandbox`."""

    _rooms: Rooms

    if TYPE_CHECKING:  # the other half's

        async def _resolved_request(self, call: str, code: str | bytes, options: Mapping[str, Any]) -> Request: ...

        def _request(self, code: str | bytes, *, language: str, **options: Any) -> Request: ...

    @takes_options(RunOptions)
    async def plan(
        self, code: str | bytes, *, session: Session | None = None, **options: Unpack[RunOptions]
    ) -> ProgramPlan:
        """What a program would call: it is run in a throwaway cell in which only calls that a rule allows are made, and
        all others are noted down instead of asking anybody. ``await plan.run()`` has the list decided at once, and runs
        the program with exactly those calls. The options are those of :meth:`run`, and so is what it raises;
        ``Unavailable`` for a ``session``, whose state a throwaway cell would not have.
        """
        check_no_session(session)
        request = await self._resolved_request("plan", code, options)
        from casemate.api.call_plan import foresee

        return await foresee(request, self._rooms)

    @takes_options(RunOptions)
    async def explain(self, code: str | bytes, **options: Unpack[RunOptions]) -> Plan:
        """The plan of a run with these options of :meth:`run`, as data. Nothing is started."""
        request = await self._resolved_request("explain", code, options)
        from casemate.execution import guarding, pipeline

        house = self._rooms.house
        return pipeline.explain(request, house, await guarding.hidden_in(house))


def check_no_session(session: object) -> None:
    """Raises ``Unavailable`` for one."""
    if session is not None:
        raise Unavailable(
            "session: the state of a session that lives cannot be copied, so nothing can be tried out in it",
            remediation="Leave session out, and give the program what it needs as files.",
        )


def try_out(sandbox: Planning, code: str | bytes, options: Mapping[str, Any]) -> Trial:
    """Begin to find out what a program would call, as a run that goes on by itself. ``options``: those of
    :meth:`Planning.plan`, with secrets resolved. Raises as that does, and ``QueueFull``."""
    from casemate.api.call_plan import begin_trial

    return begin_trial(sandbox._request(code, **complete(RunOptions, options, "plan")), sandbox._rooms)
