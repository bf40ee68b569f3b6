"""The state of what is kept ready, and what this machine offers."""

from __future__ import annotations

from dataclasses import dataclass, field

from casemate.model.isolation import IsolationReport
from casemate.model.room import Room


@dataclass(frozen=True, slots=True)
class ZygoteState:
    """A warmed interpreter that cells are forked from."""

    preload: tuple[str, ...]  # the modules that it has loaded
    state: str  # "wanted", "starting", "ready" or "ruled out", with the `problem`
    problem: str
    pid: int | None
    seconds: float | None  # how long its start took
    data: int  # bytes that its cells share with it


@dataclass(frozen=True, slots=True)
class PoolState:
    """Cells of one kind."""

    language: str
    zygote: ZygoteState | None  # parent of the cells; None if they are executed
    ready: int  # including those being made
    running: int
    taken: int  # so far, like `made`
    made: int
    idle: bool = False  # no cells are wanted, because none ran for a while
    problem: str = ""  # why no more cells are made

    @property
    def is_settled(self) -> bool:
        """Whether no cell is being made."""
        return bool(self.ready or self.idle or self.problem or (self.zygote and self.zygote.state == "ruled out"))


@dataclass(frozen=True, slots=True)
class Warmth:
    pools: tuple[PoolState, ...] = ()
    zygotes: tuple[ZygoteState, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether no cell or zygote is being made."""
        ended = ("ready", "ruled out")
        return all(pool.is_settled for pool in self.pools) and all(zygote.state in ended for zygote in self.zygotes)


@dataclass(frozen=True, slots=True)
class WallState:
    """One wall: its ``report`` if it is available, else ``reason`` (a stable code), ``problem`` and ``remedy``."""

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
    """A language, or a need of web pages: its ``version`` and ``path``, or what is ``missing`` and the ``remedy``."""

    language: str
    version: str
    path: str
    missing: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that ``casemate doctor`` shows."""

    version: str
    system: str
    walls: tuple[WallState, ...]
    languages: tuple[LanguageState, ...]
    advice: tuple[str, ...]  # possible improvements, with commands
    warmth: Warmth = field(default_factory=Warmth)  # what could be kept ready
    web: tuple[LanguageState, ...] = ()  # what searches, pages and the browser need
    room: Room = field(default_factory=Room)

    @property
    def ok(self) -> bool:
        """Whether at least one wall is available."""
        return any(wall.available for wall in self.walls)
