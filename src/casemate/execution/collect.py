"""Finished → Collected: collects artifacts and applies changes to the caller's folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from casemate.execution.threads import to_thread_to_end
from casemate.model.plan import OUTPUT_NAME
from casemate.supervisor.trees.walk import open_folder

if TYPE_CHECKING:
    from casemate.execution.review import RunReview
    from casemate.execution.run import Finished
    from casemate.model.execution import Artifact, SkippedFile


class Collected(NamedTuple):
    finished: Finished
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()  # files left behind, and why


async def collect(finished: Finished, review: RunReview | None = None) -> Collected:
    """Collect the run's files and close its tree. The cell is dead. ``review`` decides on its changes."""
    tree = finished.ending.tree_fd
    try:
        if finished.planned.plan.workspace.kind == "private" and is_untouched(tree, unlock=True):
            return Collected(finished)
        from casemate.execution.gather import gather

        left = await to_thread_to_end(gather, finished)
        refused = () if review is None else await review.apply(finished)
        return Collected(finished, left.files, (*left.skipped, *refused))
    finally:
        os.close(tree)


def is_untouched(tree: int, *, unlock: bool) -> bool:
    """Whether a private workspace is still empty. This is the usual case, and the check is too quick for a thread."""
    workspace = open_folder(tree, b"workspace", unlock=unlock)
    try:
        if os.listdir(workspace) != [OUTPUT_NAME]:
            return False
        output = open_folder(workspace, OUTPUT_NAME.encode(), unlock=unlock)
        try:
            return not os.listdir(output)
        finally:
            os.close(output)
    except OSError:
        return False
    finally:
        os.close(workspace)
