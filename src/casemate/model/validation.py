"""What is wrong with a program, found without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
