"""What ``await Sandbox.connect()`` gives: the facade of a sandbox that lives in a service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from casemate.model.limits import Limits
from casemate.remote.blocking import Blocking
from casemate.remote.client import Remote, connect
from casemate.remote.following import Run, Ways, run_to_end, stream_to_end
from casemate.remote.given import limits_of, plain, uploaded, uploaded_blocking
from casemate.remote.revived import revived, type_named
from casemate.remote.rooms import Approvals, Artifacts, Audit, Egress, Packages, Sessions, Tools, Vault
from casemate.remote.session import Session

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan
    from casemate.execution.request import Content
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.isolation import Diagnosis
    from casemate.model.plan import Plan


class ConnectedSandbox:
    """A sandbox in a running service: the methods of :class:`casemate.Sandbox`, with the same arguments, results and
    errors. It was made by the service, so its policy, limits and namespace are the service's.

    What is awaited there is awaited here. What is not (``session``, ``start``, ``approvals``) blocks for a round trip.
    Closing it closes the connection: sessions and runs that were begun go on, and ``async with`` of a session ends it.
    """

    def __init__(self, remote: Remote) -> None:
        self.invoke = remote
        ways = Ways(remote, Blocking(remote.address, remote.headers))
        self._ways = ways
        self.sessions, self.approvals, self.tools = Sessions(ways), Approvals(ways), Tools(ways)
        self.vault, self.packages, self.artifacts = Vault(ways), Packages(ways), Artifacts(ways)
        self.audit, self.egress = Audit(ways), Egress(ways)

    def __repr__(self) -> str:
        return f"<ConnectedSandbox {self.invoke.address}>"

    async def run(
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
    ) -> Execution:
        """See :meth:`casemate.Sandbox.run`. Cancelling ends the cell."""
        given = {
            "code": code, "language": language, "limits": limits, "allowed_domains": allowed_domains,
            "secrets": secrets, "env": env, "stdin": stdin, "metadata": metadata, "program_name": program_name,
            "arguments": arguments,
        }  # fmt: skip
        return await run_to_end(partial(self._begin, plain(given), timeout, files))

    async def stream(self, code: str | bytes, **arguments: Any) -> AsyncGenerator[Event]:
        """See :meth:`casemate.Sandbox.stream`. Leaving early ends the cell."""
        timeout, files = arguments.pop("timeout", 60.0), arguments.pop("files", None)
        given = plain({"code": code, **arguments})
        events = stream_to_end(partial(self._begin, given, timeout, files))
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def start(self, code: str | bytes, **arguments: Any) -> Run:
        """See :meth:`casemate.Sandbox.start`: a run that goes on in the service when the caller goes away."""
        timeout, files = (
            arguments.pop("timeout", 60.0),
            uploaded_blocking(self._ways.blocking, arguments.pop("files", None)),
        )
        given = plain({"code": code, **arguments, "files": files})
        told = self._ways.blocking.call("runs.start", {**given, "timeout": timeout})
        return Run(told["run"], self._ways)

    async def attach(self, run_id: str) -> Run:
        """A run of this caller's that goes on, or is kept. Raises ``InvalidArgument`` where there is none."""
        await self._ways.call("runs.get", run=run_id)
        return Run(run_id, self._ways)

    def session(
        self, language: str = "python", *, files: Mapping[str, Content] | None = None, **arguments: Any
    ) -> Session:
        """See :meth:`casemate.Sandbox.session`. It is open when this returns."""
        given = plain({"language": language, **arguments, "files": uploaded_blocking(self._ways.blocking, files)})
        return Session(self._ways.blocking.call("sessions.open", given), self._ways)

    async def validate(self, code: str | bytes, language: str = "python", fix: bool = False, **given: Any) -> Any:
        """See :meth:`casemate.Sandbox.validate`."""
        told = await self._ways.call("validate", **plain({"code": code}), language=language, fix=fix, **given)
        return revived(type_named("casemate.model.validation:Validation"), told)

    async def runtimes(self) -> list[Any]:
        """See :meth:`casemate.Sandbox.runtimes`."""
        told = await self._ways.call("runtimes")
        return [revived(type_named("casemate.model.overview:RuntimeInfo"), one) for one in told]

    async def stats(self) -> Any:
        """See :meth:`casemate.Sandbox.stats`."""
        return revived(type_named("casemate.model.overview:Stats"), await self._ways.call("stats"))

    async def inspect(self, session: str | Session) -> Any:
        """See :meth:`casemate.Sandbox.inspect`."""
        of = session if isinstance(session, str) else session.id
        told = await self._ways.call("inspect", session=of)
        return revived(type_named("casemate.model.overview:Inspection"), told)

    async def set_limits(self, limits: Limits | None = None, **given: Any) -> Limits:
        """Narrow the limits of whatever this caller runs from now on; those in force. ``given``: single ones."""
        told = await self._ways.call("set_limits", limits={**(limits_of(limits) or {}), **given})
        return revived(Limits, told)  # type: ignore[no-any-return]

    async def doctor(self) -> Diagnosis:
        """See :meth:`casemate.Sandbox.doctor`: what the service's machine offers."""
        kind = type_named("casemate.model.isolation:Diagnosis")
        return revived(kind, await self._ways.call("doctor"))  # type: ignore[no-any-return]

    async def plan(
        self,
        code: str | bytes,
        *,
        files: Mapping[str, Content] | None = None,
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the cell's, not the call's
        session: object = None,
        **arguments: Any,
    ) -> ProgramPlan:
        """See :meth:`casemate.Sandbox.plan`. The plan is held in the service, for this caller alone: for an hour after
        its last use, the last 50 of them; ``run`` of one that is held no more raises ``NotFound``."""
        from casemate.api.planning import check_no_session
        from casemate.remote.planned import planned

        check_no_session(session)
        given = plain({"code": code, **arguments})
        return await planned(self._ways, partial(self._begin, given, timeout, files, "plans.start"))

    async def explain(
        self,
        code: str | bytes,
        *,
        files: Mapping[str, Content] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the cell's, not the call's
        **arguments: Any,
    ) -> Plan:
        """See :meth:`casemate.Sandbox.explain`: paths in it are of the service's machine, so it is for operators alone.
        Values of secrets are masked, and the order of its ``waiting`` is empty."""
        from casemate.remote.explained import plan_from

        given = plain({"code": code, "stdin": stdin, **arguments})
        return plan_from(await self._asked("explain", given, timeout, files), code, files, stdin)

    async def close(self) -> None:
        """Close the connection; what lives in the service goes on. Harmless when repeated."""
        await self.invoke.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _begin(
        self,
        given: Mapping[str, Any],
        within: float | None,
        files: Mapping[str, Content] | None,
        operation: str = "runs.start",
    ) -> Run:
        told = await self._asked(operation, given, within, files)
        return Run(told["run"], self._ways)

    async def _asked(
        self, operation: str, given: Mapping[str, Any], within: float | None, files: Mapping[str, Content] | None
    ) -> Any:
        """What ``operation`` answers about a program with ``files``, which are sent ahead where they are large."""
        ahead = await uploaded(self.invoke, files)
        more = {"files": ahead} if ahead is not None else {}
        return await self.invoke(operation, {**given, **more, "timeout": within})


async def connected_sandbox(url: str | None, token: str | None, **given: Any) -> ConnectedSandbox:
    """A sandbox of the service at ``url``, or of the user's own. The arguments and errors are those of
    :func:`casemate.remote.client.connect`."""
    return ConnectedSandbox(await connect(url, token, **given))
