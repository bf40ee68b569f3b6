"""``plans``: the calls that a program would make, found before they are allowed, by handle."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from casemate.api.options import RunOptions
from casemate.errors import InvalidArgument, NotFound
from casemate.model.kinds import Code, Name, Wait
from casemate.model.operation import Audience, Principal, operation
from casemate.model.options import complete, takes_options
from casemate.operations.kept import Retention
from casemate.operations.runs import RunOperations, RunState

if TYPE_CHECKING:
    from casemate.api.call_plan import Listed, PlannedCall, Trial
    from casemate.operations.kept import StoredRun
    from casemate.operations.shared import Shared
    from casemate.sessions.run import Run


MOST_KEPT = 50  # plans of one caller
MOST_KEPT_BYTES = 64 << 20  # of the inputs and lists of calls of one caller's plans
_MOST_ALL = 500  # plans of all callers
SECONDS = 3600.0  # a plan is kept this long after its last use


@dataclass(frozen=True, slots=True)
class PlanState:
    """The calls that a program would make, in order, without those that a rule allows. ``plan``: its handle;
    ``seconds``: how long it is kept without further use."""

    plan: str
    calls: tuple[PlannedCall, ...]
    seconds: float


@dataclass(slots=True, eq=False)
class _Held:
    owner: str
    payer: str
    listed: Callable[[], Listed | None]  # the result of the trial
    size: int  # bytes that are kept of it
    files: contextlib.ExitStack  # the uploads that it needs
    trying: StoredRun | None  # the trial's run, until it is over; its outcome is not kept here
    until: float = 0.0
    users: int = 0  # unfinished runs that need the files, even of a forgotten plan (`is_gone`)
    is_gone: bool = False

    def forget(self) -> None:
        self.is_gone = True
        self.release()

    def release(self) -> None:
        """Release its files, unless a run needs them."""
        if self.is_gone and not self.users:
            self.files.close()


class PlanOperations:
    """Plans, by the handle of the run that tried each out. The newest are kept, in memory."""

    def __init__(self, shared: Shared, runs: RunOperations) -> None:
        self._shared = shared
        self._runs = runs
        self._held: dict[str, _Held] = {}
        self._retention = Retention()

    @operation(audience=Audience.AGENT)
    @takes_options(RunOptions)
    async def start(
        self, code: Code, *, wait: Wait = 0.0, principal: Principal, **options: Unpack[RunOptions]
    ) -> RunState:
        """Start to find the calls that a program would make: a run in a throwaway cell makes only calls of tools that a
        rule allows, notes all other calls, and asks for no approval. The run's handle is the plan's.

        ``code``: the program. ``wait``: seconds to wait for the end of the run before this returns.

        Its changes to files are discarded. Its artifacts are found by the run's handle, as those of any run.
        """
        shared = self._shared
        values = complete(RunOptions, options, "plans.start")
        values["limits"] = shared.limits_for(principal, values["limits"])
        values["secrets"] = await shared.secrets_for(principal, values["secrets"])
        with contextlib.ExitStack() as needed:
            for content in (values["files"] or {}).values():
                if isinstance(content, Path):
                    needed.enter_context(shared.uploads.use_upload(content.name, principal))
            trials: list[Trial] = []

            def begin() -> Run:
                trials.append(shared.sandbox._begin_trial(code, values))
                return trials[0].run

            trying = await shared.kept.add(begin, principal, None, values["language"])
            (trial,) = trials
            plan_entry = _Held(principal.name, principal.payer, trial.listed, trial.size, needed.pop_all(), trying)
        self._used_by(plan_entry, trying)
        self._held[trying.run] = plan_entry
        self._retention.add(trying.run, plan_entry.payer, plan_entry.size)
        self._sweep()
        self._bound_memory(plan_entry.payer)
        return await self._runs.wait(trying.run, seconds=wait, principal=principal)

    @operation(audience=Audience.AGENT, while_draining=True)
    async def get(self, plan: Name, *, principal: Principal) -> PlanState:
        """The calls that a program would make, once its trial is over. ``plan``: its handle."""
        return PlanState(plan, self._take_plan(plan, principal)[1].calls, SECONDS)

    @operation(audience=Audience.AGENT)
    async def run(self, plan: Name, *, wait: Wait = 0.0, principal: Principal) -> RunState:
        """Have all calls of a plan decided at once (a request of kind "plan"), and run its program with exactly these
        calls allowed, each as often as it is in the list. Any other call asks, as usual. Returns the run, which goes on
        in the background; it ends with an error if the plan is not allowed.

        ``plan``: its handle. ``wait``: seconds to wait until the run is over, or waits for an approval, before this
        returns.
        """
        plan_entry, listed = self._take_plan(plan, principal)
        within = self._shared.limits_for(principal, None)
        with self._keep_in_use(plan_entry):
            kept = await self._shared.kept.add(lambda: listed.begin(within), principal, None, listed.request.language)
            self._used_by(plan_entry, kept)
        return await self._runs.wait(kept.run, seconds=wait, principal=principal)

    def _take_plan(self, plan: str, principal: Principal) -> tuple[_Held, Listed]:
        """A plan's calls, for use now. Raises ``NotFound``, also for another caller's plan, and ``InvalidArgument``."""
        self._sweep()
        plan_entry = self._held.get(plan)
        if plan_entry is None or plan_entry.owner != principal.name:
            raise NotFound(
                "plan",
                f"there is no plan {plan[:100]!r}, or it is no longer kept: it expires an hour after its last use, and "
                f"casemate keeps the last {MOST_KEPT} of each caller while it runs",
                remediation="Make the plan again.",
            )
        if plan_entry.trying is not None:
            raise InvalidArgument("plan", "is still being tried out", remediation="Wait until that run is over.")
        if (listed := plan_entry.listed()) is None:
            raise InvalidArgument("plan", "has no list of calls: its run failed", remediation="Make the plan again.")
        plan_entry.until = time.monotonic() + SECONDS
        return plan_entry, listed

    def _bound_memory(self, payer: str) -> None:
        """Forget plans beyond the bounds."""
        forgotten = self._retention.beyond(payer, runs=MOST_KEPT, size=MOST_KEPT_BYTES, all_runs=_MOST_ALL)
        for one in forgotten:
            self._held.pop(one).forget()

    def _used_by(self, plan_entry: _Held, run: StoredRun) -> None:
        """Hold its files until ``run`` is over."""
        assert run.follower is not None
        needed = contextlib.ExitStack()
        needed.enter_context(self._keep_in_use(plan_entry))

        def is_over(_: object) -> None:
            needed.close()
            self._sweep()

        run.follower.add_done_callback(is_over)

    @contextlib.contextmanager
    def _keep_in_use(self, plan_entry: _Held) -> Iterator[None]:
        plan_entry.users += 1
        try:
            yield
        finally:
            plan_entry.users -= 1
            plan_entry.release()

    def _note_tried(self, plan: str, plan_entry: _Held) -> None:
        """Note that its trial is over: its list now counts, and its time starts."""
        plan_entry.trying, plan_entry.until = None, time.monotonic() + SECONDS
        if (listed := plan_entry.listed()) is not None:
            plan_entry.size += listed.size
            self._retention.resize(plan, plan_entry.size)
            self._bound_memory(plan_entry.payer)

    def _sweep(self) -> None:
        """Note finished trials, and forget expired plans."""
        for plan, plan_entry in list(self._held.items()):
            if not plan_entry.is_gone and plan_entry.trying is not None and plan_entry.trying.is_done:
                self._note_tried(plan, plan_entry)
            if not plan_entry.is_gone and plan_entry.trying is None and plan_entry.until < time.monotonic():
                self._retention.forget(plan)
                self._held.pop(plan).forget()

    def close(self) -> None:
        """Forget all plans."""
        for plan_entry in self._held.values():
            plan_entry.forget()
        self._held.clear()
