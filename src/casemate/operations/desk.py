"""One namespace's sandbox with its sessions and runs by handle: what operations are called on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack

from casemate.api.options import Code, Name, RunOptions
from casemate.errors import Unavailable
from casemate.model.execution import Execution
from casemate.model.isolation import Diagnosis
from casemate.model.limits import Limits
from casemate.model.operation import Audience, Principal, operation
from casemate.model.options import takes_options
from casemate.model.overview import Inspection
from casemate.operations.approvals import Approvals
from casemate.operations.archives import Archives
from casemate.operations.audit import Audit
from casemate.operations.egress import Egress
from casemate.operations.explained import CellPlan, explained
from casemate.operations.files import Artifacts, Files
from casemate.operations.kept import KeptRuns
from casemate.operations.packages import Packages
from casemate.operations.plans import Plans
from casemate.operations.runs import Runs
from casemate.operations.sessions import Sessions
from casemate.operations.store import Store, TemporaryStore
from casemate.operations.tools import Tools
from casemate.operations.uploads import Uploads
from casemate.operations.vault import Vault

if TYPE_CHECKING:
    from casemate.api.sandbox import Sandbox

_MOST_CALLERS = 1000  # of one account, whose limits are known


@dataclass(frozen=True, slots=True)
class Activity:
    """What goes on: how many runs are not over, how many of these wait for an approval, and how many sessions are
    open."""

    runs: int
    waiting: int
    sessions: int


class Desk:
    """Use it in the event loop of ``sandbox``, which stays its maker's to close. Approvals are held for whoever looks
    at them as long as it is open."""

    def __init__(self, sandbox: Sandbox, store: Store | None = None, *, idle_timeout: float | None = None) -> None:
        """``store``: where runs are kept that are over; nothing for temporary files. ``idle_timeout``: seconds without
        use after which a session ends that was opened without one."""
        self.sandbox = sandbox
        self.idle_timeout = idle_timeout
        self.kept = KeptRuns(store or TemporaryStore())
        self.uploads = Uploads()
        self.runs = Runs(self, self.kept)
        self.sessions = Sessions(self)
        self.files = Files(self)
        self.artifacts = Artifacts(self)
        self.archives = Archives(self)
        self.approvals = Approvals(self)
        self.audit = Audit(self)
        self.egress = Egress(self)
        self.packages = Packages(self)
        self.plans = Plans(self)
        self.tools = Tools(self)
        self.vault = Vault(self)
        self._limits: dict[str, dict[str, Limits]] = {}  # by account, and by name
        self._holding = contextlib.ExitStack()
        self._holding.enter_context(sandbox.approvals.open())

    async def load(self) -> Self:
        """Take up what an earlier desk has left in the store. Raises ``OSError``."""
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
        options["limits"] = self.limits_for(principal, options.get("limits"))
        plan = await self.sandbox.explain(code, **options)
        return explained(plan)

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
        """Narrow the limits of whatever the caller runs from now on; nothing widens them. The answer is those in force.

        ``limits``: fields that are given are the most from now on.
        """
        own = self._limits.setdefault(principal.payer, {})
        if principal.name not in own and len(own) >= _MOST_CALLERS:
            raise Unavailable(f"the limits of {_MOST_CALLERS} callers of {principal.payer!r} are known already")
        own[principal.name] = own.get(principal.name, self.sandbox.limits).narrowed(limits)
        return own[principal.name]

    @operation()
    async def reset_limits(self, caller: Name | None = None, *, principal: Principal) -> Limits:
        """Undo what was narrowed: from now on the limits are again those of the service. The answer is those in force.

        ``caller``: whose, by the name that records have; the caller's own where nothing is said.
        """
        name = principal.name if caller is None else caller
        for own in self._limits.values():
            own.pop(name, None)
        return self.sandbox.limits

    def limits_for(self, principal: Principal, limits: Limits | None) -> Limits | None:
        """What of ``limits`` a caller may have."""
        own = self._limits.get(principal.payer, {}).get(principal.name)
        return limits if own is None else own.narrowed(limits)

    def activity(self) -> Activity:
        """What goes on now, in whoever's name."""
        going = self.kept.going()
        waiting = {one.run for one in self.sandbox.approvals.pending()} if going else set()
        return Activity(len(going), sum(one.run in waiting for one in going), self.sessions.count)

    async def idle(self) -> None:
        """Wait until no run goes on."""
        while going := self.kept.going():
            await going[0].news.wait()

    async def close(self) -> None:
        """End all sessions and runs. Harmless when repeated."""
        self.kept.shut()
        await self.sessions.close_all()
        await self.kept.close()
        self.plans.close()
        await self.uploads.close()
        self._holding.close()

    async def __aenter__(self) -> Self:
        return await self.load()

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
