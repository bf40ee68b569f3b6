"""Information about a sandbox, a session, an installation, and a validated program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from casemate.model.execution import Usage
from casemate.model.isolation import Proof
from casemate.model.limits import Limits
from casemate.model.room import Room


@dataclass(frozen=True, slots=True)
class InstallTerms:
    sources: bool  # packages may be built, which runs their code in the installing cell
    upgrade: bool  # to the newest that fit, even if installed ones fit
    timeout: float  # seconds of the cell


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """One package.

    Attributes:
        file: The name of the file that it came in.
        source: The address of the file, without credentials.
        sha256: Of the file, in hex.
        size: Of the file, in bytes.
    """

    name: str
    version: str
    file: str = ""
    source: str = ""
    sha256: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation.

    Attributes:
        packages: The new packages, including dependencies.
        status: ``"denied"`` by an approver or a rule; ``"failed"`` with the ``reason``. Nothing has changed in either
            case.
        output: What the installer printed.
    """

    status: Literal["installed", "denied", "failed"]
    packages: tuple[InstalledPackage, ...] = ()
    reason: str = ""
    output: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything requested is installed."""
        return self.status == "installed"


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """One language.

    Attributes:
        available: Whether its programs can run here now; if not, see ``problem`` and ``remedy``.
        version: Of its interpreter, if there is one.
        executable: Of its interpreter, if there is one.
        source: Where the interpreter comes from, in words.
        wall: The name of the wall in force, with its ``proofs``; empty if there is none.
    """

    language: str
    available: bool
    version: str = ""
    executable: str = ""
    source: str = ""
    problem: str = ""
    remedy: str = ""
    wall: str = ""
    proofs: tuple[Proof, ...] = ()


@dataclass(frozen=True, slots=True)
class InUse:
    """What a wall's cells use now: ``running`` ones have a program, ``ready`` ones wait for one; ``processes`` of all
    of them, including casemate's supervisor.

    Attributes:
        memory: Bytes of running processes; None if it is not measured.
        cpu_seconds: Of running processes, so far; None if it is not measured.
        mechanism: What measures this.
    """

    running: int = 0
    ready: int = 0
    processes: int = 0
    memory: int | None = None
    cpu_seconds: float | None = None
    mechanism: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Finished runs, steps, installations and validations since ``since`` (Unix time).

    Attributes:
        by_status: How many of each.
        peak_memory: Bytes, of the largest one.
    """

    executions: int
    by_status: Mapping[str, int]
    cpu_seconds: float
    peak_memory: int
    since: float


@dataclass(frozen=True, slots=True)
class Stats:
    """The activity of a sandbox: ``running`` executions, of at most ``concurrency``, and ``waiting`` ones.

    Attributes:
        cells: What its cells use.
        zygotes: Interpreters that cells are forked from.
        sessions: Open ones.
        approvals: Pending requests.
        room: What the machine has left for more.
    """

    running: int
    waiting: int
    concurrency: int
    cells: InUse
    zygotes: int
    sessions: int
    approvals: int
    totals: Totals
    room: Room = field(default_factory=Room)


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """The name of a session's variable, and the name of its type; never the value."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """A session. Times are in seconds; ``idle`` is 0 while it is busy.

    Attributes:
        cwd: The folder in which its first step started.
        env: Its variables. Values of secrets are masked, also within other values.
        network: ``"none"``, ``"listed"`` or ``"public"``, with the ``allowed_domains``.
        packages: Those installed for it or for all.
        variables: None while it is busy, or before its interpreter starts.
        runs: Ids of those from ``start`` that are still known.
        steps: How many ended, by status.
        usage: Of all steps together.
    """

    id: str
    name: str | None
    language: str
    is_busy: bool
    age: float
    idle: float
    idle_timeout: float | None
    cwd: str
    env: Mapping[str, str]
    limits: Limits
    network: str
    allowed_domains: tuple[str, ...]
    packages: tuple[InstalledPackage, ...]
    variables: tuple[VariableInfo, ...] | None
    runs: tuple[str, ...]
    steps: Mapping[str, int]
    usage: Usage


Severity = Literal["error", "warning", "hint"]
VerdictWord = Literal["pass", "fixed", "reject"]


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem, at ``line`` and ``column`` (both from 1; 0 if it has no place).

    Attributes:
        severity: ``"error"``: the program would not run; ``"warning"``: a checker's doubt; ``"hint"``: something
            that may do harm, which does not affect the verdict.
        code: A stable word (``syntax``, ``dangerous-eval``, ruff's ``F401``).
    """

    line: int
    column: int
    message: str
    severity: Severity
    code: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A helpful change, in words; ``line`` from 1, 0 if it is about several."""

    message: str
    line: int
    code: str


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of :meth:`casemate.Sandbox.validate`.

    Attributes:
        valid: Whether the given program has no error.
        verdict: ``"pass"``; ``"fixed"`` if ``fixed_code`` is the requested program with the ``fixes``; else
            ``"reject"``.
        fixes: Changes that improve the program. The given code itself never changes.
        notes: What was not checked, and why.
    """

    language: str
    valid: bool
    verdict: VerdictWord
    issues: tuple[Issue, ...] = ()
    fixes: tuple[Fix, ...] = ()
    fixed_code: str | None = None
    notes: tuple[str, ...] = ()
