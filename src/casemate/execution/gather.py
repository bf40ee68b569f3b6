"""The files that a run left: what is an artifact, and what goes into the caller's folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.artifacts.collect import CollectedFiles as Files
from casemate.artifacts.collect import collect as collect_files
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
    from casemate.model.limits import Limits

_NOT_LAID_OUT = SkippedFile(
    ".", "what was changed could not be looked through to its end, and nothing of it is applied"
)


def gather(finished: Finished, context: ExecutionContext) -> tuple[Files, tuple[SkippedFile, ...]]:
    """What is handed out, and what could not be written into the caller's folders. Blocks. Raises ``OSError``."""
    kind = finished.plan.workspace.kind
    skipped: tuple[SkippedFile, ...] = ()
    if kind == "direct":
        files = _of_direct(finished, context)
    elif kind == "private":
        files = _of_private(finished)
    else:
        files, skipped = _of_overlay(finished, context)
    if context.output_dir and files.files:
        exported = export(files.files, context.output_dir, under=(OUTPUT_NAME,))
        skipped = (*skipped, *exported.skipped)
    return files, skipped


def bounds_of(limits: Limits) -> TreeBounds:
    """How much is collected of what a cell with ``limits`` left."""
    return TreeBounds(file_bytes=limits.disk, total_bytes=limits.disk)


def _of_private(finished: Finished) -> Files:
    workspace = open_folder(finished.ending.tree_fd, b"workspace", unlock=True)
    try:
        return collect_files(
            workspace, inputs=digests_of(finished.plan), bounds=bounds_of(finished.plan.limits),
            redaction=finished.capture.redaction,
        )  # fmt: skip
    finally:
        os.close(workspace)


def _of_direct(finished: Finished, context: ExecutionContext) -> Files:
    assert finished.plan.workspace.folder is not None
    with opened_folder(finished.plan.workspace.folder) as folder:
        return collect_files(
            folder, under=(OUTPUT_NAME,), inputs=finished.before, bounds=bounds_of(finished.plan.limits), unlock=False,
            redaction=finished.capture.redaction, hidden=hidden_from(finished.plan, context),
        )  # fmt: skip


def hidden_from(plan: Plan, context: ExecutionContext) -> Callable[[str], bool]:
    """Whether a name in a folder that is written through is hidden from programs, and so is nothing of theirs."""
    guard = context.guard
    if guard is None or plan.workspace.folder is None:
        return lambda _: False
    folder = Path(plan.workspace.folder).resolve()
    return lambda name: name in plan.workspace.hidden or guard.hides(folder, name)


def _of_overlay(finished: Finished, context: ExecutionContext) -> tuple[Files, tuple[SkippedFile, ...]]:
    assert finished.plan.workspace.folder is not None
    try:
        upper = open_folder(finished.ending.tree_fd, b"upper", unlock=True)
    except FileNotFoundError:
        return Files((), (_NOT_LAID_OUT,), complete=False), ()
    try:
        files = collect_files(
            upper, under=(OUTPUT_NAME,), inputs=digests_of(finished.plan), bounds=bounds_of(finished.plan.limits),
            redaction=finished.capture.redaction,
        )  # fmt: skip
        if not context.keeps or finished.plan.workspace.reviewed:
            return files, ()
        rules = rules_of(context, finished.plan.workspace)
        with opened_folder(finished.plan.workspace.folder) as folder:
            applied = apply(upper, folder, rules=rules, unless_empty=(OUTPUT_NAME.encode(),), marks=marks_here())
    finally:
        os.close(upper)
    return files, applied.skipped


@contextlib.contextmanager
def opened_folder(folder: str) -> Iterator[int]:
    """A caller's folder as a descriptor, for the length of a block."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def output_before(plan: Plan) -> dict[str, str]:
    """What a folder that is written through already holds as output: digests by name; {} for other workspaces."""
    if plan.workspace.kind != "direct" or plan.workspace.folder is None:
        return {}
    with opened_folder(plan.workspace.folder) as folder:
        found = collect_files(folder, under=(OUTPUT_NAME,), unlock=False)
    return {artifact.name: artifact.sha256 for artifact in found.files}


def digests_of(plan: Plan) -> dict[str, str]:
    """SHA-256 of the given files by name."""
    return {name: digest_of(content) for name, content in plan.files.items()}


def digest_of(content: bytes | Path) -> str:
    """SHA-256 of a given file; empty where it cannot be read."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    try:
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""  # it is gone meanwhile; then the copy counts as the run's own
