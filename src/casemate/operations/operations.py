"""One namespace's sandbox with its sessions and runs by handle: the object that operations are called on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Self, Unpack

from casemate.api.options import RunOptions
from casemate.api.sandbox import Sandbox
from casemate.model.diagnosis import Diagnosis
from casemate.model.execution import Execution
from casemate.model.kinds import Code, Name
from casemate.model.limits import Limits
from casemate.model.operation import Audience, Principal, operation
from casemate.model.options import takes_options
from casemate.model.overview import Inspection
from casemate.model.plan import Plan
from casemate.operations.agents import AgentOperations
from casemate.operations.approvals import ApprovalOperations
from casemate.operations.files import ArchiveOperations, ArtifactOperations, FileOperations
from casemate.operations.plans import PlanOperations
from casemate.operations.runs import RunOperations
from casemate.operations.sessions import SessionOperations
from casemate.operations.shared import Shared
from casemate.operations.stores import FolderStore


@dataclass(frozen=True, slots=True)
class Activity:
    """Counts of unfinished runs, of those that wait for an approval, and of open sessions."""

    runs: int
    waiting: int
    sessions: int


class Operations:
    """All operations of a sandbox, by group. Use it in the event loop of ``sandbox``, which its maker closes. While it
    is open, requests wait for an answer of its callers."""

    agents: AgentOperations
    approvals: ApprovalOperations
    archives: ArchiveOperations
    artifacts: ArtifactOperations
    files: FileOperations
    plans: PlanOperations
    runs: RunOperations
    sandbox: Sandbox
    sessions: SessionOperations

    def __init__(
        self, sandbox: Sandbox, store: FolderStore | None = None, *, idle_timeout: float | None = 3600.0
    ) -> None:
        """``store``: keeps finished runs; None for temporary files. ``idle_timeout``: seconds without use after which a
        session ends, unless it sets its own."""
        self._shared = Shared(sandbox, store, idle_timeout)
        self.sandbox, self.kept, self.uploads = sandbox, self._shared.kept, self._shared.uploads
        self.sessions = SessionOperations(self._shared)
        self.runs = RunOperations(self._shared, self.sessions)
        self.plans = PlanOperations(self._shared, self.runs)
        self.approvals = ApprovalOperations(self._shared, self.sessions)
        self.archives = ArchiveOperations(self._shared, self.sessions)
        self.artifacts = ArtifactOperations(self._shared, self.sessions)
        self.files = FileOperations(self._shared, self.sessions)
        self.agents = AgentOperations(self._shared, self.sessions)
        self._watch = contextlib.ExitStack()
        self._watch.enter_context(sandbox.approvals.open())

    async def load(self) -> Self:
        """Load what an earlier process left in the store. Raises ``OSError``."""
        await self.kept.load()
        await self.uploads.load()
        return self

    @operation(audience=Audience.AGENT)
    @takes_options(RunOptions)
    async def run(self, code: Code, *, principal: Principal, **options: Unpack[RunOptions]) -> Execution:
        """Run a program once, in a fresh cell, and return its outcome. The run ends if the caller goes away.

        ``code``: the program.
        """
        run = await self.runs.start(code, principal=principal, **options)
        return await self.runs.outcome(run.run, principal)

    @operation()
    @takes_options(RunOptions)
    async def explain(self, code: Code, *, principal: Principal, **options: Unpack[RunOptions]) -> Plan:
        """The plan of a run with these arguments: all that is decided before its cell starts. It starts nothing.

        It names paths of the machine that casemate runs on. It omits values of secrets, and the inputs: the program,
        contents of files, standard input.

        ``code``: the program.
        """
        options["limits"] = self._shared.limits_for(principal, options.get("limits"))
        plan = await self.sandbox.explain(code, **options)
        return replace(plan, layers=plan.held_by)

    @operation()
    async def doctor(self) -> Diagnosis:
        """What this machine offers, as proved by self-tests."""
        return await self.sandbox.doctor()

    @operation(audience=Audience.AGENT, while_draining=True)
    async def inspect(self, session: Name, *, principal: Principal) -> Inspection:
        """A session's limits, names of variables, and usage so far. Values of secrets are masked.

        ``session``: its handle or name.
        """
        opened = self.sessions.find(session, principal)
        return replace(await self.sandbox.inspect(opened.session), name=opened.name)

    @operation(audience=Audience.AGENT)
    async def set_limits(self, limits: Limits, *, principal: Principal) -> Limits:
        """Change the limits of everything that the caller runs from now on, within those of the service. Returns the
        limits in force.

        ``limits``: the new limits; fields left out do not change.
        """
        return self._shared.set_limits(principal, limits)

    @operation()
    async def reset_limits(self, caller: Name | None = None, *, principal: Principal) -> Limits:
        """Restore a caller's limits to those of the service. Returns the limits in force.

        ``caller``: its name, as in records; the caller itself if left out.
        """
        return self._shared.reset_limits(principal.name if caller is None else caller)

    def activity(self) -> Activity:
        """Counts of the current activity of all callers."""
        going = self.kept.unfinished_runs()
        waiting = {one.run for one in self.sandbox.approvals.pending()} if going else set()
        return Activity(len(going), sum(one.run in waiting for one in going), self.sessions.count)

    async def idle(self) -> None:
        """Wait until all runs are over."""
        while going := self.kept.unfinished_runs():
            await going[0].news.wait()

    async def close(self) -> None:
        """End all sessions and runs. Can be called twice."""
        self.kept.stop_accepting()
        await self.sessions.close_all()
        await self.kept.close()
        self.plans.close()
        await self.uploads.close()
        self._watch.close()

    async def __aenter__(self) -> Self:
        return await self.load()

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
