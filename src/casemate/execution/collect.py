"""Finished → Collected: what the run left is handed out, and the caller's folder brought up to date."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from casemate.execution.threads import to_thread_to_end
from casemate.model.plan import OUTPUT_NAME
from casemate.supervisor.trees.walk import open_folder

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.execution.review import RunReview
    from casemate.execution.run import Finished
    from casemate.model.execution import Artifact, SkippedFile


class Collected(NamedTuple):
    """A finished run with its artifacts; ``skipped`` says what was left behind and why."""

    finished: Finished
    artifacts: tuple[Artifact, ...]
    skipped: tuple[SkippedFile, ...]
    complete: bool


async def collect(finished: Finished, context: ExecutionContext, review: RunReview | None = None) -> Collected:
    """Take what the run left and close its tree. Nothing runs in the cell any more. ``review``: of its changes."""
    tree = finished.ending.tree_fd
    try:
        if finished.plan.workspace.kind == "private" and _is_untouched(finished):
            return Collected(finished, (), (), complete=True)
        from casemate.execution.gather import gather

        files, skipped = await to_thread_to_end(gather, finished, context)
        if review is not None:
            skipped = (*skipped, *await review.apply(finished))
        return Collected(finished, files.files, (*files.skipped, *skipped), files.complete)
    finally:
        os.close(tree)


def _is_untouched(finished: Finished) -> bool:
    """Whether a private workspace is as empty as it was made: the usual case, worth no thread."""
    workspace = open_folder(finished.ending.tree_fd, b"workspace", unlock=True)
    try:
        if os.listdir(workspace) != [OUTPUT_NAME]:
            return False
        output = open_folder(workspace, OUTPUT_NAME.encode(), unlock=True)
        try:
            return not os.listdir(output)
        finally:
            os.close(output)
    except OSError:
        return False
    finally:
        os.close(workspace)
