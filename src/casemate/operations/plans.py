"""``plans``: what programs would call, before anybody allows it; and the plan of a cell, as operators see it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from casemate.api.options import Code, Name, RunOptions, Wait
from casemate.api.planning import try_out
from casemate.errors import InvalidArgument, NotFound
from casemate.model.caller import called_by
from casemate.model.limits import Limits
from casemate.model.operation import Audience, Principal, operation
from casemate.model.options import complete, takes_options
from casemate.model.plan import Bind, Link, Network, Place, Plan, Shown, Text
from casemate.operations.kept import Retention
from casemate.operations.runs import RunOperations, RunState

if TYPE_CHECKING:
    from casemate.api.call_plan import Listed, PlannedCall, Trial
    from casemate.operations.kept import Kept
    from casemate.operations.shared import Shared
    from casemate.sessions.run import Run


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CellWorkspace:
    """``folder``: the service's own, None for a private one; ``place``: where it appears besides /workspace.
    ``hidden``, ``kept``: paths beneath it that nobody in the cell reads, or changes."""

    kind: Literal["private", "overlay", "direct"]
    folder: str | None
    place: str
    hidden: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellSocket:
    """Where the host answers in a cell's network."""

    kind: Literal["tcp", "udp"]
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class CellWait:
    """How the program is begun in a process that waits: its command and variables, the limits that it is made with, the
    ``preload`` of the zygote that it is forked from, and the bytes that one holds (``cost``)."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: Limits
    cost: int
    preload: tuple[str, ...] | None
    optional: bool
    stamp: tuple[int, ...]
    fuller: tuple[str, ...]
    fuller_cost: int


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What is decided before a cell starts. Paths are those of the machine that casemate runs on (``source``) and of
    the cell (``target``). ``deadline``: seconds, None for no bound; ``secrets``: names; ``waiting``: how it may be
    begun in a cell that is ready, or why not."""

    id: str
    wall: str
    language: str
    entries: tuple[Bind | Link | Text | Place, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    program_name: str
    workspace: CellWorkspace
    limits: Limits
    deadline: float | None
    control: bool
    reserve: int
    network: Network
    allowed_domains: tuple[str, ...]
    listeners: tuple[CellSocket, ...]
    layers: tuple[str, ...]
    waiting: CellWait | str
    session: bool
    continues: str
    secrets: tuple[str, ...]
    shown: tuple[Shown, ...]


def explained(plan: Plan) -> CellPlan:
    """What of ``plan`` operators see: the fields of these classes, and nothing else."""
    deadline = plan.deadline if math.isfinite(plan.deadline) else None
    waiting = plan.waiting if isinstance(plan.waiting, str) else _shown(CellWait, plan.waiting)
    listeners = tuple(_shown(CellSocket, one) for one in plan.listeners)
    return _shown(
        CellPlan, plan, workspace=_shown(CellWorkspace, plan.workspace), deadline=deadline, listeners=listeners,
        waiting=waiting, secrets=plan.secrets.names,
    )  # fmt: skip


def _shown(kind: type[T], source: object, **other: Any) -> T:
    """``source`` with the fields that ``kind`` has, and ``other`` values of some of them."""
    names = (one.name for one in fields(kind) if one.name not in other)  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **other)


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
    trying: Kept | None
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
        values["secrets"] = await shared.sandbox.vault.resolved(values["secrets"])
        with contextlib.ExitStack() as needed, called_by(principal.name):
            for content in (values["files"] or {}).values():
                if isinstance(content, Path):
                    needed.enter_context(shared.uploads.using(content.name, principal))
            trials: list[Trial] = []

            def begin() -> Run:
                trials.append(try_out(shared.sandbox, code, values))
                return trials[0].run

            trying = await shared.kept.add(begin, principal, None, values["language"])
            (trial,) = trials
            held = _Held(principal.name, principal.payer, trial.listed, trial.size, needed.pop_all(), trying)
        self._used_by(held, trying)
        self._keep(trying.run, held)
        return await self._runs.wait(trying.run, seconds=wait, principal=principal)

    @operation(audience=Audience.AGENT)
    async def get(self, plan: Name, *, principal: Principal) -> PlanState:
        """What a program would call, once it has been tried out. ``plan``: its handle."""
        return PlanState(plan, self._found(plan, principal)[1].calls, SECONDS)

    @operation(audience=Audience.AGENT)
    async def run(self, plan: Name, *, wait: Wait = 0.0, principal: Principal) -> RunState:
        """Have the whole list of calls of a plan decided at once (a request of kind "plan"), and run its program with
        exactly these calls allowed, each as often as it is in the list; any other asks, as ever. The answer names its
        run, which goes on by itself until it ends, with an error where the plan is not allowed.

        ``plan``: its handle. ``wait``: seconds to wait for its end, or until it waits for an approval, before this
        answers.
        """
        held, listed = self._found(plan, principal)
        within = self._shared.limits_for(principal, None)
        with called_by(principal.name), self._needed(held):
            kept = await self._shared.kept.add(lambda: listed.begin(within), principal, None, listed.request.language)
            self._used_by(held, kept)
        return await self._runs.wait(kept.run, seconds=wait, principal=principal)

    def _found(self, plan: str, principal: Principal) -> tuple[_Held, Listed]:
        """What was found out, which is used now. Raises ``NotFound``, also for another's, and ``InvalidArgument``."""
        self._sweep()
        held = self._held.get(plan)
        if held is None or held.owner != principal.name:
            raise NotFound(
                "plan",
                f"there is no plan {plan[:100]!r}, or it is no longer kept: an hour after its last use it expires, and "
                f"of each caller the last {MOST_KEPT} are kept, as long as casemate runs",
                remediation="Make the plan again.",
            )
        if held.trying is not None:
            raise InvalidArgument("plan", "is still being tried out", remediation="Wait until that run is over.")
        if (listed := held.listed()) is None:
            raise InvalidArgument("plan", "came to nothing, as its run says", remediation="Make the plan again.")
        held.until = time.monotonic() + SECONDS
        return held, listed

    def _keep(self, plan: str, held: _Held) -> None:
        """And forget what is beyond the bounds."""
        self._held[plan] = held
        self._retention.add(plan, held.payer, held.size)
        self._sweep()
        self._bound(held.payer)

    def _bound(self, payer: str) -> None:
        gone = self._retention.beyond(payer, runs=MOST_KEPT, size=MOST_KEPT_BYTES, all_runs=_MOST_ALL)
        for one in gone:
            self._held.pop(one).forget()

    def _used_by(self, held: _Held, run: Kept) -> None:
        """Hold its files until ``run`` is over."""
        assert run.follower is not None
        needed = contextlib.ExitStack()
        needed.enter_context(self._needed(held))

        def is_over(_: object) -> None:
            needed.close()
            self._sweep()

        run.follower.add_done_callback(is_over)

    @contextlib.contextmanager
    def _needed(self, held: _Held) -> Iterator[None]:
        held.users += 1
        try:
            yield
        finally:
            held.users -= 1
            held.release()

    def _tried(self, plan: str, held: _Held) -> None:
        """Its trial is over: it counts with what was found out, and its time begins."""
        held.trying, held.until = None, time.monotonic() + SECONDS
        if (listed := held.listed()) is not None:
            held.size += listed.size
            self._retention.resize(plan, held.size)
            self._bound(held.payer)

    def _sweep(self) -> None:
        """See which have been tried out, and forget those whose time is over."""
        for plan, held in list(self._held.items()):
            if not held.is_gone and held.trying is not None and held.trying.is_done:
                self._tried(plan, held)
            if not held.is_gone and held.trying is None and held.until < time.monotonic():
                self._retention.forget(plan)
                self._held.pop(plan).forget()

    def close(self) -> None:
        """Forget all of them."""
        for held in self._held.values():
            held.forget()
        self._held.clear()
