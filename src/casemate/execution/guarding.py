"""What of a caller's folder is hidden from a program, and kept: before it begins, while it runs, and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from casemate.errors import InvalidArgument
from casemate.model.isolation import HIDDEN

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext
    from casemate.model.plan import Workspace
    from casemate.walls.wall import Reason
    from casemate.workspace.guarding import GuardedPaths, Watched
    from casemate.workspace.rules import FolderRules

LOOKS_EVERY = 0.5  # seconds; for as long a file that was replaced may be read
_MOST_NAMES = 8  # in one note


async def find_guarded(context: ExecutionContext) -> GuardedPaths | None:
    """What of the caller's folder, if there is one, its programs must not see or change; looked up now.

    Raises ``InvalidArgument`` where there is too much to look at, or to hide, or where that would be all of it.
    """
    return await asyncio.to_thread(look, context) if context.workspace is not None else None


def look(context: ExecutionContext) -> GuardedPaths | None:
    """The same at once; it takes as long as the folder is large."""
    if context.workspace is None or context.guard is None:
        return None
    folder = context.workspace.resolve()
    found = context.guard.find(folder)
    if "" in found.hidden:
        raise InvalidArgument(
            "workspace",
            f"{str(context.workspace)!r} is what the policy hides",
            remediation="Give another folder, or change filesystem.denyRead.",
        )
    if context.workspace_mode != "direct":
        from casemate.workspace.guarding import seen_through_layers

        return seen_through_layers(folder, found)
    return found


def rules_of(context: ExecutionContext, workspace: Workspace) -> FolderRules:
    """What may not change in the caller's folder, and why: for all that applies or writes a program's changes.

    It walks the whole folder. Raises ``InvalidArgument``."""
    assert context.guard is not None
    assert workspace.folder is not None
    return context.guard.rules(Path(workspace.folder).resolve(), workspace.hidden)


def note_of(hidden: tuple[str, ...]) -> str:
    """What the report of a program says of it."""
    names = ", ".join(map(ascii, hidden[:_MOST_NAMES]))
    more = f" and {len(hidden) - _MOST_NAMES} more" if len(hidden) > _MOST_NAMES else ""
    remedy = "A .env that allow_read (--read) names is shown."
    return f"{HIDDEN}, which cannot open or change it: {names}{more} in the workspace. {remedy}"


class Watch:
    """Ends a cell that writes through when a file that is hidden from it is replaced: the new one is not hidden.

    Through an overlay it stays hidden, and nothing is watched. For one event loop.
    """

    def __init__(self, workspace: Workspace) -> None:
        """Begins before the cell is made: what changes meanwhile is noticed."""
        self._watched: Watched | None = None
        self._handle: asyncio.TimerHandle | None = None
        if workspace.kind == "direct" and workspace.hidden and workspace.folder is not None:
            from casemate.workspace.guarding import Watched

            self._watched = Watched()
            self._watched.add(Path(workspace.folder), workspace.hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def begin(self, kill: Callable[[Reason], None]) -> None:
        """Look from now on, and ``kill`` with the reason "uncovered"."""
        if self._watched is not None:
            self._handle = asyncio.get_running_loop().call_later(LOOKS_EVERY, self._look, kill)

    def _look(self, kill: Callable[[Reason], None]) -> None:
        self._handle = None
        if self.find_replaced():
            kill("uncovered")
        else:
            self.begin(kill)

    def find_replaced(self) -> str:
        """What was replaced, or is empty."""
        return self._watched.find_replaced() if self._watched is not None else ""

    def pause(self) -> None:
        """Look no more until it begins again. Harmless when repeated."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Look no more. Harmless when repeated."""
        self.pause()
        if self._watched is not None:
            self._watched.close()
