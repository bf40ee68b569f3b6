"""The review of a session's changes in the caller's folder: diff, apply, discard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument
from casemate.execution.gather import opened_folder
from casemate.execution.review import apply_if_allowed
from casemate.execution.threads import to_thread_to_end
from casemate.model.review import Applied, Change, Diff
from casemate.workspace.review import choose, diff_of

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.redaction.redaction import Redaction
    from casemate.sessions.cells import SessionCells
    from casemate.workspace.looking import FoundChange, Looker


class SessionReview:
    """The changes of one session in the caller's ``folder``. The caller holds the session's lock."""

    def __init__(self, cells: SessionCells, folder: str, requester: Requester, redaction: Redaction | None) -> None:
        self._cells, self._path, self._requester, self._redaction = cells, folder, requester, redaction

    async def diff(self) -> Diff:
        """See :meth:`casemate.Session.diff`."""
        looker = await self._look()
        diff = diff_of(looker.found, looker.unlisted)
        if (redaction := self._redaction) is None:
            return diff
        return replace(diff, changes=tuple(_redact_change(one, redaction) for one in diff.changes))

    async def apply(self, paths: Sequence[str] | None) -> Applied:
        """See :meth:`casemate.Session.apply`."""
        if isinstance(paths, str | bytes) or not all(isinstance(path, str) for path in paths or ()):
            raise InvalidArgument("paths", f"{paths!r:.200} is not a list of paths")
        looker = await self._look()
        chosen = choose(looker.found, paths)

        async def write(found: Sequence[FoundChange]) -> Applied:
            async with self._cells.paused_layer() as (review, upper):
                with opened_folder(self._path) as folder:
                    return await to_thread_to_end(partial(review.write, upper, folder, found, is_all=paths is None))

        return await apply_if_allowed(chosen, self._path, self._requester, write)

    async def _look(self) -> Looker:
        async with self._cells.paused_layer() as (review, upper):
            with opened_folder(self._path) as folder:
                return await to_thread_to_end(review.look, upper, folder)


def _redact_change(change: Change, redaction: Redaction) -> Change:
    known = {name: getattr(change, name) for name in ("path", "source", "link_before", "link_after", "diff")}
    texts: dict[str, Any] = {name: redaction.text(text) for name, text in known.items() if text}
    return replace(change, **texts)
