"""One namespace's sandbox with its sessions and runs by handle: what operations are called on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Self, Unpack

from casemate.api.options import Code, Name, RunOptions
from casemate.api.sandbox import Sandbox
from casemate.model.diagnosis import Diagnosis
from casemate.model.execution import Execution
from casemate.model.limits import Limits
from casemate.model.operation import Audience, Principal, operation
from casemate.model.options import takes_options
from casemate.model.overview import Inspection
from casemate.operations.approvals import ApprovalOperations
from casemate.operations.cell_plan import CellPlan, explain_plan
from casemate.operations.evidence import EvidenceOperations
from casemate.operations.files import ArchiveOperations, ArtifactOperations, FileOperations
from casemate.operations.host import HostOperations
from casemate.operations.plans import PlanOperations
from casemate.operations.resources import (
    AuditOperations,
    EgressOperations,
    PackageOperations,
    ToolOperations,
    VaultOperations,
)
from casemate.operations.runs import RunOperations
from casemate.operations.sessions import SessionOperations
from casemate.operations.shared import Shared
from casemate.operations.stores import FolderStore
from casemate.operations.web import WebOperations


@dataclass(frozen=True, slots=True)
class Activity:
    """What goes on: how many runs are not over, how many of these wait for an approval, and how many sessions are
    open."""

    runs: int
    waiting: int
    sessions: int


class Operations:
    """Use it in the event loop of ``sandbox``, which stays its maker's to close. Approvals are held for whoever looks
    at them as long as it is open. The groups of operations are the attributes below, by their names."""

    approvals: ApprovalOperations
    archives: ArchiveOperations
    artifacts: ArtifactOperations
    audit: AuditOperations
    egress: EgressOperations
    evidence: EvidenceOperations
    files: FileOperations
    host: HostOperations
    packages: PackageOperations
    plans: PlanOperations
    runs: RunOperations
    sandbox: Sandbox
    sessions: SessionOperations
    tools: ToolOperations
    vault: VaultOperations
    web: WebOperations

    def __init__(
        self, sandbox: Sandbox, store: FolderStore | None = None, *, idle_timeout: float | None = 3600.0
    ) -> None:
        """``store``: where runs are kept that are over; nothing for temporary files. ``idle_timeout``: seconds without
        use after which a session ends that was opened without one."""
        self._shared = Shared(sandbox, store, idle_timeout)
        self.sandbox, self.kept, self.uploads = sandbox, self._shared.kept, self._shared.uploads
        self.sessions = SessionOperations(self._shared)
        self.runs = RunOperations(self._shared, self.sessions)
        self.plans = PlanOperations(self._shared, self.runs)
        self.approvals = ApprovalOperations(self._shared, self.sessions)
        self.archives = ArchiveOperations(self._shared, self.sessions)
        self.artifacts = ArtifactOperations(self._shared, self.sessions)
        self.audit = AuditOperations(self._shared, self.sessions)
        self.egress = EgressOperations(self._shared, self.sessions)
        self.evidence = EvidenceOperations(self._shared, self.sessions)
        self.files = FileOperations(self._shared, self.sessions)
        self.host = HostOperations(self._shared, self.sessions)
        self.packages = PackageOperations(self._shared, self.sessions)
        self.tools = ToolOperations(self._shared, self.sessions)
        self.vault = VaultOperations(self._shared, self.sessions)
        self.web = WebOperations(self._shared, self.sessions)
        self._watch = contextlib.ExitStack()
        self._watch.enter_context(sandbox.approvals.open())

    async def load(self) -> Self:
        """Take up what an earlier process has left in the store. Raises ``OSError``."""
        await self.kept.load()
        await self.uploads.load()
        return self

    @operation(audience=Audience.AGENT)
    @takes_options(RunOptions)
    async def run(self, code: Code, *, principal: Principal, **options: Unpack[RunOptions]) -> Execution:
        """Run a program once, in a fresh cell, and give its outcome. It ends when its caller goes away.

        ``code``: the program.
        """
        run = await self.runs.start(code, principal=principal, **options)
        return await self.runs.outcome(run.run, principal)

    @operation()
    @takes_options(RunOptions)
    async def explain(self, code: Code, *, principal: Principal, **options: Unpack[RunOptions]) -> CellPlan:
        """The plan of a run with these arguments: all that is decided before its cell starts. Nothing is started.

        It names paths of the machine that casemate runs on. Values of secrets are not in it, nor what was given: the
        program, contents of files, standard input.

        ``code``: the program.
        """
        options["limits"] = self._shared.limits_for(principal, options.get("limits"))
        plan = await self.sandbox.explain(code, **options)
        return explain_plan(plan)

    @operation()
    async def doctor(self) -> Diagnosis:
        """What this machine offers, as proved by self-tests."""
        return await self.sandbox.doctor()

    @operation(audience=Audience.AGENT)
    async def inspect(self, session: Name, *, principal: Principal) -> Inspection:
        """What a session is and has: its limits, its variables' names, what it used. Values of secrets are masked.

        ``session``: its handle or name.
        """
        opened = self.sessions.find(session, principal)
        return replace(await self.sandbox.inspect(opened.session), name=opened.name)

    @operation(audience=Audience.AGENT)
    async def set_limits(self, limits: Limits, *, principal: Principal) -> Limits:
        """Change the limits of whatever the caller runs from now on, up to those of the service. The answer is those in
        force.

        ``limits``: fields that are given are the most from now on.
        """
        return self._shared.set_limits(principal, limits)

    @operation()
    async def reset_limits(self, caller: Name | None = None, *, principal: Principal) -> Limits:
        """Undo what was changed: from now on the limits are again those of the service. The answer is those in force.

        ``caller``: whose, by the name that records have; the caller's own where nothing is said.
        """
        return self._shared.reset_limits(principal.name if caller is None else caller)

    def activity(self) -> Activity:
        """What goes on now, in whoever's name."""
        going = self.kept.unfinished_runs()
        waiting = {one.run for one in self.sandbox.approvals.pending()} if going else set()
        return Activity(len(going), sum(one.run in waiting for one in going), self.sessions.count)

    async def idle(self) -> None:
        """Wait until no run goes on."""
        while going := self.kept.unfinished_runs():
            await going[0].news.wait()

    async def close(self) -> None:
        """End all sessions and runs. Harmless when repeated."""
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
