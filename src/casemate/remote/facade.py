"""The facade of a sandbox in a service: what ``await Sandbox.connect()`` returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from casemate.api.options import RunOptions, SessionOptions
from casemate.model.limits import Limits
from casemate.model.options import takes_options
from casemate.operations import PARTS
from casemate.operations.documents import revive, type_named
from casemate.remote.client import RemoteOperations, connect
from casemate.remote.methods import RemotePart, call_with_options, limits_of
from casemate.remote.parts import CLASSES
from casemate.remote.runs import Run, plan_from, plan_program, run_to_end, stream_to_end
from casemate.remote.session import Session as RemoteSession

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan
    from casemate.approvals.approvals import Approvals
    from casemate.artifacts.kept import Artifacts
    from casemate.audit.reading import Audit
    from casemate.execution.egress_request import Egress
    from casemate.execution.evidence import Evidence
    from casemate.host.host import Host
    from casemate.model.diagnosis import Diagnosis
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.overview import Inspection, RuntimeInfo, Stats, Validation
    from casemate.model.plan import Plan
    from casemate.sessions.packages import Packages
    from casemate.sessions.registry import Sessions
    from casemate.sessions.session import Session
    from casemate.tools.tools import Tools
    from casemate.vault.vault import Vault
    from casemate.web.web import Web


class ConnectedSandbox(RemotePart):
    """A sandbox in a running service: the methods of :class:`casemate.Sandbox`, with the same arguments, results and
    errors. The service made it, so its policy, limits and namespace are the service's.

    What is awaited there is awaited here. Other methods (``session``, ``start``, ``approvals``) block for a round trip.
    Closing it closes the connection. Its sessions and runs continue; ``async with`` of a session ends the session.
    """

    approvals: Approvals
    artifacts: Artifacts
    audit: Audit
    egress: Egress
    evidence: Evidence
    host: Host
    packages: Packages
    sessions: Sessions
    tools: Tools
    vault: Vault
    web: Web
    also = ("inspect",)

    if TYPE_CHECKING:  # methods that only invoke an operation

        async def validate(
            self, code: str | bytes, language: str = "python", fix: bool = False, *, session: bool = False
        ) -> Validation: ...
        async def runtimes(self) -> list[RuntimeInfo]: ...
        async def stats(self) -> Stats: ...
        async def inspect(self, session: str | Session) -> Inspection: ...

    def __init__(self, remote: RemoteOperations) -> None:
        super().__init__(remote, "casemate.api.sandbox:Sandbox")
        self.invoke = remote
        for name, local in PARTS.items():
            setattr(self, name, CLASSES.get(name, RemotePart)(remote, local, f"{name}."))

    def __repr__(self) -> str:
        return f"<ConnectedSandbox {self.invoke.address}>"

    @takes_options(RunOptions)
    async def run(self, code: str | bytes, **options: Unpack[RunOptions]) -> Execution:
        """See :meth:`casemate.Sandbox.run`. Cancelling ends the cell."""
        return await run_to_end(partial(self._start, "run", code, options))

    @takes_options(RunOptions)
    def stream(self, code: str | bytes, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """See :meth:`casemate.Sandbox.stream`. Leaving early ends the cell."""
        return stream_to_end(partial(self._start, "stream", code, options))

    @takes_options(RunOptions)
    def start(self, code: str | bytes, **options: Unpack[RunOptions]) -> Run:
        """See :meth:`casemate.Sandbox.start`. The run continues in the service when the caller goes away."""
        return self._remote.block(partial(self._start, "start", code, options))

    async def attach(self, run_id: str) -> Run:
        """A running or kept run of this caller. Raises ``InvalidArgument`` if there is none."""
        return Run(await self._remote("runs.get", {"run": run_id}), self._remote)

    @takes_options(SessionOptions)
    def session(self, language: str = "python", **options: Unpack[SessionOptions]) -> Session:
        """See :meth:`casemate.Sandbox.session`. It is open when this returns."""
        opened = self._remote.block(
            lambda remote: call_with_options(
                remote, "sessions.open", "session", SessionOptions, options, language=language
            )
        )
        return cast("Session", RemoteSession(opened, self._remote))

    async def set_limits(self, limits: Limits | None = None, **values: Any) -> Limits:
        """Narrow the limits of all later runs of this caller. ``values``: single limits. Returns the limits in
        force."""
        given = {} if limits is None else limits_of(limits)
        in_force = await self._remote("set_limits", {"limits": {**given, **values}})
        return cast("Limits", revive(Limits, in_force))

    async def doctor(self) -> Diagnosis:
        """See :meth:`casemate.Sandbox.doctor`: what the service's machine offers."""
        kind = type_named("casemate.model.diagnosis:Diagnosis")
        return cast("Diagnosis", revive(kind, await self._remote("doctor")))

    @takes_options(RunOptions)
    async def plan(self, code: str | bytes, *, session: object = None, **options: Unpack[RunOptions]) -> ProgramPlan:
        """See :meth:`casemate.Sandbox.plan`. The service holds the last 50 plans for this caller only, each until an
        hour after its last use. ``run`` of a plan that it no longer holds raises ``NotFound``."""
        from casemate.api.call_plan import check_no_session

        check_no_session(session)
        return await plan_program(self._remote, partial(self._start, "plan", code, options, operation="plans.start"))

    @takes_options(RunOptions)
    async def explain(self, code: str | bytes, **options: Unpack[RunOptions]) -> Plan:
        """See :meth:`casemate.Sandbox.explain`. For operators only, because it contains paths of the service's machine.
        Values of secrets are masked, and the order of its ``waiting`` is empty."""
        told = await call_with_options(self.invoke, "explain", "explain", RunOptions, options, code=code)
        return plan_from(told, code, options.get("files"), options.get("stdin"))

    async def close(self) -> None:
        """Close the connection. Sessions and runs in the service continue."""
        await self.invoke.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _start(
        self,
        call: str,
        code: str | bytes,
        options: Mapping[str, Any],
        remote: RemoteOperations | None = None,
        operation: str = "runs.start",
    ) -> Run:
        state = await call_with_options(remote or self.invoke, operation, call, RunOptions, options, code=code)
        return Run(state, self._remote)


async def connected_sandbox(url: str | None, token: str | None, **options: Any) -> ConnectedSandbox:
    """A sandbox of the service at ``url``, or of the user's service. Arguments and errors are those of
    :func:`casemate.remote.client.connect`."""
    return ConnectedSandbox(await connect(url, token, runs=True, **options))
