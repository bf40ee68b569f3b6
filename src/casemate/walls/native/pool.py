"""Pools of ready cells, and the zygotes that cells are forked from.

The wall takes a cell with `take`; the link makes them. A ready cell serves one run, and is never used again. A run
takes a ready cell in a millisecond; making one takes several. But each ready cell holds memory, and making one slows
the runs in progress. The pump thread runs the timers; any thread may take.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError
from casemate.model.plan import NO_SECRETS
from casemate.walls import machine
from casemate.walls.native import launch
from casemate.walls.native.demand import (
    MOST_MAKING,
    PAUSE,
    ZYGOTE_IDLE,
    Demand,
    has_just_ended,
    is_busy,
    is_idle,
    target_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from casemate.model.diagnosis import PoolState, Warmth, ZygoteState
    from casemate.model.plan import Plan, ReadyStart
    from casemate.walls.native.running import Pump, RunningCell

_SOON = 0.05  # seconds: delay before pre-forking, so that a single run does not pay for it
_AFTER = 0.001  # seconds after a run before the cell that it took is replaced
_LATER = 1.0  # seconds after the first run before the zygote with more modules is started
_OFTEN = 1.0  # seconds between checks of the pools
_DEATHS = 3  # of a zygote in a row, each within `_SHORT_LIFE` of its start; then it is ruled out
_SHORT_LIFE = 10.0  # seconds
_FAILURES = 5  # times in a row that waiting cells of one kind ended; then no more are made
_KINDS = 8  # the most kinds that have a pool
_LEAST = 2  # cells that a kind may have, however many other kinds have


@dataclass(slots=True)
class _Zygote:
    """One warmed interpreter, as far as the supervisor has reported it."""

    key: str
    waiting: ReadyStart
    state: str = "wanted"  # then "starting", "ready" or "ruled out"
    problem: str = ""
    pid: int = 0
    data: int = 0
    deaths: int = 0
    asked: float = 0.0
    ready: float = 0.0


@dataclass(slots=True)
class _KindPool:
    plan: Plan
    root: str
    request: dict[str, Any]  # makes another cell
    waiting: ReadyStart
    zygote: _Zygote | None
    born: float
    demand: Demand = field(default_factory=Demand)
    ready: deque[RunningCell] = field(default_factory=deque)
    taken: int = 0
    made: int = 0
    failed: int = 0  # times in a row that waiting cells ended
    problem: str = ""


class Pools:
    """The pools of one link, for at most ``concurrency`` runs at once. ``prepare`` makes a waiting cell."""

    def __init__(self, link: Pump, prepare: Callable[[dict[str, Any], int], RunningCell], concurrency: int) -> None:
        self._link, self._prepare = link, prepare
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._pools: dict[Any, _KindPool] = {}
        self._zygotes: dict[Any, _Zygote] = {}
        self._runs = 0
        self._due: float | None = None
        self._looked = 0.0
        self._free_bytes = 0

    # -- from any thread

    def take(self, plan: Plan, waiting: ReadyStart, root: str) -> tuple[RunningCell | None, str, Callable[[], None]]:
        """Return a ready cell or the reason there is none, and a function to call when the run is over.

        Raises ``OSError``.
        """
        now = time.monotonic()
        with self._lock:
            pool = self._pool_for(plan, waiting, root)
            pool.demand.begin(now)
            self._runs += 1
            if self._runs > 1 or plan.session:
                self._want_zygote(pool, now)
            return *self._take_ready(pool, plan.continues), partial(self._release, pool)

    def _take_ready(self, pool: _KindPool, continues: str) -> tuple[RunningCell | None, str]:
        while pool.ready and not continues:
            cell = pool.ready.popleft()
            if not cell.future.done():
                pool.taken += 1
                cell.start = "pool"
                return cell, ""
        if pool.zygote is None:
            return None, pool.problem or "no cell of its kind was ready"
        if pool.zygote.state != "ready":
            return None, _why_not(pool.zygote)
        try:
            return self._make(pool, continues), ""
        except OSError as error:
            return None, f"a cell could not be made ready: {error.strerror}"

    def _release(self, pool: _KindPool) -> None:
        """Note that a run that used ``pool`` is over."""
        with self._lock:
            now = time.monotonic()
            pool.demand.end(now)
            self._set_due(now + (_SOON if self._runs == 1 else _AFTER))  # not now: the result is still being delivered

    def start(self, plan: Plan, waiting: ReadyStart, root: str) -> None:
        """Keep cells ready for such programs from now on."""
        now = time.monotonic()
        with self._lock:
            pool = self._pool_for(plan, waiting, root)
            pool.demand.last = pool.demand.since = now
            pool.demand.most = max(1, pool.demand.most)
            self._want_zygote(pool, now)
            self._fill(pool)
            self._set_due(now + _OFTEN)

    def states(self) -> Warmth:
        """The state of all pools, for display."""
        from casemate.model.diagnosis import Warmth  # only here: a single run does not need it

        with self._lock:
            pools = tuple(_pool_state(pool) for pool in self._pools.values())
            return Warmth(pools, tuple(_zygote_state(zygote) for zygote in self._zygotes.values()))

    # -- in the pump thread

    def handle(self, message: dict[str, Any]) -> None:
        """Handle the supervisor's message about a zygote."""
        with self._lock:
            zygote = next((known for known in self._zygotes.values() if known.key == message["key"]), None)
            if zygote is None:
                return
            if message["op"] == "zygote ended":
                self._note_death(zygote, message["detail"])
            elif message["problem"] is not None:
                zygote.state, zygote.problem = "ruled out", message["problem"]
            else:
                zygote.state, zygote.pid, zygote.data = "ready", message["pid"], message["data"]
                zygote.ready = time.monotonic()
                for pool in self._pools.values():
                    if pool.zygote is zygote:
                        self._fill(pool)

    def next_time(self) -> float | None:
        """When `on_time` is due (monotonic seconds)."""
        return self._due

    def on_time(self) -> None:
        """Make the cells and zygotes that are wanted, and end those that are not."""
        now = time.monotonic()
        if self._due is None or now < self._due:
            return
        with self._lock:
            for pool in list(self._pools.values()):
                with contextlib.suppress(OSError, CasemateError):  # its workspace is gone; a run reports that
                    self._keep_up(pool, now)
            self._drop_idle(now)
            soon = any(has_just_ended(pool.demand, now) for pool in self._pools.values())
            self._due = now + (PAUSE if soon else _OFTEN) if self._pools or self._zygotes else None

    # -- under the lock

    def _pool_for(self, plan: Plan, waiting: ReadyStart, root: str) -> _KindPool:
        kind = _kind(plan, waiting, root)
        pool = self._pools.get(kind)
        if pool is None:
            zygote = None if waiting.preload is None else self._zygote(waiting, root)
            request = launch.waiting_request(plan, waiting, root)
            request["zygote"] = zygote.key if zygote else ""
            # Do not keep the program and its data.
            like = replace(
                plan, code=b"", files={}, stdin=b"", env={}, argv=(), waiting="", continues="", secrets=NO_SECRETS
            )
            waiting = replace(waiting, order=b"")
            now = time.monotonic()
            pool = self._pools[kind] = _KindPool(like, root, request, waiting, zygote, now)
            pool.demand.last = now
            self._drop_least_used()
        return pool

    def _zygote(self, waiting: ReadyStart, root: str) -> _Zygote:
        kind = (root, waiting.argv, tuple(waiting.env.items()), waiting.preload, waiting.optional)
        for known in [one for one in self._zygotes.values() if one.waiting.argv == waiting.argv]:
            if known.waiting.stamp != waiting.stamp:
                self._retire(known)  # its environment has changed on disk
        zygote = self._zygotes.get(kind)
        if zygote is None:
            zygote = self._zygotes[kind] = _Zygote(os.urandom(6).hex(), waiting)
        return zygote

    def _retire(self, zygote: _Zygote) -> None:
        for kind, pool in list(self._pools.items()):
            if pool.zygote is zygote:
                self._empty(self._pools.pop(kind))
        self._zygotes = {kind: known for kind, known in self._zygotes.items() if known is not zygote}
        self._link.send({"op": "end zygote", "key": zygote.key})

    def _want_zygote(self, pool: _KindPool, now: float) -> None:
        zygote = pool.zygote
        if zygote is None or zygote.state != "wanted":
            return
        zygote.state, zygote.asked = "starting", now
        self._link.send(
            {
                "op": "zygote",
                "key": zygote.key,
                "root": pool.request["root"],
                "argv": list(pool.waiting.argv),
                "env": dict(pool.waiting.env),
                "own_entries": pool.request["own_entries"],
                "preload": list(pool.waiting.preload or ()),
                "optional": pool.waiting.optional,
            }
        )

    def _keep_up(self, pool: _KindPool, now: float) -> None:
        if pool.waiting.fuller and now - pool.born > _LATER:
            self._want_fuller(pool)
        self._want_zygote(pool, now)
        self._fill(pool)

    def _want_fuller(self, pool: _KindPool) -> None:
        """Prepare for programs that need more modules, because their zygote takes a second to start."""
        waiting = replace(pool.waiting, preload=pool.waiting.fuller, fuller=(), cost=pool.waiting.fuller_cost)
        if _kind(pool.plan, waiting, pool.root) not in self._pools:
            demand = self._pool_for(pool.plan, waiting, pool.root).demand
            demand.last, demand.most = pool.demand.last, 1

    def _note_death(self, zygote: _Zygote, detail: str) -> None:
        if zygote.state == "ruled out":
            return
        now = time.monotonic()
        zygote.deaths = zygote.deaths + 1 if now - zygote.asked < _SHORT_LIFE else 1
        zygote.state, zygote.problem, zygote.ready = "wanted", detail, 0.0
        if zygote.deaths >= _DEATHS:
            zygote.state, zygote.problem = "ruled out", f"it ended {zygote.deaths} times: {detail}"
        self._set_due(now + _SOON)

    def _make(self, pool: _KindPool, continues: str = "") -> RunningCell:
        waiting = pool.waiting
        request = {**pool.request, "continues": continues}
        cell = self._prepare(request, launch.payload(waiting.argv, waiting.env, pool.plan.cwd))
        pool.made += 1
        return cell

    def _fill(self, pool: _KindPool) -> None:
        """Make a few cells ready, or end those that are too many."""
        now = time.monotonic()
        self._drop_dead(pool)
        if pool.problem or (pool.zygote is not None and pool.zygote.state != "ready"):
            return
        others = [other for other in self._pools.values() if other is not pool]
        most = max(min(_LEAST, self._concurrency), self._concurrency - sum(len(other.ready) for other in others))
        used = sum(len(other.ready) * other.waiting.cost for other in others)
        target = target_size(pool.demand, now, most, self._free(now) - used, pool.waiting.cost)
        try:
            for _ in range(min(target - len(pool.ready), MOST_MAKING)):
                pool.ready.append(self._make(pool))
        except OSError:
            return  # too few descriptors; try later
        while len(pool.ready) > target and not is_busy(pool.demand, now):
            pool.ready.pop().kill("closed")

    def _drop_dead(self, pool: _KindPool) -> None:
        """Forget ready cells that have ended. A kind whose cells end too often gets no more."""
        living = deque(cell for cell in pool.ready if not cell.future.done())
        dead = len(living) < len(pool.ready)  # counted once: all of a zygote's cells end with it
        pool.ready = living
        pool.failed = pool.failed + 1 if dead else (0 if living else pool.failed)
        if pool.failed >= _FAILURES:
            pool.problem = f"cells of its kind ended {pool.failed} times while they waited"

    def _drop_least_used(self) -> None:
        """Bound the number of kinds, because a caller may use a new one in each run."""
        idle = [kind for kind, pool in self._pools.items() if not pool.demand.running]
        for kind in sorted(idle, key=lambda one: self._pools[one].demand.last)[: max(0, len(self._pools) - _KINDS)]:
            self._empty(self._pools.pop(kind))

    def _free(self, now: float) -> int:
        """Return the free memory in bytes, refreshed every second."""
        if now - self._looked > _OFTEN:
            self._looked, self._free_bytes = now, machine.look().memory
        return self._free_bytes

    def _empty(self, pool: _KindPool) -> None:
        while pool.ready:
            pool.ready.pop().kill("closed")

    def _drop_idle(self, now: float) -> None:
        for kind, pool in list(self._pools.items()):
            if not pool.demand.running and now - pool.demand.last > ZYGOTE_IDLE:
                self._empty(self._pools.pop(kind))
        used = {pool.zygote.key for pool in self._pools.values() if pool.zygote}
        for zygote in list(self._zygotes.values()):
            if zygote.key not in used:
                self._retire(zygote)

    def _set_due(self, when: float) -> None:
        if self._due is None or when < self._due:
            self._due = when
            self._link.call(lambda: None)  # wake the pump, so that it uses the new time


def _kind(plan: Plan, waiting: ReadyStart, root: str) -> Any:
    """Return the key of a kind: its cells can begin each other's programs."""
    return (
        root,
        waiting.argv,
        tuple(waiting.env.items()),
        waiting.preload,
        waiting.stamp,
        waiting.limits,
        plan.workspace,
        launch.identity(plan.workspace),
        plan.layers,
        plan.control,
        plan.reserve,
        plan.session,
    )


def _why_not(zygote: _Zygote) -> str:
    if zygote.state == "ruled out":
        return f"its environment has no zygote: {zygote.problem}"
    return "the zygote that its cells are forked from is not ready yet"


def _pool_state(pool: _KindPool) -> PoolState:
    from casemate.model.diagnosis import PoolState

    zygote = None if pool.zygote is None else _zygote_state(pool.zygote)
    idle = is_idle(pool.demand, time.monotonic())
    waiting = sum(not cell.future.done() for cell in pool.ready)
    counts = (waiting, pool.demand.running, pool.taken, pool.made)
    return PoolState(pool.plan.language, zygote, *counts, idle=idle, problem=pool.problem)


def _zygote_state(zygote: _Zygote) -> ZygoteState:
    from casemate.model.diagnosis import ZygoteState

    took = zygote.ready - zygote.asked if zygote.ready else None
    return ZygoteState(
        zygote.waiting.preload or (), zygote.state, zygote.problem, zygote.pid or None, took, zygote.data
    )
