"""The files that a step of a session left: handed out, and written back into the caller's folder.

They are opened beneath the workspace without following links, copied and hashed in one pass, while nothing in the
cell runs: it is dead, or paused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from casemate.artifacts.collect import CollectedFiles, collect
from casemate.artifacts.export import export
from casemate.execution.gather import bounds_of, digests_of, hidden_from, opened_folder, output_before
from casemate.execution.guarding import rules_of
from casemate.files.walk import SeenFiles
from casemate.model.execution import SkippedFile
from casemate.model.plan import OUTPUT_NAME, Plan
from casemate.sessions.outcome import StepFiles
from casemate.supervisor.trees.walk import open_folder
from casemate.workspace.apply import apply
from casemate.workspace.review import Review
from casemate.workspace.upper import marks_here

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.redaction.redaction import Redaction

_MOST_KNOWN = 100_000  # names; what is put there after so many counts as a step's
_FOLDERS = {"private": b"workspace", "overlay": b"upper"}  # of all that the cell can write


@dataclass(slots=True)
class StepFileCollector:
    """Collects what each step of a session leaves. ``plan``: of its cell now; ``known_files``: digests by name of files
    that no step made."""

    plan: Plan
    context: ExecutionContext
    redaction: Redaction | None = None
    known_files: dict[str, str] = field(init=False)
    review: Review | None = field(init=False)
    _collected: SeenFiles = field(default_factory=SeenFiles)
    _applied: SeenFiles = field(default_factory=SeenFiles)

    def __post_init__(self) -> None:
        self.review = Review([(OUTPUT_NAME.encode(),)]) if self.plan.workspace.reviewed else None
        self.known_files = {**digests_of(self.plan), **output_before(self.plan)}

    def note_upload(self, name: str, sha256: str) -> None:
        """A file is put at ``name`` from outside: no step made it, as long as it has this content."""
        if len(self.known_files) < _MOST_KNOWN or name in self.known_files:
            self.known_files[name] = sha256

    def is_empty(self, tree: int) -> bool:
        """Whether a private workspace is as empty as it was made: the usual case, worth no thread."""
        if self.plan.workspace.kind != "private" or self.known_files:
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
            self._note(folder)
            if kind == "direct" or self.review is not None:  # all else there is the caller's, or kept back
                return self._is_output_untouched(folder)
            return (
                self._applied.is_whole(folder, folders=True) if kind == "overlay" else self._collected.is_whole(folder)
            )

    def _is_output_untouched(self, folder: int) -> bool:
        try:
            output = open_folder(folder, OUTPUT_NAME)
        except FileNotFoundError:
            return True
        try:
            return self._collected.is_whole(output, (OUTPUT_NAME.encode(),))
        finally:
            os.close(output)

    def collect(self, tree: int, *, dead: bool) -> StepFiles:
        """Collect what is new. Nothing in the cell runs; ``dead``: nor will."""
        with _Folder(self.plan, tree, unlock=dead) as folder:
            kind = self.plan.workspace.kind
            under = () if kind == "private" else (OUTPUT_NAME,)
            files = collect(
                folder,
                under=under,
                inputs=self.known_files,
                bounds=bounds_of(self.plan.limits),
                unlock=dead and kind != "direct",
                seen=self._collected,
                redaction=self.redaction,
                hidden=hidden_from(self.plan, self.context) if kind == "direct" else lambda _: False,
            )
            self._note(folder)
            is_applied = kind == "overlay" and self.review is None
            skipped = (*files.skipped, *(self._apply(folder, dead) if is_applied else ()))
        return StepFiles(files.files, (*skipped, *self._export(files)))

    def _note(self, upper: int) -> None:
        """What a step has changed is looked at when somebody asks; what was there in its place, now."""
        if self.review is not None:
            assert self.plan.workspace.folder is not None
            with opened_folder(self.plan.workspace.folder) as folder:
                self.review.note(upper, folder)

    def _apply(self, upper: int, dead: bool) -> tuple[SkippedFile, ...]:
        assert self.plan.workspace.folder is not None
        with opened_folder(self.plan.workspace.folder) as folder:
            return apply(
                upper,
                folder,
                seen=self._applied,
                unlock=dead,
                unless_empty=(OUTPUT_NAME.encode(),),
                marks=marks_here(),
                rules=rules_of(self.context, self.plan.workspace),
            ).skipped

    def _export(self, files: CollectedFiles) -> tuple[SkippedFile, ...]:
        if not self.context.output_dir or not files.files:
            return ()
        return export(files.files, self.context.output_dir, under=(OUTPUT_NAME,)).skipped


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
