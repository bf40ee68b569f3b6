"""What was changed in a folder of the caller's and is kept back, and what came of applying it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from casemate.model.execution import SkippedFile
from casemate.model.shown import Shown
from casemate.visible import visible

if TYPE_CHECKING:
    from casemate.model.showing import Summary


@dataclass(frozen=True, slots=True)
class Change:
    """One file, link or folder that is not as it is in the folder.

    Attributes:
        path: Relative, with ``/`` between folders; a folder's ends with one. Where ``refused`` says that the name is
            unsafe it is escaped.
        kind: What has become of it.
        source: Where a renamed file was.
        mode_before: Permission bits in the folder; None where there is nothing.
        mode_after: Those that it would get.
        size_before: In bytes; None for what is no regular file.
        size_after: As ``size_before``.
        link_before: Where a link leads.
        link_after: As ``link_before``.
        is_binary: Whether it is no text, so that there is no ``diff``.
        diff: The lines that differ, as a unified diff without its two first lines.
        left_out: Why the diff is not there, or not all of it; empty where it is.
        refused: Why it would not be applied; empty where it would.
        conflict: What the folder's owner changed there meanwhile; empty where that is nothing.
    """

    path: str
    kind: Literal["added", "changed", "removed", "renamed"]
    source: str | None = None
    mode_before: int | None = None
    mode_after: int | None = None
    size_before: int | None = None
    size_after: int | None = None
    link_before: str | None = None
    link_after: str | None = None
    is_binary: bool = False
    diff: str = ""
    left_out: str = ""
    refused: str = ""
    conflict: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Shown):
    """Everything that is kept back.

    Attributes:
        changes: In order of their paths.
        hash: SHA-256 of what would be applied: names, modes and contents.
        unlisted: How many refusals are counted here alone, because there are too many.
    """

    changes: tuple[Change, ...]
    hash: str
    unlisted: int = 0

    def _line(self) -> str:
        return f"Diff of {len(self.changes)}: {'; '.join(map(shown_change, self.changes[:8]))}"

    def _summary(self) -> Summary:
        from casemate.model.showing import Part, Summary

        lines = [visible(shown_change(one)) for one in self.changes]
        lines += [f"and {self.unlisted} more that are refused"] if self.unlisted else []
        parts = [Part("changes", "\n".join(lines))] if lines else []
        parts += [Part(one.path, one.diff) for one in self.changes if one.diff]
        is_bad = any(one.refused or one.conflict for one in self.changes)
        return Summary(f"Diff of {len(self.changes)}", (("hash", self.hash),), parts, "bad" if is_bad else "plain")


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of applying changes to a folder.

    Attributes:
        written: Relative names. Folders have ``/`` at their end, and are listed when they are new.
        removed: Likewise. Removing a folder lists it alone, not what was in it.
        skipped: What was refused, or failed, and why.
        conflicts: What the folder's owner changed meanwhile; then nothing was written.
        status: ``"failed"``: nothing was written, or, where ``written`` or ``removed`` say so, not all.
        reason: Why it is not ``"applied"``.
    """

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    conflicts: tuple[SkippedFile, ...] = ()
    status: Literal["applied", "nothing", "denied", "conflict", "failed"] = "applied"
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that was to be applied is."""
        return self.status in ("applied", "nothing")


def shown_change(change: Change) -> str:
    """A change on a line, for people: ``changed run.sh (mode 755 to 700, 12 to 30 bytes)``."""
    facts = []
    for what, before, after, unit in (
        ("mode ", _octal(change.mode_before), _octal(change.mode_after), ""),
        ("", change.size_before, change.size_after, " bytes"),
        ("link to ", change.link_before, change.link_after, ""),
    ):
        known = [str(one) for one in dict.fromkeys((before, after)) if one is not None]
        if known:
            facts.append(f"{what}{' to '.join(known)}{unit}")
    facts += ["binary"] if change.is_binary else []
    facts += [f"lines not shown: {change.left_out}"] if change.left_out else []
    name = f"{change.source} as {change.path}" if change.source else change.path
    notes = [f"{word}: {why}" for word, why in (("REFUSED", change.refused), ("CONFLICT", change.conflict)) if why]
    return "; ".join((f"{change.kind} {name} ({', '.join(facts)})", *notes))


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:03o}"
