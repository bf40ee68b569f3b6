"""Why a path in a caller's folder stays as it is: one answer for applying, reading and writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from casemate.files.protected import PROTECTED, Protection, holds_protected

HIDDEN = "it is hidden in this workspace, and stays as it is"
_LEADS = "a name beneath it is kept as it is"
Path = tuple[bytes, ...]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FolderRules:
    """The rules of one folder. Paths are relative to it."""

    protection: Protection | None = PROTECTED  # names to keep; None for none
    hidden: frozenset[str] = frozenset()  # paths that programs do not see
    # Places that kept links lead to or through, each with the links' names.
    leads: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Paths that must be folders, because names beneath them are kept.
    anchors: frozenset[str] = frozenset()
    kept_by_policy: Callable[[str], str] = lambda _: ""  # why the policy keeps a name; empty if it does not
    unlisted: Callable[[str], str] = lambda _: ""  # why nothing is written at a place; empty if it may be
    output: str = ""  # a top-level folder that is handed out instead of applied; empty if none

    def reason(self, path: Path, *, folder: bool, names: Names | None = None) -> str | None:
        """Why ``path`` stays as it is; None if it may be written and removed. ``folder``: whether it is or becomes a
        folder. ``names``: the path as the protected names see it."""
        places = ["/".join(map(os.fsdecode, path[:depth])) for depth in range(len(path) + 1)]
        if not self.hidden.isdisjoint(places):
            return HIDDEN
        why = self.unlisted(places[-1]) or self._why_kept(places[-1], names or lossy_names(path), folder=folder)
        if why or (not folder and places[-1] in self.anchors):
            return why or _LEADS
        for depth, place in enumerate(places if self.leads else ()):
            for lead in self.leads.get(place, ()):
                rest = lossy_names(path[depth:])
                if why := self._why_kept("/".join((lead, *rest)), (*lead.split("/"), *rest), folder=folder):
                    return f"{lead} leads there, and {why}"
        return None

    def why_no_link(self, path: Path) -> str:
        """Why what is made at ``path`` must not be a link; empty if it may be."""
        is_kept = self.protection and path[-1].startswith(b".") and holds_protected(lossy_names(path))
        return "it is a link, and names in a folder of its name are protected" if is_kept else ""

    def is_policy(self, reason: str | None, path: Path) -> bool:
        """Whether ``reason`` is the policy's reason for ``path``. Then each entry beneath it is checked separately."""
        place = "/".join(map(os.fsdecode, path))
        return reason is not None and reason in (self.unlisted(place), self.kept_by_policy(place))

    def _why_kept(self, place: str, names: Names, *, folder: bool) -> str:
        protected = self.protection.reason(names, folder=folder) if self.protection and names else None
        return protected or self.kept_by_policy(place)


def path_of(text: str) -> Path:
    """The names of a relative path; none if it is empty."""
    return tuple(os.fsencode(text).split(b"/")) if text else ()


def lossy_names(path: Path) -> Names:
    """The names of a path as text, for any bytes."""
    return tuple(name.decode("utf-8", "backslashreplace") for name in path)
