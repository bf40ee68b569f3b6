"""What a sandbox says: of itself, of a session, of an installation, and of a program that it looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from casemate.model.execution import Usage
from casemate.model.isolation import Proof
from casemate.model.limits import Limits


@dataclass(frozen=True, slots=True)
class InstallTerms:
    """How packages are installed. ``sources``: they may be built, which runs code of theirs in the installing cell;
    ``upgrade``: the newest that fit, also where others are there that fit; ``timeout``: seconds of the cell."""

    sources: bool
    upgrade: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """One package. ``file``: the name of the file that it came in, ``source`` the address of that without credentials,
    ``sha256`` and ``size`` (bytes) what it is."""

    name: str
    version: str
    file: str = ""
    source: str = ""
    sha256: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Installed:
    """What was installed: ``packages``, those that came along included; what was there already is not among them.

    ``status``: ``"denied"`` where somebody or a rule said no, ``"failed"`` where it could not be: then ``reason`` says
    why, and nothing has changed. ``output``: what the installer printed.
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
    """One language. ``available``: programs in it can be run here, now; where not, the ``problem`` and the ``remedy``.

    ``version`` and ``executable``: of its interpreter, as far as there is one; ``source``: whose that is, in words.
    ``wall``: the name of the wall in force, with its ``proofs``; empty where there is none.
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

    ``memory`` in bytes and ``cpu_seconds`` so far of what lives, None where nobody tells; ``mechanism``: who does.
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

    ``by_status``: how many of each; ``cpu_seconds`` of all; ``peak_memory``: bytes, of the one that took most.
    """

    executions: int
    by_status: Mapping[str, int]
    cpu_seconds: float
    peak_memory: int
    since: float


@dataclass(frozen=True, slots=True)
class Stats:
    """What goes on in a sandbox. ``running`` executions of at most ``concurrency``, and ``waiting`` ones.

    ``cells``: what its cells use; ``zygotes``: interpreters that cells are forked from; ``sessions``: open ones;
    ``approvals``: requests that wait for an answer.
    """

    running: int
    waiting: int
    concurrency: int
    cells: InUse
    zygotes: int
    sessions: int
    approvals: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """A name of a session's user, and its value's type by name; never the value."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a session is and has. Times are seconds; ``idle`` is 0 while it is busy.

    ``cwd``: the folder in which its first step began. ``env``: variables that it was opened with; those of secrets are
    masked, and what of a secret is in others is hidden. ``network``: ``"none"``, ``"listed"`` or ``"public"``, with the
    ``allowed_domains``. ``packages``: what was installed for it or for all. ``variables``: None while it is busy or
    before its interpreter is there. ``runs``: ids of those begun with ``start`` that are still known. ``steps``: how
    many came to their end, by status; ``usage``: of them together.
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

    ``severity``: ``"error"``: it would not run; ``"warning"``: a checker's doubt; ``"hint"``: something that may do
    harm, which decides nothing. ``code``: a stable word (``syntax``, ``dangerous-eval``, ruff's ``F401``).
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

    ``valid``: the program as it was given has no error. ``verdict``: ``"pass"``; ``"fixed"`` where ``fixed_code`` has
    what was asked for, a program in which the ``fixes`` are made; else ``"reject"``. ``fixes``: with these the program
    would be, or is, better; what was given is never changed. ``notes``: what was not looked at, and why.
    """

    language: str
    valid: bool
    verdict: VerdictWord
    issues: tuple[Issue, ...] = ()
    fixes: tuple[Fix, ...] = ()
    fixed_code: str | None = None
    notes: tuple[str, ...] = ()
