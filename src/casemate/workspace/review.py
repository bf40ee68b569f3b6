"""Review changes held back in a layer over a caller's folder, and apply chosen ones.

Exactly what was shown is applied. It is copied into a new folder inside the caller's folder, compared with what was
shown, and then renamed into place. Nothing changes before the first rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from casemate.errors import InvalidArgument
from casemate.files.beneath import hold
from casemate.files.bounds import Skipped
from casemate.model.execution import SkippedFile
from casemate.model.review import Applied, Diff
from casemate.supervisor.trees.remove import remove_entry
from casemate.supervisor.trees.walk import Deadline, Entry, check_deadline, identity, open_folder, walk
from casemate.workspace.apply import APPLY_SECONDS, WRITTEN_BACK, Writer, remove_all, rights_over
from casemate.workspace.baseline import Baseline, signature
from casemate.workspace.looking import REMOVED, FoundChange, Looker, StageFailed, Token
from casemate.workspace.rules import FolderRules, Path
from casemate.workspace.upper import marks_here

_CHANGED = "the changes are no longer those that were shown; nothing was written"
_CONFLICT = "the folder was changed meanwhile; nothing was written"


class Review(Baseline):
    """Finds and applies the changes of one run or session."""

    def look(self, upper: int, folder: int, *, unlock: bool = False) -> Looker:
        """Find what the layer changes."""
        looker = Looker(folder, self, marks_here())
        with looker, Deadline(APPLY_SECONDS):
            walk(upper, looker, depth=WRITTEN_BACK.depth, entries=WRITTEN_BACK.entries, unlock=unlock)
            with looker.rights:
                looker.list_removals()
        with looker.rights:
            looker.find_renamed()
        looker.found.sort(key=lambda one: one.change.path)
        return looker

    def write(self, upper: int, folder: int, chosen: Sequence[FoundChange], *, is_all: bool = True) -> Applied:
        """Apply exactly ``chosen``, as found by :meth:`look`, or nothing. Raises nothing for the content of either tree
        or a full disk."""
        wanted = {path: token for one in chosen for path, token in one.tokens.items()}
        name = f".casemate-{os.urandom(8).hex()}"
        try:
            with rights_over(folder):
                os.mkdir(name, 0o700, dir_fd=folder)
            try:
                with hold(open_folder(folder, name)) as stage, Deadline(APPLY_SECONDS):
                    return self._write(upper, folder, wanted, stage, is_all)
            finally:
                remove_entry(folder, name)
        except (OSError, StageFailed) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            return Applied(status="failed", reason=f"nothing was written: {why}")

    def _write(self, upper: int, folder: int, wanted: Mapping[Path, Token], stage: int, is_all: bool) -> Applied:
        looker = Looker(folder, self, marks_here(), wanted, stage)
        with looker:
            walk(upper, looker, depth=WRITTEN_BACK.depth, entries=WRITTEN_BACK.entries)
            with looker.rights:
                looker.list_removals()
        check_deadline()
        if conflicts := conflicts_in(looker.found):
            return Applied(conflicts=conflicts, status="conflict", reason=_CONFLICT)
        if {path: token for one in looker.found for path, token in one.tokens.items()} != wanted:
            return Applied(status="failed", reason=_CHANGED)
        skipped = Skipped(WRITTEN_BACK.reports)
        mover = _Mover(folder, wanted, skipped, self.rules)
        with mover:
            walk(stage, mover, depth=WRITTEN_BACK.depth, entries=WRITTEN_BACK.entries, unlock=True)
        mover.removals = _outermost(wanted)
        removed = remove_all(folder, mover, skipped)
        opaque = looker.opaque_folders if is_all else set()
        self.remember({*wanted, *opaque}, looker.signatures, mover.made, folder)
        status, reason = ("applied", "") if not skipped.as_tuple() else ("failed", "not all could be written")
        return Applied(tuple(mover.written), tuple(removed), skipped.as_tuple(), status=status, reason=reason)  # type: ignore[arg-type]


class _Mover(Writer):
    """Moves staged entries into place."""

    def __init__(self, folder: int, tokens: Mapping[Path, Token], skipped: Skipped, rules: FolderRules) -> None:
        super().__init__(folder, WRITTEN_BACK, rules, skipped, marks=None)
        self._tokens = tokens
        self.made: dict[Path, tuple[int, ...]] = {}

    def leave(self, entry: Entry) -> None:
        mode = self._tokens.get(entry.path, (None, None))[1]
        self._levels[-1].mode = mode if isinstance(mode, int) else None
        super().leave(entry)

    def _put_file(self, entry: Entry, file: int, there: os.stat_result | None) -> None:
        mode = self._tokens[entry.path][1]
        assert isinstance(mode, int)
        os.fchmod(file, mode)  # it may have been unlocked for reading
        self._move(entry, there)

    def _put_link(self, entry: Entry, _target: bytes, there: os.stat_result | None) -> None:
        self._move(entry, there)

    def _move(self, entry: Entry, there: os.stat_result | None) -> None:
        self._clear(entry, there)
        os.rename(entry.name, entry.name, src_dir_fd=entry.parent, dst_dir_fd=self._levels[-1].folder)
        self._note_written(entry)

    def _note_made(self, entry: Entry) -> None:
        made = os.stat(entry.name, dir_fd=self._levels[-1].folder, follow_symlinks=False)
        self.identities.add(identity(made))
        self.made[entry.path] = signature(made)


def diff_of(found: Iterable[FoundChange], unlisted: int = 0) -> Diff:
    """The found changes for people and programs."""
    changes, digest = [], sha256()
    for one in found:
        changes.append(one.change)
        for path, token in sorted(one.tokens.items()):
            digest.update(json.dumps([[name.hex() for name in path], *token]).encode() + b"\n")
    return Diff(tuple(changes), digest.hexdigest(), unlisted)


def conflicts_in(found: Iterable[FoundChange]) -> tuple[SkippedFile, ...]:
    """Changes that the folder's owner made meanwhile."""
    return tuple(SkippedFile(one.change.path, one.change.conflict) for one in found if one.change.conflict)


def choose(found: Sequence[FoundChange], paths: Sequence[str] | None) -> list[FoundChange]:
    """The changes at ``paths`` or in folders there, with the new folders that they need; all for None. Either name
    selects a renamed file. Raises ``InvalidArgument`` if no change matches a path."""
    if paths is None:
        return list(found)
    named = [path.strip("/").removeprefix("./") for path in paths]

    def fits(one: FoundChange, name: str) -> bool:
        changed = (path.rstrip("/") for path in (one.change.path, one.change.source) if path)
        return any(f"{path}/".startswith(f"{name}/") for path in changed)

    if lacking := [name for name in named if not any(fits(one, name) for one in found)]:
        raise InvalidArgument("paths", f"nothing is changed at {lacking[0][:200]!r}")
    chosen = [one for one in found if any(fits(one, name) for name in named)]
    needed = {path[:depth] for one in chosen for path in one.tokens for depth in range(1, len(path))}
    known = {id(one) for one in chosen}
    folders = [one for one in found if id(one) not in known and one.change.kind == "added" and {*one.tokens} & needed]
    return [*(one for one in folders if one.change.path.endswith("/")), *chosen]


def _outermost(wanted: Mapping[Path, Token]) -> list[Path]:
    """What is to be removed, without what its folder takes along."""
    return [
        path
        for path, token in wanted.items()
        if token == REMOVED
        and not any(wanted.get(path[:depth], ("folder",))[0] != "folder" for depth in range(1, len(path)))
    ]
