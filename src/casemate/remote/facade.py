"""What ``await Sandbox.connect()`` gives: the facade of a sandbox that lives in a service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from casemate.api.options import RunOptions, SessionOptions
from casemate.model.foreign import no_attribute
from casemate.model.limits import Limits
from casemate.model.options import complete, takes_options
from casemate.operations.documents import revive, type_named
from casemate.remote.arguments import limits_of, plain, upload_files
from casemate.remote.client import RemoteOperations, connect
from casemate.remote.parts import (
    Approvals,
    Artifacts,
    Audit,
    Egress,
    Evidence,
    Host,
    Packages,
    Sessions,
    Tools,
    Vault,
    Web,
)
from casemate.remote.runs import Run, plan_program, run_to_end, stream_to_end
from casemate.remote.service import ServiceConnection
from casemate.remote.session import Session

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan
    from casemate.audit import reading as local_audit
    from casemate.execution import egress_request
    from casemate.host import host as local_host
    from casemate.model.diagnosis import Diagnosis
    from casemate.model.events import Event
    from casemate.model.execution import Execution
    from casemate.model.plan import Plan
    from casemate.sessions import packages as local_packages
    from casemate.sessions import registry as local_sessions
    from casemate.tools import tools as local_tools
    from casemate.vault import vault as local_vault
    from casemate.web import web as local_web


class ConnectedSandbox:
    """A sandbox in a running service: the methods of :class:`casemate.Sandbox`, with the same arguments, results and
    errors. It was made by the service, so its policy, limits and namespace are the service's.

    What is awaited there is awaited here. What is not (``session``, ``start``, ``approvals``) blocks for a round trip.
    Closing it closes the connection: sessions and runs that were begun go on, and ``async with`` of a session ends it.
    """

    def __init__(self, remote: RemoteOperations) -> None:
        self.invoke = remote
        self._service = service = ServiceConnection(remote)
        self.sessions = cast("local_sessions.Sessions", Sessions(service))
        self.approvals = Approvals(service)
        self.tools = cast("local_tools.Tools", Tools(service))
        self.vault = cast("local_vault.Vault", Vault(service))
        self.packages = cast("local_packages.Packages", Packages(service))
        self.artifacts = Artifacts(service)
        self.audit = cast("local_audit.Audit", Audit(service))
        self.egress = cast("egress_request.Egress", Egress(service))
        self.evidence = Evidence(service)
        self.host = cast("local_host.Host", Host(service))
        self.web = cast("local_web.Web", Web(service))

    if not TYPE_CHECKING:  # a type checker has its own message

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("ConnectedSandbox", name, dir(type(self)))

    def __repr__(self) -> str:
        return f"<ConnectedSandbox {self.invoke.address}>"

    @takes_options(RunOptions)
    async def run(self, code: str | bytes, **options: Unpack[RunOptions]) -> Execution:
        """See :meth:`casemate.Sandbox.run`. Cancelling ends the cell."""
        return await run_to_end(partial(self._begin, "runs.start", code, complete(RunOptions, options, "run")))

    @takes_options(RunOptions)
    async def stream(self, code: str | bytes, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """See :meth:`casemate.Sandbox.stream`. Leaving early ends the cell."""
        values = complete(RunOptions, options, "stream")
        async with contextlib.aclosing(stream_to_end(partial(self._begin, "runs.start", code, values))) as events:
            async for event in events:
                yield event

    @takes_options(RunOptions)
    def start(self, code: str | bytes, **options: Unpack[RunOptions]) -> Run:
        """See :meth:`casemate.Sandbox.start`: a run that goes on in the service when the caller goes away."""
        values = complete(RunOptions, options, "start")
        started = self._service.block(lambda remote: _call(remote, "runs.start", code, values))
        return Run(started["run"], self._service)

    async def attach(self, run_id: str) -> Run:
        """A run of this caller's that goes on, or is kept. Raises ``InvalidArgument`` where there is none."""
        await self._service.call("runs.get", run=run_id)
        return Run(run_id, self._service)

    @takes_options(SessionOptions)
    def session(self, language: str = "python", **options: Unpack[SessionOptions]) -> Session:
        """See :meth:`casemate.Sandbox.session`. It is open when this returns."""
        values = complete(SessionOptions, options, "session")

        async def open_session(remote: RemoteOperations) -> Any:
            files = await upload_files(remote, values.pop("files"))
            return await remote("sessions.open", plain({"language": language, **values, "files": files}))

        return Session(self._service.block(open_session), self._service)

    async def validate(self, code: str | bytes, language: str = "python", fix: bool = False, **options: Any) -> Any:
        """See :meth:`casemate.Sandbox.validate`."""
        program = plain({"code": code})
        kind = "casemate.model.overview:Validation"
        return await self._service.read(kind, "validate", **program, language=language, fix=fix, **options)

    async def runtimes(self) -> list[Any]:
        """See :meth:`casemate.Sandbox.runtimes`."""
        kind = type_named("casemate.model.overview:RuntimeInfo")
        return [revive(kind, runtime) for runtime in await self._service.call("runtimes")]

    async def stats(self) -> Any:
        """See :meth:`casemate.Sandbox.stats`."""
        return await self._service.read("casemate.model.overview:Stats", "stats")

    async def inspect(self, session: str | Session) -> Any:
        """See :meth:`casemate.Sandbox.inspect`."""
        handle = session if isinstance(session, str) else session.id
        return await self._service.read("casemate.model.overview:Inspection", "inspect", session=handle)

    async def set_limits(self, limits: Limits | None = None, **values: Any) -> Limits:
        """Narrow the limits of whatever this caller runs from now on; those in force. ``values``: single ones."""
        in_force = await self._service.call("set_limits", limits={**(limits_of(limits) or {}), **values})
        return revive(Limits, in_force)  # type: ignore[no-any-return]

    async def doctor(self) -> Diagnosis:
        """See :meth:`casemate.Sandbox.doctor`: what the service's machine offers."""
        return await self._service.read("casemate.model.diagnosis:Diagnosis", "doctor")  # type: ignore[no-any-return]

    @takes_options(RunOptions)
    async def plan(self, code: str | bytes, *, session: object = None, **options: Unpack[RunOptions]) -> ProgramPlan:
        """See :meth:`casemate.Sandbox.plan`. The plan is held in the service, for this caller alone: for an hour after
        its last use, the last 50 of them; ``run`` of one that is held no more raises ``NotFound``."""
        from casemate.api.call_plan import check_no_session

        check_no_session(session)
        return await plan_program(
            self._service, partial(self._begin, "plans.start", code, complete(RunOptions, options, "plan"))
        )

    @takes_options(RunOptions)
    async def explain(self, code: str | bytes, **options: Unpack[RunOptions]) -> Plan:
        """See :meth:`casemate.Sandbox.explain`: paths in it are of the service's machine, so it is for operators alone.
        Values of secrets are masked, and the order of its ``waiting`` is empty."""
        from casemate.remote.explained import plan_from

        values = complete(RunOptions, options, "explain")
        return plan_from(await _call(self.invoke, "explain", code, values), code, values["files"], values["stdin"])

    async def close(self) -> None:
        """Close the connection; what lives in the service goes on. Harmless when repeated."""
        await self.invoke.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _begin(self, operation: str, code: str | bytes, values: Mapping[str, Any]) -> Run:
        return Run((await _call(self.invoke, operation, code, values))["run"], self._service)


async def _call(remote: RemoteOperations, operation: str, code: str | bytes, values: Mapping[str, Any]) -> Any:
    """What ``operation`` answers about a program with these options; large files are uploaded before."""
    files = await upload_files(remote, values["files"])
    document = plain({"code": code, **values, "files": files})
    return await remote(operation, {**document, "timeout": values["timeout"]})


async def connected_sandbox(url: str | None, token: str | None, **options: Any) -> ConnectedSandbox:
    """A sandbox of the service at ``url``, or of the user's own. The arguments and errors are those of
    :func:`casemate.remote.client.connect`."""
    return ConnectedSandbox(await connect(url, token, runs=True, **options))
