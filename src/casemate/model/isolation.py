"""What held a cell as measured, what is kept ready for runs, and what this machine offers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How one limit is enforced.

    Attributes:
        hard: Enforced from outside the program, at the limit; otherwise measured now and then, so it can be overshot.
        per: ``"cell"`` when the sum over the cell counts, ``"process"`` when each process counts alone.
    """

    limit: str
    mechanism: str
    hard: bool
    per: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of one self-test case, run inside a throwaway cell and judged from the host."""

    case: str
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """Which wall held the cell and how that is known.

    Attributes:
        wall: Its name.
        kernel_boundary: ``"shared"``, ``"user-space"`` or ``"vm"``.
        layers: What was active.
        missing: What was not, in plain words.
        proofs: The cases of the self-test.
        proved_at: When that was, in seconds since 1970.
        limits: Each limit's mechanism.
        start: How the cell was made: ``"pool"`` when it was ready before the run came, ``"zygote"`` when it was forked
            for it from a warmed interpreter, ``"exec"`` when the interpreter was started for it.
        start_reason: Why so.
        notes: Anything else a reader must know.
    """

    wall: str
    kernel_boundary: str
    layers: tuple[str, ...]
    missing: tuple[str, ...]
    proofs: tuple[Proof, ...]
    proved_at: float
    limits: tuple[Mechanism, ...]
    start: str = "exec"
    start_reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether every case of the self-test held."""
        return bool(self.proofs) and all(proof.held for proof in self.proofs)


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
    """One language: ``version`` and ``path`` of its interpreter, or what is ``missing`` and the ``remedy``."""

    language: str
    version: str
    path: str
    missing: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything ``casemate doctor`` shows. ``advice``: what would make it better, with the command, in plain words.
    ``warmth``: what could be kept ready.
    """

    version: str
    system: str
    walls: tuple[WallState, ...]
    languages: tuple[LanguageState, ...]
    advice: tuple[str, ...]
    warmth: Warmth = field(default_factory=Warmth)

    @property
    def ok(self) -> bool:
        """Whether at least one wall can be had."""
        return any(wall.available for wall in self.walls)
