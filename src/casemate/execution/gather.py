"""Gathers the files that a run or a step left: artifacts, and changes to the caller's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.artifacts.collect import CollectedFiles, collect
from casemate.artifacts.export import export
from casemate.execution.guarding import rules_of
from casemate.files.bounds import TreeBounds
from casemate.model.execution import SkippedFile
from casemate.model.plan import OUTPUT_NAME, Plan
from casemate.supervisor.trees.walk import open_folder
from casemate.workspace.apply import apply
from casemate.workspace.upper import marks_here

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.execution.run import Finished
    from casemate.files.walk import SeenFiles
    from casemate.redaction.redaction import Redaction
    from casemate.workspace.review import Review

_MOST_KNOWN = 100_000  # names; uploads beyond this count as the program's
_FOLDERS = {"private": b"workspace", "overlay": b"upper"}  # in the cell's tree, by kind of workspace
_NOT_LAID_OUT = SkippedFile(".", "the changes could not be read to their end, so none of them is applied")


def gather(finished: Finished) -> CollectedFiles:
    """Collect a run's artifacts and apply its changes to the caller's folders. Blocks. Raises ``OSError``."""
    planned, plan, tree = finished.planned, finished.planned.plan, finished.ending.tree_fd
    if plan.workspace.kind == "overlay" and not os.access(_FOLDERS["overlay"], os.F_OK, dir_fd=tree):
        return CollectedFiles(skipped=(_NOT_LAID_OUT,), complete=False)
    known = {**finished.before} if plan.workspace.kind == "direct" else digests_of(plan)
    return FileCollector(plan, planned.context, planned.redaction, known).collect(tree, dead=True)


@dataclass(slots=True)
class FileCollector:
    """Collects the files of a run, or of each step of a session, while the cell is dead or paused.

    Files are opened beneath the workspace without following links, and copied and hashed in one pass.
    """

    plan: Plan  # the cell's current one
    context: ExecutionContext
    redaction: Redaction | None
    known_files: dict[str, str]  # digests by name of files that no program made
    collected: SeenFiles | None = None  # by earlier steps of the session
    applied: SeenFiles | None = None  # likewise
    review: Review | None = None  # if its changes are reviewed

    def note_upload(self, name: str, sha256: str) -> None:
        """Note that the caller put a file at ``name``. It is not an artifact while it has this content."""
        if len(self.known_files) < _MOST_KNOWN or name in self.known_files:
            self.known_files[name] = sha256

    def is_unchanged(self, tree: int) -> bool:
        """Whether a session's cell has written nothing since the last step. The cell may be running."""
        assert self.collected is not None
        assert self.applied is not None
        kind = self.plan.workspace.kind
        with self._open_layer(tree, unlock=False) as folder:
            self._note(folder)
            if kind == "direct" or self.review is not None:  # all other files belong to the caller, or await review
                return self._is_output_unchanged(folder, self.collected)
            return self.applied.is_whole(folder, folders=True) if kind == "overlay" else self.collected.is_whole(folder)

    def collect(self, tree: int, *, dead: bool) -> CollectedFiles:
        """Collect new files from ``tree``. ``dead``: the cell is dead, not paused."""
        kind = self.plan.workspace.kind
        with self._open_layer(tree, unlock=dead) as folder:
            files = collect(
                folder,
                under=() if kind == "private" else (OUTPUT_NAME,),
                inputs=self.known_files,
                bounds=TreeBounds(file_bytes=self.plan.limits.disk, total_bytes=self.plan.limits.disk),
                unlock=dead and kind != "direct",
                seen=self.collected,
                redaction=self.redaction,
                hidden=self._find_hidden(),
            )
            self._note(folder)
            skipped = files.skipped
            if kind == "overlay" and self.context.folder.keeps and not self.plan.workspace.reviewed:
                skipped += self._apply(folder, unlock=dead)
        if (output := self.context.folder.output) and files.files:
            skipped += export(files.files, output, under=(OUTPUT_NAME,)).skipped
        return replace(files, skipped=skipped)

    def _open_layer(self, tree: int, *, unlock: bool) -> AbstractContextManager[int]:
        workspace = self.plan.workspace
        if workspace.kind == "direct":
            assert workspace.folder is not None
            return opened_folder(workspace.folder)
        return _fd_block(open_folder(tree, _FOLDERS[workspace.kind], unlock=unlock))

    def _is_output_unchanged(self, folder: int, collected: SeenFiles) -> bool:
        try:
            output = open_folder(folder, OUTPUT_NAME)
        except FileNotFoundError:
            return True
        with _fd_block(output):
            return collected.is_whole(output, (OUTPUT_NAME.encode(),))

    def _note(self, upper: int) -> None:
        """Note the originals of changed files now. The changes themselves are read at the review."""
        if self.review is not None:
            assert self.plan.workspace.folder is not None
            with opened_folder(self.plan.workspace.folder) as folder:
                self.review.note(upper, folder)

    def _find_hidden(self) -> Callable[[str], bool]:
        """A test for names in a direct workspace that are hidden from programs, so never artifacts."""
        guard, workspace = self.context.folder.guard, self.plan.workspace
        if guard is None or workspace.kind != "direct" or workspace.folder is None:
            return lambda _: False
        folder = Path(workspace.folder).resolve()
        return lambda name: name in workspace.hidden or guard.hides(folder, name)

    def _apply(self, upper: int, *, unlock: bool) -> tuple[SkippedFile, ...]:
        rules = rules_of(self.context, self.plan.workspace)
        assert self.plan.workspace.folder is not None
        with opened_folder(self.plan.workspace.folder) as folder:
            return apply(
                upper, folder, rules=rules, seen=self.applied, unlock=unlock, unless_empty=(OUTPUT_NAME.encode(),),
                marks=marks_here(),
            ).skipped  # fmt: skip


def opened_folder(folder: str) -> AbstractContextManager[int]:
    """Open a caller's folder for a block."""
    return _fd_block(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


@contextmanager
def _fd_block(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def output_before(plan: Plan) -> dict[str, str]:
    """The output files already in a direct workspace: digests by name; {} for other workspaces."""
    if plan.workspace.kind != "direct" or plan.workspace.folder is None:
        return {}
    with opened_folder(plan.workspace.folder) as folder:
        found = collect(folder, under=(OUTPUT_NAME,), unlock=False)
    return {artifact.name: artifact.sha256 for artifact in found.files}


def digests_of(plan: Plan) -> dict[str, str]:
    """SHA-256 of the plan's files by name."""
    return {name: digest_of(content) for name, content in plan.files.items()}


def digest_of(content: bytes | Path) -> str:
    """SHA-256 of a file; empty if it cannot be read."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    try:
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""  # the file is gone; the cell's copy then counts as the run's output
