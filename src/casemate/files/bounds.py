"""How much of a hostile tree is looked at, and the bounded list of what was left behind."""

from __future__ import annotations

from dataclasses import dataclass

from casemate.model.execution import SkippedFile

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class TreeBounds:
    """``files`` handed out at most, ``file_bytes`` of each and ``total_bytes`` of all; folders nested up to
    ``depth``; ``entries`` of any kind looked at; ``reports``: refusals listed one by one.
    """

    files: int = 1000
    file_bytes: int = 256 * _MIB
    total_bytes: int = 256 * _MIB
    depth: int = 32
    entries: int = 50_000
    reports: int = 200


class Skipped:
    """What was left behind and why; counts everything, lists the first ``most``.

    ``complete`` becomes false when a bound or a failure (not a rule) left something behind.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: list[SkippedFile] = []
        self._unlisted = 0
        self.complete = True

    @property
    def is_full(self) -> bool:
        """Whether what comes now is counted alone, and no name of it is kept."""
        return len(self._files) >= self._most

    def refuse(self, name: str, reason: str) -> None:
        """A rule says no: a link, a device, an unsafe or protected name."""
        if not self.is_full:
            self._files.append(SkippedFile(name, reason))
        else:
            self._unlisted += 1

    def lose(self, name: str, reason: str) -> None:
        """A bound or a failure left behind what the rules would have let through."""
        self.complete = False
        self.refuse(name, reason)

    def as_tuple(self) -> tuple[SkippedFile, ...]:
        """All that is listed, and one more entry that counts the rest."""
        rest = (SkippedFile("…", f"{self._unlisted} more are not listed"),) if self._unlisted else ()
        return (*self._files, *rest)
