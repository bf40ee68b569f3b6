"""What this machine offers: the answer of ``casemate doctor``."""

from __future__ import annotations

from dataclasses import dataclass, field

from casemate.model.isolation import IsolationReport
from casemate.model.warmth import Warmth


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
