"""The files that a step of a session left: handed out, and written back into the caller's folder.

They are opened beneath the workspace without following links, copied and hashed in one pass, while nothing in the
cell runs: it is dead, or stands still.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from casemate.artifacts.collect import Collected, collect
from casemate.artifacts.export import export
from casemate.execution.gather import bounds_of, digests_of, hidden_from, opened_folder, output_before
from casemate.files.seen import Seen
from casemate.files.walk import open_folder
from casemate.model.execution import SkippedFile
from casemate.model.plan import OUTPUT_NAME, Plan
from casemate.sessions.outcome import Left
from casemate.workspace.apply import WRITTEN_BACK, apply
from casemate.workspace.upper import marks_here

if TYPE_CHECKING:
    from casemate.execution.house import House
    from casemate.redaction.redaction import Redaction

_MOST_GIVEN = 100_000  # names; what is put there after so many counts as a step's
_FOLDERS = {"private": b"workspace", "overlay": b"upper"}  # of all that the cell can write


@dataclass(slots=True)
class Leavings:
    """What a session's steps have left so far. ``given``: digests of files that nobody made here, by name."""

    plan: Plan
    house: House
    redaction: Redaction | None = None
    given: dict[str, str] = field(init=False)
    _collected: Seen = field(default_factory=Seen)
    _applied: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.given = {**digests_of(self.plan), **output_before(self.plan)}

    def gave(self, name: str, sha256: str) -> None:
        """From outside a file is put at ``name``: it is nobody's work here, as long as it has this content."""
        if len(self.given) < _MOST_GIVEN or name in self.given:
            self.given[name] = sha256

    def is_empty(self, tree: int) -> bool:
        """Whether a private workspace is as empty as it was made: the usual case, worth no thread."""
        if self.plan.workspace.kind != "private" or self.given:
            return False
        with _Folder(self.plan, tree, unlock=False) as folder:
            if os.listdir(folder) != [OUTPUT_NAME]:
                return False
            try:
                output = open_folder(folder, OUTPUT_NAME)
            except OSError:
                return False
            try:
                return not os.listdir(output)
            finally:
                os.close(output)

    def is_untouched(self, tree: int) -> bool:
        """Whether the cell has written nothing since the last step; it may be running."""
        kind = self.plan.workspace.kind
        with _Folder(self.plan, tree, unlock=False) as folder:
            if kind == "direct":  # all else there is the caller's
                return self._is_output_untouched(folder)
            return (self._applied if kind == "overlay" else self._collected).is_whole(folder)

    def _is_output_untouched(self, folder: int) -> bool:
        try:
            output = open_folder(folder, OUTPUT_NAME)
        except FileNotFoundError:
            return True
        try:
            return self._collected.is_whole(output, (OUTPUT_NAME.encode(),))
        finally:
            os.close(output)

    def take(self, tree: int, *, dead: bool) -> Left:
        """What is new. Nothing in the cell runs; ``dead``: nor will."""
        with _Folder(self.plan, tree, unlock=dead) as folder:
            kind = self.plan.workspace.kind
            under = () if kind == "private" else (OUTPUT_NAME,)
            found = collect(
                folder,
                under=under,
                given=self.given,
                bounds=bounds_of(self.plan.limits),
                unlock=dead and kind != "direct",
                seen=self._collected,
                redaction=self.redaction,
                hidden=hidden_from(self.plan, self.house) if kind == "direct" else lambda _: False,
            )
            skipped = (*found.skipped, *(self._apply(folder, dead) if kind == "overlay" else ()))
        return Left(found.files, (*skipped, *self._export(found)))

    def _apply(self, upper: int, dead: bool) -> tuple[SkippedFile, ...]:
        assert self.plan.workspace.folder is not None
        with opened_folder(self.plan.workspace.folder) as folder:
            status = os.fstat(folder)
            owner = (status.st_uid, status.st_gid)
            return apply(
                upper,
                folder,
                owner=owner,
                bounds=WRITTEN_BACK,
                seen=self._applied,
                unlock=dead,
                unless_empty=(OUTPUT_NAME.encode(),),
                marks=marks_here(),
            ).skipped

    def _export(self, found: Collected) -> tuple[SkippedFile, ...]:
        if not self.house.output_dir or not found.files:
            return ()
        return export(found.files, self.house.output_dir, under=(OUTPUT_NAME,)).skipped


class _Folder:
    """The folder in which a cell's workspace, or its layer of it, lies; for the length of a block."""

    def __init__(self, plan: Plan, tree: int, *, unlock: bool) -> None:
        if plan.workspace.kind == "direct":
            assert plan.workspace.folder is not None
            self._fd = os.open(plan.workspace.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            self._fd = open_folder(tree, _FOLDERS[plan.workspace.kind], unlock=unlock)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *failure: object) -> None:
        os.close(self._fd)
