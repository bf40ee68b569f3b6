"""Changes of the caller's folder that await review, and the result of applying them."""

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
    """One file, link or folder that a program changed.

    Attributes:
        path: Relative, with ``/`` between its parts. The path of a folder ends with ``/``. It is escaped if
            ``refused`` calls the name unsafe.
        kind: How it differs.
        source: The old path of a renamed file.
        mode_before: Permission bits in the folder; None if it does not exist.
        mode_after: Permission bits after the change.
        size_before: In bytes; None for all but regular files.
        link_before: The target of a link.
        is_binary: Whether it is not text. Then ``diff`` is empty.
        diff: The lines that differ, as a unified diff without its first two lines.
        left_out: Why the diff is missing or incomplete; empty if it is whole.
        refused: Why it cannot be applied; empty if it can.
        conflict: What the folder's owner changed there since; empty if nothing.
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
    """All changes that await review.

    Attributes:
        changes: In order of their paths.
        hash: SHA-256 of what would be applied: names, modes and contents.
        unlisted: How many more changes there are. These are refused: a review shows only so many.
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
    """The result of applying changes to a folder.

    Attributes:
        written: Relative names. Those of folders end with ``/``, and are listed if they are new.
        removed: Like ``written``. A removed folder is listed without its contents.
        skipped: What was refused, or failed, and why.
        conflicts: What the folder's owner changed since; then nothing was written.
        status: ``"failed"``: nothing was written, or only what ``written`` and ``removed`` list.
        reason: Why the status is not ``"applied"``.
    """

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    conflicts: tuple[SkippedFile, ...] = ()
    status: Literal["applied", "nothing", "denied", "conflict", "failed"] = "applied"
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether all changes are applied, or there were none."""
        return self.status in ("applied", "nothing")


def shown_change(change: Change) -> str:
    """A change on one line, for people: ``changed run.sh (mode 755 to 700, 12 to 30 bytes)``."""
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
