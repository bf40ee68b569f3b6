"""What is kept ready for runs, and what this machine offers. Apart from the report, since no run needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

from casemate.model.isolation import IsolationReport
from casemate.model.room import Room


@dataclass(frozen=True, slots=True)
class ZygoteState:
    """A warmed interpreter that cells are forked from.

    ``preload``: the modules it has loaded; ``state``: "wanted", "starting", "ready" or "ruled out", with the
    ``problem``; ``seconds``: what its start took; ``data``: bytes that its cells share with it.
    """

    preload: tuple[str, ...]
    state: str
    problem: str
    pid: int | None
    seconds: float | None
    data: int


@dataclass(frozen=True, slots=True)
class PoolState:
    """Cells of one kind: how many are ``ready`` or being made, and ``running``; and were ``taken`` and ``made`` so far.

    ``zygote``: what they are forked from; None where they are executed. ``idle``: none is wanted, because nothing ran
    for a while; ``problem``: why there are none any more.
    """

    language: str
    zygote: ZygoteState | None
    ready: int
    running: int
    taken: int
    made: int
    idle: bool = False
    problem: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way."""
        return bool(self.ready or self.idle or self.problem or (self.zygote and self.zygote.state == "ruled out"))


@dataclass(frozen=True, slots=True)
class Warmth:
    """Everything that a sandbox keeps ready."""

    pools: tuple[PoolState, ...] = ()
    zygotes: tuple[ZygoteState, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way any more."""
        ended = ("ready", "ruled out")
        return all(pool.is_settled for pool in self.pools) and all(zygote.state in ended for zygote in self.zygotes)


@dataclass(frozen=True, slots=True)
class WallState:
    """One wall: its ``report`` where it can be had, else ``reason`` (a stable code), ``problem`` and ``remedy``."""

    name: str
    report: IsolationReport | None
    reason: str = ""
    problem: str = ""
    remedy: str = ""

    @property
    def available(self) -> bool:
        return self.report is not None


@dataclass(frozen=True, slots=True)
class LanguageState:
    """One language, or what pages of the web need: its ``version`` and ``path``, or what is ``missing`` and the
    ``remedy``."""

    language: str
    version: str
    path: str
    missing: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything ``casemate doctor`` shows. ``advice``: what would make it better, with the command, in plain words.
    ``warmth``: what could be kept ready. ``web``: what searches, pages and the browser need. ``room``: what the machine
    has left.
    """

    version: str
    system: str
    walls: tuple[WallState, ...]
    languages: tuple[LanguageState, ...]
    advice: tuple[str, ...]
    warmth: Warmth = field(default_factory=Warmth)
    web: tuple[LanguageState, ...] = ()
    room: Room = field(default_factory=Room)

    @property
    def ok(self) -> bool:
        """Whether at least one wall can be had."""
        return any(wall.available for wall in self.walls)
