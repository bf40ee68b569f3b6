"""Reviewed changes: one approval request shows them, and they are applied if it is allowed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from casemate.execution.gather import opened_folder
from casemate.execution.guarding import rules_of
from casemate.execution.run import open_requester
from casemate.execution.threads import to_thread_to_end
from casemate.model.approval import Question
from casemate.model.execution import SkippedFile
from casemate.model.plan import OUTPUT_NAME
from casemate.model.review import Applied, Diff, shown_change
from casemate.supervisor.trees.walk import open_folder
from casemate.workspace.review import Review, conflicts_in, diff_of

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.execution.context import Planned
    from casemate.execution.run import Finished
    from casemate.workspace.looking import FoundChange

_MOST_SHOWN = 300  # changes listed in one request; its hash covers all
_MOST_TEXT = 64 * 1024  # characters of diffs in one request
_MOST_TOLD = 100  # conflicts reported of a run


async def apply_if_allowed(
    found: Sequence[FoundChange],
    folder: str,
    requester: Requester,
    write: Callable[[Sequence[FoundChange]], Awaitable[Applied]],
) -> Applied:
    """Request approval to apply exactly ``found`` to ``folder``, and ``write`` it if that is granted."""
    refused = tuple(SkippedFile(one.change.path, one.change.refused) for one in found if one.change.refused)
    if not any(one.tokens for one in found):
        return Applied(skipped=refused, status="nothing", reason="there are no changes that can be applied")
    if conflicts := conflicts_in(found):
        reason = "the folder was changed meanwhile; nothing was written"
        return Applied(skipped=refused, conflicts=conflicts, status="conflict", reason=reason)
    verdict = await asyncio.wrap_future(requester.decide(question_of(diff_of(found), folder)))
    if not verdict.allow:
        why = f"{verdict.by}: {verdict.reason}" if verdict.reason else verdict.by
        return Applied(skipped=refused, status="denied", reason=f"it was not allowed ({why}); nothing was written")
    applied = await write(found)
    return replace(applied, skipped=(*refused, *applied.skipped))


def question_of(diff: Diff, folder: str) -> Question:
    """The approval request. The approver allows exactly the changes that the hash covers."""
    lines, left = [], _MOST_TEXT
    for one in diff.changes:
        if one.diff and len(one.diff) <= left:
            left -= len(one.diff)
            lines.append(f"=== {one.path}\n{one.diff}")
    listed = [shown_change(one) for one in diff.changes[:_MOST_SHOWN]]
    arguments = {
        "folder": folder,
        "changes": listed,
        "changes_not_listed": len(diff.changes) - len(listed),
        "diff": "".join(lines),
        "diffs_not_shown": sum(bool(one.diff) for one in diff.changes) - len(lines),
        "sha256": diff.hash,
    }
    number = sum(not one.refused for one in diff.changes)
    return Question("files", f"apply {number} change{'' if number == 1 else 's'} to {folder}", arguments)


class RunReview:
    """The review of one run's changes. Create it before the cell starts."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._review = Review([(OUTPUT_NAME.encode(),)])

    async def apply(self, finished: Finished) -> tuple[SkippedFile, ...]:
        """Apply the changes of a dead cell if they are allowed. Returns what was not written, and why."""
        planned, workspace = self._planned, self._planned.plan.workspace
        path = workspace.folder
        assert path is not None
        self._review.rules = await to_thread_to_end(rules_of, planned.context, workspace)
        try:
            upper = open_folder(finished.ending.tree_fd, b"upper", unlock=True)
        except FileNotFoundError:
            return ()  # the changes could not be read; `gather` reports that
        try:
            with opened_folder(path) as folder:
                looker = await to_thread_to_end(partial(self._review.look, upper, folder, unlock=True))

                async def write(found: Sequence[FoundChange]) -> Applied:
                    return await to_thread_to_end(self._review.write, upper, folder, found)

                async with open_requester(
                    planned.context, planned.request, planned.emitter, planned.redaction
                ) as requester:
                    applied = await apply_if_allowed(looker.found, path, requester, write)
        finally:
            os.close(upper)
        why = () if applied.ok else (SkippedFile(".", applied.reason),)
        return (*why, *applied.conflicts[:_MOST_TOLD], *applied.skipped)
