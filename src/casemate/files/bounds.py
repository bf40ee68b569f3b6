"""Bounds on reading a hostile tree, and a bounded list of what was left out."""

from __future__ import annotations

from dataclasses import dataclass

from casemate.model.execution import SkippedFile

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class TreeBounds:
    """Bounds of a walk."""

    files: int = 1000  # files handed out
    file_bytes: int = 256 * _MIB  # bytes of each file
    total_bytes: int = 256 * _MIB  # bytes of all files
    depth: int = 32  # levels of nested folders
    entries: int = 50_000  # entries of any kind that are read
    reports: int = 200  # refusals to list individually


class Skipped:
    """What was left out, and why. Counts everything, and lists the first ``most``.

    ``complete`` becomes False when something was left out because of a bound or failure, not a rule.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: list[SkippedFile] = []
        self._unlisted = 0
        self.complete = True

    @property
    def is_full(self) -> bool:
        """Whether later names are only counted."""
        return len(self._files) >= self._most

    def refuse(self, name: str, reason: str) -> None:
        """Record that a rule forbids it: a link, a device, an unsafe or protected name."""
        if not self.is_full:
            self._files.append(SkippedFile(name, reason))
        else:
            self._unlisted += 1

    def lose(self, name: str, reason: str) -> None:
        """Record that a bound or failure left out something that the rules allow."""
        self.complete = False
        self.refuse(name, reason)

    def as_tuple(self) -> tuple[SkippedFile, ...]:
        """The listed entries, and one more that counts the rest."""
        rest = (SkippedFile("…", f"{self._unlisted} more are not listed"),) if self._unlisted else ()
        return (*self._files, *rest)
