"""What would come of a program, told before it is run: the facade's part that looks ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from casemate.errors import Unavailable

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan, Trial
    from casemate.api.wiring import Rooms
    from casemate.execution.request import Content
    from casemate.model.limits import Limits
    from casemate.model.plan import Plan
    from casemate.model.request import Request
    from casemate.model.secrets import Secrets
    from casemate.sessions.session import Session


class Planning:
    """Of a :class:`casemate.Sandbox`."""

    _rooms: Rooms

    if TYPE_CHECKING:  # the other half's

        async def _held(self, names: object) -> Secrets: ...

        def _request(self, code: str | bytes, *, language: str, **given: Any) -> Request: ...

    async def plan(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the cell's, not the call's
        limits: Limits | None = None,
        allowed_domains: Sequence[str] | None = None,
        secrets: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Content] | None = None,
        stdin: str | bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
        program_name: str | None = None,
        arguments: Sequence[str] = (),
        session: Session | None = None,
    ) -> ProgramPlan:
        """What a program would call: it is run in a throwaway cell in which only calls that a rule allows are made, and
        all others are noted down instead of asking anybody. ``await plan.run()`` has the list decided at once, and runs
        the program with exactly those calls. The arguments are those of :meth:`run`, and so is what it raises;
        ``Unavailable`` for a ``session``, whose state a throwaway cell would not have.
        """
        check_no_session(session)
        request = self._request(
            code, language=language, timeout=timeout, limits=limits, allowed_domains=allowed_domains,
            secrets=await self._held(secrets), env=env, files=files, stdin=stdin, metadata=metadata,
            program_name=program_name, arguments=arguments,
        )  # fmt: skip
        from casemate.api.call_plan import foresee

        return await foresee(request, self._rooms)

    async def explain(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        timeout: float | None = 60.0,  # noqa: ASYNC109
        limits: Limits | None = None,
        secrets: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Content] | None = None,
        stdin: str | bytes | None = None,
        program_name: str | None = None,
        arguments: Sequence[str] = (),
    ) -> Plan:
        """The plan of a run with these arguments of :meth:`run`, as data. Nothing is started."""
        request = self._request(
            code, language=language, timeout=timeout, limits=limits, secrets=await self._held(secrets), env=env,
            files=files, stdin=stdin, metadata=None, program_name=program_name, arguments=arguments,
        )  # fmt: skip
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


def try_out(sandbox: Planning, code: str | bytes, *, secrets: Secrets, **given: Any) -> Trial:
    """Begin to find out what a program would call, as a run that goes on by itself. ``secrets``: those that it has;
    ``given``: the other arguments of :meth:`Planning.plan`. Raises as that does, and ``QueueFull``."""
    from casemate.api.call_plan import begin_trial

    return begin_trial(sandbox._request(code, secrets=secrets, **given), sandbox._rooms)
