"""Cells that are ready before they are needed, and the zygotes that they come from.

Above is the wall, which asks for one with `take`; below is the link. What is ready was made for nobody, serves one
run and is never given to another. The pump thread keeps time here, and any thread may take.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError
from casemate.model.secrets import NO_SECRETS
from casemate.walls.native import launch, pool

if TYPE_CHECKING:
    from casemate.model.plan import Plan, Waiting
    from casemate.model.warmth import PoolState, Warmth, ZygoteState
    from casemate.walls.native.link import Link
    from casemate.walls.native.running import RunningCell

_SOON = 0.05  # seconds after the first run: who runs one program and goes pays for nothing
_AFTER = 0.001  # seconds after a run until others are made ready in the place of what it took
_LATER = 1.0  # seconds after the first run, until the zygote of programs that want more is started as well
_OFTEN = 1.0  # seconds between looks at what is ready
_DEATHS = 3  # of a zygote in a row, each within seconds of its start: then its environment goes without
_SHORT_LIFE = 10.0
_FAILURES = 5  # cells of one kind that ended while they waited, in a row: then it goes without
_KINDS = 8  # that are kept at most
_LEAST = 2  # cells of a kind, however many of others wait
_ENOUGH_FOR_ONE = 400 << 20  # bytes


@dataclass(slots=True)
class _Zygote:
    """One warmed interpreter, as far as the supervisor has told of it."""

    key: str
    waiting: Waiting
    state: str = "wanted"  # then starting, ready, or ruled out
    problem: str = ""
    pid: int = 0
    data: int = 0
    deaths: int = 0
    asked: float = 0.0
    ready: float = 0.0


@dataclass(slots=True)
class _Shelf:
    """Cells of one kind. ``request`` makes another; ``waiting`` says how."""

    plan: Plan
    root: str
    request: dict[str, Any]
    waiting: Waiting
    zygote: _Zygote | None
    born: float
    demand: pool.Demand = field(default_factory=pool.Demand)
    ready: deque[RunningCell] = field(default_factory=deque)
    taken: int = 0
    made: int = 0
    failed: int = 0  # in a row: cells that ended while they waited
    problem: str = ""


class Turn:
    """One run's turn at the cells of its kind.

    ``cell``: one that waits, and ``how`` it came about; None where there is none, and ``why``.
    """

    def __init__(
        self, warm: Warm, shelf: _Shelf, cell: RunningCell | None = None, how: str = "exec", why: str = ""
    ) -> None:
        self.cell = cell
        self.how = how
        self.why = why
        self._warm = warm
        self._shelf: _Shelf | None = shelf

    def end(self) -> None:
        """The run is over. Once; harmless when repeated."""
        shelf, self._shelf = self._shelf, None
        if shelf is not None:
            self._warm.ended(shelf)


class Warm:
    """What one link keeps ready, for at most ``concurrency`` runs at once."""

    def __init__(self, link: Link, concurrency: int) -> None:
        self._link = link
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._shelves: dict[Any, _Shelf] = {}
        self._zygotes: dict[Any, _Zygote] = {}
        self._runs = 0
        self._due: float | None = None
        self._looked = 0.0
        self._free_bytes = 0

    # -- from any thread

    def take(self, plan: Plan, waiting: Waiting, root: str) -> Turn:
        """A run's turn, which has a cell that waits for such a program where there is one. Raises ``OSError``."""
        now = time.monotonic()
        with self._lock:
            shelf = self._shelf(plan, waiting, root)
            shelf.demand.begin(now)
            self._runs += 1
            if self._runs > 1 or plan.session:
                self._want_zygote(shelf, now)
            return self._turn(shelf, plan.continues)

    def _turn(self, shelf: _Shelf, continues: str) -> Turn:
        while shelf.ready and not continues:
            cell = shelf.ready.popleft()
            if not cell.future.done():
                shelf.taken += 1
                return Turn(self, shelf, cell, "pool")
        if shelf.zygote is None:
            return Turn(self, shelf, why=shelf.problem or "no cell of its kind was ready yet")
        if shelf.zygote.state != "ready":
            return Turn(self, shelf, why=_why_not(shelf.zygote))
        try:
            return Turn(self, shelf, self._make(shelf, continues), "zygote")
        except OSError as error:
            return Turn(self, shelf, why=f"a cell could not be made ready: {error.strerror}")

    def ended(self, shelf: _Shelf) -> None:
        """A turn at ``shelf`` is over."""
        with self._lock:
            now = time.monotonic()
            shelf.demand.end(now)
            self._set_due(now + (_SOON if self._runs == 1 else _AFTER))  # not now: the result is on its way

    def start(self, plan: Plan, waiting: Waiting, root: str) -> None:
        """Keep cells for such programs ready, from now on."""
        now = time.monotonic()
        with self._lock:
            shelf = self._shelf(plan, waiting, root)
            shelf.demand.last = shelf.demand.since = now
            shelf.demand.most = max(1, shelf.demand.most)
            self._want_zygote(shelf, now)
            self._fill(shelf)
            self._set_due(now + _OFTEN)

    def states(self) -> Warmth:
        """What there is, for people."""
        from casemate.model.warmth import Warmth  # here alone: who runs one program and goes asks for nothing

        with self._lock:
            pools = tuple(_pool_state(shelf) for shelf in self._shelves.values())
            return Warmth(pools, tuple(_zygote_state(zygote) for zygote in self._zygotes.values()))

    # -- in the pump thread

    def hear(self, message: dict[str, Any]) -> None:
        """The supervisor tells of a zygote."""
        with self._lock:
            zygote = next((one for one in self._zygotes.values() if one.key == message["key"]), None)
            if zygote is None:
                return
            if message["op"] == "zygote ended":
                self._lost(zygote, message["detail"])
            elif message["problem"] is not None:
                zygote.state, zygote.problem = "ruled out", message["problem"]
            else:
                zygote.state, zygote.pid, zygote.data = "ready", message["pid"], message["data"]
                zygote.ready = time.monotonic()
                for shelf in self._shelves.values():
                    if shelf.zygote is zygote:
                        self._fill(shelf)

    def next_time(self) -> float | None:
        """When `on_time` wants to be called (monotonic seconds)."""
        return self._due

    def on_time(self) -> None:
        """Start what is wanted, end what is no longer."""
        now = time.monotonic()
        if self._due is None or now < self._due:
            return
        with self._lock:
            for shelf in list(self._shelves.values()):
                with contextlib.suppress(OSError, CasemateError):  # its workspace has gone; a run will say so
                    self._keep_up(shelf, now)
            self._drop_idle(now)
            soon = any(pool.has_just_ended(shelf.demand, now) for shelf in self._shelves.values())
            self._due = now + (pool.PAUSE if soon else _OFTEN) if self._shelves or self._zygotes else None

    # -- under the lock

    def _shelf(self, plan: Plan, waiting: Waiting, root: str) -> _Shelf:
        kind = _kind(plan, waiting, root)
        shelf = self._shelves.get(kind)
        if shelf is None:
            zygote = None if waiting.preload is None else self._zygote(waiting, root)
            request = launch.waiting_request(plan, waiting, root)
            request["zygote"] = zygote.key if zygote else ""
            # A program's own is not kept.
            like = replace(
                plan, code=b"", files={}, stdin=b"", env={}, argv=(), waiting="", continues="", secrets=NO_SECRETS
            )
            waiting = replace(waiting, order=b"")
            now = time.monotonic()
            shelf = self._shelves[kind] = _Shelf(like, root, request, waiting, zygote, now)
            shelf.demand.last = now
            self._drop_least_used()
        return shelf

    def _zygote(self, waiting: Waiting, root: str) -> _Zygote:
        kind = (root, waiting.argv, tuple(waiting.env.items()), waiting.preload, waiting.optional)
        for known in [one for one in self._zygotes.values() if one.waiting.argv == waiting.argv]:
            if known.waiting.stamp != waiting.stamp:
                self._retire(known)  # their environment has changed on the disk
        zygote = self._zygotes.get(kind)
        if zygote is None:
            zygote = self._zygotes[kind] = _Zygote(os.urandom(6).hex(), waiting)
        return zygote

    def _retire(self, zygote: _Zygote) -> None:
        for kind, shelf in list(self._shelves.items()):
            if shelf.zygote is zygote:
                self._empty(shelf)
                del self._shelves[kind]
        for name, known in list(self._zygotes.items()):
            if known is zygote:
                del self._zygotes[name]
        self._link.send({"op": "end zygote", "key": zygote.key})

    def _want_zygote(self, shelf: _Shelf, now: float) -> None:
        zygote = shelf.zygote
        if zygote is None or zygote.state != "wanted":
            return
        zygote.state, zygote.asked = "starting", now
        self._link.send(
            {
                "op": "zygote",
                "key": zygote.key,
                "root": shelf.request["root"],
                "argv": list(shelf.waiting.argv),
                "env": dict(shelf.waiting.env),
                "own_entries": shelf.request["own_entries"],
                "preload": list(shelf.waiting.preload or ()),
                "optional": shelf.waiting.optional,
            }
        )

    def _keep_up(self, shelf: _Shelf, now: float) -> None:
        if shelf.waiting.fuller and now - shelf.born > _LATER:
            self._want_fuller(shelf)
        self._want_zygote(shelf, now)
        self._fill(shelf)

    def _want_fuller(self, shelf: _Shelf) -> None:
        """Sooner or later a program comes that wants more modules: their zygote takes a second to start."""
        waiting = replace(shelf.waiting, preload=shelf.waiting.fuller, fuller=(), cost=shelf.waiting.fuller_cost)
        if _kind(shelf.plan, waiting, shelf.root) not in self._shelves:
            demand = self._shelf(shelf.plan, waiting, shelf.root).demand
            demand.last, demand.most = shelf.demand.last, 1

    def _lost(self, zygote: _Zygote, detail: str) -> None:
        if zygote.state == "ruled out":
            return
        now = time.monotonic()
        zygote.deaths = zygote.deaths + 1 if now - zygote.asked < _SHORT_LIFE else 1
        zygote.state, zygote.problem, zygote.ready = "wanted", detail, 0.0
        if zygote.deaths >= _DEATHS:
            zygote.state, zygote.problem = "ruled out", f"it ended {zygote.deaths} times: {detail}"
        self._set_due(now + _SOON)

    def _make(self, shelf: _Shelf, continues: str = "") -> RunningCell:
        waiting = shelf.waiting
        request = {**shelf.request, "continues": continues}
        cell = self._link.prepare(request, launch.payload(waiting.argv, waiting.env, shelf.plan.cwd))
        shelf.made += 1
        return cell

    def _fill(self, shelf: _Shelf) -> None:
        """Make cells ready, a few at a time, and end those that are too many."""
        now = time.monotonic()
        self._drop_dead(shelf)
        if shelf.problem or (shelf.zygote is not None and shelf.zygote.state != "ready"):
            return
        others = [one for one in self._shelves.values() if one is not shelf]
        room = max(min(_LEAST, self._concurrency), self._concurrency - sum(len(one.ready) for one in others))
        taken = sum(len(one.ready) * one.waiting.cost for one in others)
        target = pool.wanted(shelf.demand, now, room, self._free(now) - taken, shelf.waiting.cost)
        try:
            for _ in range(min(target - len(shelf.ready), pool.MOST_MAKING)):
                shelf.ready.append(self._make(shelf))
        except OSError:
            return  # there are too few descriptors for now
        while len(shelf.ready) > target and not pool.is_busy(shelf.demand, now):
            shelf.ready.pop().discard()

    def _drop_dead(self, shelf: _Shelf) -> None:
        """Forget cells that have ended; after many in a row their kind goes without."""
        living = deque(cell for cell in shelf.ready if not cell.future.done())
        dead = len(shelf.ready) - len(living)
        shelf.ready = living
        shelf.failed = shelf.failed + dead if dead else (0 if living else shelf.failed)
        if shelf.failed >= _FAILURES:
            shelf.problem = f"cells of its kind ended {shelf.failed} times while they waited"

    def _drop_least_used(self) -> None:
        """Keep a bounded number of kinds: a caller may ask for another with each run."""
        idle = [kind for kind, shelf in self._shelves.items() if not shelf.demand.running]
        for kind in sorted(idle, key=lambda one: self._shelves[one].demand.last)[: max(0, len(self._shelves) - _KINDS)]:
            self._empty(self._shelves.pop(kind))

    def _free(self, now: float) -> int:
        """Bytes that can be had, looked up now and then."""
        if now - self._looked > _OFTEN:
            self._looked, self._free_bytes = now, _free_memory()
        return self._free_bytes

    def _empty(self, shelf: _Shelf) -> None:
        while shelf.ready:
            shelf.ready.pop().discard()

    def _drop_idle(self, now: float) -> None:
        for kind, shelf in list(self._shelves.items()):
            if not shelf.demand.running and now - shelf.demand.last > pool.ZYGOTE_IDLE:
                self._empty(shelf)
                del self._shelves[kind]
        used = {shelf.zygote.key for shelf in self._shelves.values() if shelf.zygote}
        for zygote in list(self._zygotes.values()):
            if zygote.key not in used:
                self._retire(zygote)

    def _set_due(self, when: float) -> None:
        if self._due is None or when < self._due:
            self._due = when
            self._link.call(_nothing)  # the pump looks at its clock


def _nothing() -> None:
    """Wakes the pump."""


def _kind(plan: Plan, waiting: Waiting, root: str) -> Any:
    """Cells of one kind can begin each other's programs."""
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
        return f"its environment goes without a zygote: {zygote.problem}"
    return "the zygote of its environment, which cells are forked from, is not ready yet"


def _free_memory() -> int:
    """Bytes that can be had without swapping (proc(5), MemAvailable); a little where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _ENOUGH_FOR_ONE


def _pool_state(shelf: _Shelf) -> PoolState:
    from casemate.model.warmth import PoolState

    zygote = None if shelf.zygote is None else _zygote_state(shelf.zygote)
    idle = time.monotonic() - shelf.demand.last > pool.IDLE
    waiting = sum(not cell.future.done() for cell in shelf.ready)
    counts = (waiting, shelf.demand.running, shelf.taken, shelf.made)
    return PoolState(shelf.plan.language, zygote, *counts, idle=idle, problem=shelf.problem)


def _zygote_state(zygote: _Zygote) -> ZygoteState:
    from casemate.model.warmth import ZygoteState

    took = zygote.ready - zygote.asked if zygote.ready else None
    return ZygoteState(
        zygote.waiting.preload or (), zygote.state, zygote.problem, zygote.pid or None, took, zygote.data
    )
