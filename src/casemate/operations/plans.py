"""``plans``: what programs would call, found out before anybody allows it, by handle, each its caller's alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from casemate.api.options import Code, Name, RunOptions, Wait
from casemate.errors import InvalidArgument, NotFound
from casemate.model.operation import Audience, Principal, called_by, operation
from casemate.model.options import complete, takes_options
from casemate.operations.kept import Retention
from casemate.operations.runs import RunOperations, RunState

if TYPE_CHECKING:
    from casemate.api.call_plan import Listed, PlannedCall, Trial
    from casemate.operations.kept import StoredRun
    from casemate.operations.shared import Shared
    from casemate.sessions.run import Run


MOST_KEPT = 50  # plans of one caller
MOST_KEPT_BYTES = 64 << 20  # of what their programs were given, and of their lists
_MOST_ALL = 500  # plans of all callers
SECONDS = 3600.0  # that one is kept after its last use


@dataclass(frozen=True, slots=True)
class PlanState:
    """What a program would call, in order, besides the calls that a rule allows. ``plan``: its handle; ``seconds``: for
    how long it is kept unless it is used."""

    plan: str
    calls: tuple[PlannedCall, ...]
    seconds: float


@dataclass(slots=True, eq=False)
class _Held:
    """``listed``: what was found out; ``size``: bytes that are held of it; ``files``: the uploads that it needs.

    ``trying``: the run that tries it out, until that is over, whose outcome is not held; ``users``: how many runs go on
    that need the files, also when the plan is forgotten (``is_gone``).
    """

    owner: str
    payer: str
    listed: Callable[[], Listed | None]
    size: int
    files: contextlib.ExitStack
    trying: StoredRun | None
    until: float = 0.0
    users: int = 0
    is_gone: bool = False

    def forget(self) -> None:
        """It is no longer kept."""
        self.is_gone = True
        self.release()

    def release(self) -> None:
        """Let go of its files, unless they are needed."""
        if self.is_gone and not self.users:
            self.files.close()


class PlanOperations:
    """Plans, by the handle of the run in which each was tried out. The last ones are kept, in memory."""

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
        """Begin to find out what a program would call: a run in a throwaway cell in which only calls of tools that a
        rule allows are made, and all others are noted down instead of asking anybody. Its handle is the plan's.

        ``code``: the program. ``wait``: seconds to wait for its end before this answers.

        What it changes in files is thrown away; what it has left is had by the run's handle, as of any other.
        """
        shared = self._shared
        values = complete(RunOptions, options, "plans.start")
        values["limits"] = shared.limits_for(principal, values["limits"])
        values["secrets"] = await shared.secrets_for(principal, values["secrets"])
        with contextlib.ExitStack() as needed, called_by(principal):
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
        self._keep(trying.run, plan_entry)
        return await self._runs.wait(trying.run, seconds=wait, principal=principal)

    @operation(audience=Audience.AGENT)
    async def get(self, plan: Name, *, principal: Principal) -> PlanState:
        """What a program would call, once it has been tried out. ``plan``: its handle."""
        return PlanState(plan, self._take_plan(plan, principal)[1].calls, SECONDS)

    @operation(audience=Audience.AGENT)
    async def run(self, plan: Name, *, wait: Wait = 0.0, principal: Principal) -> RunState:
        """Have the whole list of calls of a plan decided at once (a request of kind "plan"), and run its program with
        exactly these calls allowed, each as often as it is in the list; any other asks, as ever. The answer names its
        run, which goes on by itself until it ends, with an error where the plan is not allowed.

        ``plan``: its handle. ``wait``: seconds to wait for its end, or until it waits for an approval, before this
        answers.
        """
        plan_entry, listed = self._take_plan(plan, principal)
        within = self._shared.limits_for(principal, None)
        with called_by(principal), self._keep_in_use(plan_entry):
            kept = await self._shared.kept.add(lambda: listed.begin(within), principal, None, listed.request.language)
            self._used_by(plan_entry, kept)
        return await self._runs.wait(kept.run, seconds=wait, principal=principal)

    def _take_plan(self, plan: str, principal: Principal) -> tuple[_Held, Listed]:
        """What was found out, which is used now. Raises ``NotFound``, also for another's, and ``InvalidArgument``."""
        self._sweep()
        plan_entry = self._held.get(plan)
        if plan_entry is None or plan_entry.owner != principal.name:
            raise NotFound(
                "plan",
                f"there is no plan {plan[:100]!r}, or it is no longer kept: an hour after its last use it expires, and "
                f"of each caller the last {MOST_KEPT} are kept, as long as casemate runs",
                remediation="Make the plan again.",
            )
        if plan_entry.trying is not None:
            raise InvalidArgument("plan", "is still being tried out", remediation="Wait until that run is over.")
        if (listed := plan_entry.listed()) is None:
            raise InvalidArgument("plan", "came to nothing, as its run says", remediation="Make the plan again.")
        plan_entry.until = time.monotonic() + SECONDS
        return plan_entry, listed

    def _keep(self, plan: str, plan_entry: _Held) -> None:
        """And forget what is beyond the bounds."""
        self._held[plan] = plan_entry
        self._retention.add(plan, plan_entry.payer, plan_entry.size)
        self._sweep()
        self._bound_memory(plan_entry.payer)

    def _bound_memory(self, payer: str) -> None:
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
        """Its trial is over: it counts with what was found out, and its time begins."""
        plan_entry.trying, plan_entry.until = None, time.monotonic() + SECONDS
        if (listed := plan_entry.listed()) is not None:
            plan_entry.size += listed.size
            self._retention.resize(plan, plan_entry.size)
            self._bound_memory(plan_entry.payer)

    def _sweep(self) -> None:
        """See which have been tried out, and forget those whose time is over."""
        for plan, plan_entry in list(self._held.items()):
            if not plan_entry.is_gone and plan_entry.trying is not None and plan_entry.trying.is_done:
                self._note_tried(plan, plan_entry)
            if not plan_entry.is_gone and plan_entry.trying is None and plan_entry.until < time.monotonic():
                self._retention.forget(plan)
                self._held.pop(plan).forget()

    def close(self) -> None:
        """Forget all of them."""
        for plan_entry in self._held.values():
            plan_entry.forget()
        self._held.clear()
