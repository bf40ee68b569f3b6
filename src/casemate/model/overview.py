"""What a sandbox says: of itself, of a session, of an installation, and of a program that it looked at."""

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
    """How packages are installed. ``sources``: they may be built, which runs code of theirs in the installing cell;
    ``upgrade``: the newest that fit, also where others are there that fit; ``timeout``: seconds of the cell."""

    sources: bool
    upgrade: bool
    timeout: float


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
    """What was installed: ``packages``, those that came along included; what was there already is not among them.

    Attributes:
        status: ``"denied"`` where somebody or a rule said no, ``"failed"`` where it could not be: then ``reason`` says
            why, and nothing has changed.
        output: What the installer printed.
    """

    status: Literal["installed", "denied", "failed"]
    packages: tuple[InstalledPackage, ...] = ()
    reason: str = ""
    output: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for is there."""
        return self.status == "installed"


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """One language.

    Attributes:
        available: Programs in it can be run here, now; where not, the ``problem`` and the ``remedy``.
        version: Of its interpreter, as far as there is one.
        executable: Of its interpreter, as far as there is one.
        source: Whose that is, in words.
        wall: The name of the wall in force, with its ``proofs``; empty where there is none.
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
    of them, casemate's own supervisor among them.

    Attributes:
        memory: Bytes of what lives; None where nothing tells.
        cpu_seconds: Of what lives, so far; None where nothing tells.
        mechanism: What tells.
    """

    running: int = 0
    ready: int = 0
    processes: int = 0
    memory: int | None = None
    cpu_seconds: float | None = None
    mechanism: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Runs, steps, installations and looks at programs that came to their end since ``since`` (Unix time).

    Attributes:
        by_status: How many of each.
        cpu_seconds: Of all together.
        peak_memory: Bytes, of the one that took most.
    """

    executions: int
    by_status: Mapping[str, int]
    cpu_seconds: float
    peak_memory: int
    since: float


@dataclass(frozen=True, slots=True)
class Stats:
    """What goes on in a sandbox. ``running`` executions of at most ``concurrency``, and ``waiting`` ones.

    Attributes:
        cells: What its cells use.
        zygotes: Interpreters that cells are forked from.
        sessions: Open ones.
        approvals: Requests that wait for an answer.
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
    """A name of a session's user, and its value's type by name; never the value."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a session is and has. Times are seconds; ``idle`` is 0 while it is busy.

    Attributes:
        cwd: The folder in which its first step began.
        env: Variables that it was opened with; those of secrets are masked, and what of a secret is in others is
            hidden.
        network: ``"none"``, ``"listed"`` or ``"public"``, with the ``allowed_domains``.
        packages: What was installed for it or for all.
        variables: None while it is busy or before its interpreter is there.
        runs: Ids of those begun with ``start`` that are still known.
        steps: How many came to their end, by status.
        usage: Of them together.
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
    """One thing that was found, at ``line`` and ``column`` (both from 1; 0 where it has no place).

    Attributes:
        severity: ``"error"``: it would not run; ``"warning"``: a checker's doubt; ``"hint"``: something that may do
            harm, which decides nothing.
        code: A stable word (``syntax``, ``dangerous-eval``, ruff's ``F401``).
    """

    line: int
    column: int
    message: str
    severity: Severity
    code: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that would help, in words; ``line`` from 1, 0 where it is about more than one."""

    message: str
    line: int
    code: str


@dataclass(frozen=True, slots=True)
class Validation:
    """What came of looking at a program. See :meth:`casemate.Sandbox.validate`.

    Attributes:
        valid: The program as it was given has no error.
        verdict: ``"pass"``; ``"fixed"`` where ``fixed_code`` has what was asked for, a program in which the ``fixes``
            are made; else ``"reject"``.
        fixes: With these the program would be, or is, better; what was given is never changed.
        notes: What was not looked at, and why.
    """

    language: str
    valid: bool
    verdict: VerdictWord
    issues: tuple[Issue, ...] = ()
    fixes: tuple[Fix, ...] = ()
    fixed_code: str | None = None
    notes: tuple[str, ...] = ()
