"""Why a path in a caller's folder stays as it is: one answer for all that is applied, read or written for a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from casemate.files.protected import PROTECTED, Protection, holds_protected

HIDDEN = "it is hidden in this workspace, and stays as it is"
_LEADS = "something that is kept as it is lies beneath that name"
Path = tuple[bytes, ...]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FolderRules:
    """Of one folder. Paths are relative to it.

    ``protection``: names that are kept, None for none; ``hidden``: paths that programs do not see. ``leads``: where
    links lead that are kept, and what they pass through, each with the links' own names. ``anchors``: paths at which
    nothing but a folder may be, as names beneath them are kept. ``kept_by_policy``: why the policy keeps a name, empty
    where it does not; ``unlisted``: why nothing is written at a place. ``output``: a folder at the top that is handed
    out, and not applied; empty where it is.
    """

    protection: Protection | None = PROTECTED
    hidden: frozenset[str] = frozenset()
    leads: Mapping[str, frozenset[str]] = field(default_factory=dict)
    anchors: frozenset[str] = frozenset()
    kept_by_policy: Callable[[str], str] = lambda _: ""
    unlisted: Callable[[str], str] = lambda _: ""
    output: str = ""

    def reason(self, path: Path, *, folder: bool, names: Names | None = None) -> str | None:
        """Why what lies at ``path``, or shall lie there, stays as it is; None where it may be written and removed.
        ``folder``: it is one, or shall become one; ``names``: the path as the protected names see it."""
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
        """Why what is made at ``path`` may not be a link; empty where it may."""
        is_kept = self.protection and path[-1].startswith(b".") and holds_protected(lossy_names(path))
        return "names in a folder that is called so are protected, and it is a link" if is_kept else ""

    def is_policy(self, reason: str | None, path: Path) -> bool:
        """Whether ``reason`` is what the policy says of ``path``: then each thing beneath it is looked at by itself."""
        place = "/".join(map(os.fsdecode, path))
        return reason is not None and reason in (self.unlisted(place), self.kept_by_policy(place))

    def _why_kept(self, place: str, names: Names, *, folder: bool) -> str:
        protected = self.protection.reason(names, folder=folder) if self.protection and names else None
        return protected or self.kept_by_policy(place)


def path_of(text: str) -> Path:
    """The names of a relative path, none for an empty one."""
    return tuple(os.fsencode(text).split(b"/")) if text else ()


def lossy_names(path: Path) -> Names:
    """The names of a path as text, whatever bytes are in them."""
    return tuple(name.decode("utf-8", "backslashreplace") for name in path)
