"""Changes that were kept back: one question shows them, and what is allowed is applied."""

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
    from casemate.execution.capture import Emitter
    from casemate.execution.context import ExecutionContext
    from casemate.execution.run import Finished
    from casemate.model.plan import Request
    from casemate.redaction.redaction import Redaction
    from casemate.workspace.looking import FoundChange

_MOST_SHOWN = 300  # changes in one question; its hash is of all
_MOST_TEXT = 64 * 1024  # characters of their differences
_MOST_TOLD = 100  # conflicts of a run


async def apply_if_allowed(
    found: Sequence[FoundChange],
    folder: str,
    requester: Requester,
    write: Callable[[Sequence[FoundChange]], Awaitable[Applied]],
) -> Applied:
    """Ask whether exactly ``found`` may be applied to ``folder``, and have it written where somebody allows that."""
    refused = tuple(SkippedFile(one.change.path, one.change.refused) for one in found if one.change.refused)
    if not any(one.tokens for one in found):
        return Applied(skipped=refused, status="nothing", reason="nothing is changed that can be applied")
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
    """What is asked; whoever decides allows exactly what the hash is of."""
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
    """Of one run, from before its cell is made."""

    def __init__(
        self, context: ExecutionContext, request: Request, emitter: Emitter | None, redaction: Redaction | None
    ) -> None:
        self._context = context
        self._open_requester = partial(open_requester, context, request, emitter, redaction)
        self._review = Review([(OUTPUT_NAME.encode(),)])

    async def apply(self, finished: Finished) -> tuple[SkippedFile, ...]:
        """Apply what somebody allows of what a cell has left that is dead; what was not written, and why."""
        path = finished.plan.workspace.folder
        assert path is not None
        self._review.rules = await to_thread_to_end(rules_of, self._context, finished.plan.workspace)
        try:
            upper = open_folder(finished.ending.tree_fd, b"upper", unlock=True)
        except FileNotFoundError:
            return ()  # its changes could not be laid out, which is said already
        try:
            with opened_folder(path) as folder:
                looker = await to_thread_to_end(partial(self._review.look, upper, folder, unlock=True))

                async def write(found: Sequence[FoundChange]) -> Applied:
                    return await to_thread_to_end(self._review.write, upper, folder, found)

                async with self._open_requester() as requester:
                    applied = await apply_if_allowed(looker.found, path, requester, write)
        finally:
            os.close(upper)
        why = () if applied.ok else (SkippedFile(".", applied.reason),)
        return (*why, *applied.conflicts[:_MOST_TOLD], *applied.skipped)
