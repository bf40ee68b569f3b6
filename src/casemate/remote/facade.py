"""What ``await Sandbox.connect()`` gives: the facade of a sandbox that lives in a service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from casemate.api.options import RunOptions, SessionOptions
from casemate.model.foreign import no_attribute
from casemate.model.limits import Limits
from casemate.model.options import complete, takes_options
from casemate.operations.documents import revive, type_named
from casemate.remote.blocking import BlockingHttp
from casemate.remote.client import RemoteOperations, connect
from casemate.remote.following import Run, Ways, run_to_end, stream_to_end
from casemate.remote.given import limits_of, plain, upload_files, uploaded_blocking
from casemate.remote.parts import Approvals, Artifacts, Audit, Egress, Packages, Sessions, Tools, Vault
from casemate.remote.session import Session

if TYPE_CHECKING:
    from casemate.api.call_plan import ProgramPlan
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

    def __init__(self, remote: RemoteOperations) -> None:
        self.invoke = remote
        ways = Ways(remote, BlockingHttp(remote.address, remote.headers))
        self._ways = ways
        self.sessions, self.approvals, self.tools = Sessions(ways), Approvals(ways), Tools(ways)
        self.vault, self.packages, self.artifacts = Vault(ways), Packages(ways), Artifacts(ways)
        self.audit, self.egress = Audit(ways), Egress(ways)

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
        files = uploaded_blocking(self._ways.blocking, values.pop("files"))
        document = {**plain({"code": code, **values, "files": files}), "timeout": values["timeout"]}
        return Run(self._ways.blocking.call("runs.start", document)["run"], self._ways)

    async def attach(self, run_id: str) -> Run:
        """A run of this caller's that goes on, or is kept. Raises ``InvalidArgument`` where there is none."""
        await self._ways.call("runs.get", run=run_id)
        return Run(run_id, self._ways)

    @takes_options(SessionOptions)
    def session(self, language: str = "python", **options: Unpack[SessionOptions]) -> Session:
        """See :meth:`casemate.Sandbox.session`. It is open when this returns."""
        values = complete(SessionOptions, options, "session")
        files = uploaded_blocking(self._ways.blocking, values.pop("files"))
        document = plain({"language": language, **values, "files": files})
        return Session(self._ways.blocking.call("sessions.open", document), self._ways)

    async def validate(self, code: str | bytes, language: str = "python", fix: bool = False, **given: Any) -> Any:
        """See :meth:`casemate.Sandbox.validate`."""
        told = await self._ways.call("validate", **plain({"code": code}), language=language, fix=fix, **given)
        return revive(type_named("casemate.model.overview:Validation"), told)

    async def runtimes(self) -> list[Any]:
        """See :meth:`casemate.Sandbox.runtimes`."""
        told = await self._ways.call("runtimes")
        return [revive(type_named("casemate.model.overview:RuntimeInfo"), one) for one in told]

    async def stats(self) -> Any:
        """See :meth:`casemate.Sandbox.stats`."""
        return revive(type_named("casemate.model.overview:Stats"), await self._ways.call("stats"))

    async def inspect(self, session: str | Session) -> Any:
        """See :meth:`casemate.Sandbox.inspect`."""
        of = session if isinstance(session, str) else session.id
        told = await self._ways.call("inspect", session=of)
        return revive(type_named("casemate.model.overview:Inspection"), told)

    async def set_limits(self, limits: Limits | None = None, **given: Any) -> Limits:
        """Narrow the limits of whatever this caller runs from now on; those in force. ``given``: single ones."""
        told = await self._ways.call("set_limits", limits={**(limits_of(limits) or {}), **given})
        return revive(Limits, told)  # type: ignore[no-any-return]

    async def doctor(self) -> Diagnosis:
        """See :meth:`casemate.Sandbox.doctor`: what the service's machine offers."""
        kind = type_named("casemate.model.isolation:Diagnosis")
        return revive(kind, await self._ways.call("doctor"))  # type: ignore[no-any-return]

    @takes_options(RunOptions)
    async def plan(self, code: str | bytes, *, session: object = None, **options: Unpack[RunOptions]) -> ProgramPlan:
        """See :meth:`casemate.Sandbox.plan`. The plan is held in the service, for this caller alone: for an hour after
        its last use, the last 50 of them; ``run`` of one that is held no more raises ``NotFound``."""
        from casemate.api.call_plan import check_no_session
        from casemate.remote.planned import plan_program

        check_no_session(session)
        return await plan_program(
            self._ways, partial(self._begin, "plans.start", code, complete(RunOptions, options, "plan"))
        )

    @takes_options(RunOptions)
    async def explain(self, code: str | bytes, **options: Unpack[RunOptions]) -> Plan:
        """See :meth:`casemate.Sandbox.explain`: paths in it are of the service's machine, so it is for operators alone.
        Values of secrets are masked, and the order of its ``waiting`` is empty."""
        from casemate.remote.explained import plan_from

        values = complete(RunOptions, options, "explain")
        return plan_from(await self._call("explain", code, values), code, values["files"], values["stdin"])

    async def close(self) -> None:
        """Close the connection; what lives in the service goes on. Harmless when repeated."""
        await self.invoke.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _begin(self, operation: str, code: str | bytes, values: Mapping[str, Any]) -> Run:
        return Run((await self._call(operation, code, values))["run"], self._ways)

    async def _call(self, operation: str, code: str | bytes, values: Mapping[str, Any]) -> Any:
        """What ``operation`` answers about a program with these options; large files are uploaded before."""
        files = await upload_files(self.invoke, values["files"])
        document = plain({"code": code, **values, "files": files})
        return await self.invoke(operation, {**document, "timeout": values["timeout"]})


async def connected_sandbox(url: str | None, token: str | None, **given: Any) -> ConnectedSandbox:
    """A sandbox of the service at ``url``, or of the user's own. The arguments and errors are those of
    :func:`casemate.remote.client.connect`."""
    return ConnectedSandbox(await connect(url, token, **given))
