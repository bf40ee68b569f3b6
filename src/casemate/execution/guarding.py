"""Hidden and protected files of a caller's folder: before a program starts, while it runs, and afterwards."""

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

LOOKS_EVERY = 0.5  # seconds; a program can read a replaced file for at most this long
_MOST_NAMES = 8  # in one note


async def find_guarded(context: ExecutionContext) -> GuardedPaths | None:
    """Find the files of the caller's folder, if there is one, that programs must not see or change. Raises
    ``InvalidArgument`` if there are too many files, or if the policy hides the whole folder."""
    return await asyncio.to_thread(look, context) if context.folder.path is not None else None


def look(context: ExecutionContext) -> GuardedPaths | None:
    """The same; blocks, longer for larger folders."""
    path, guard = context.folder.path, context.folder.guard
    if path is None or guard is None:
        return None
    folder = path.resolve()
    found = guard.find(folder)
    if "" in found.hidden:
        raise InvalidArgument(
            "workspace",
            f"the policy hides {str(path)!r}",
            remediation="Give another folder, or change filesystem.denyRead.",
        )
    if context.folder.mode != "direct":
        from casemate.workspace.guarding import seen_through_layers

        return seen_through_layers(folder, found)
    return found


def rules_of(context: ExecutionContext, workspace: Workspace) -> FolderRules:
    """The rules on what may not change in the caller's folder. Walks the whole folder. Raises ``InvalidArgument``."""
    assert context.folder.guard is not None
    assert workspace.folder is not None
    return context.folder.guard.rules(Path(workspace.folder).resolve(), workspace.hidden)


def note_of(hidden: tuple[str, ...]) -> str:
    """The note on hidden files in an isolation report."""
    names = ", ".join(map(ascii, hidden[:_MOST_NAMES]))
    more = f" and {len(hidden) - _MOST_NAMES} more" if len(hidden) > _MOST_NAMES else ""
    remedy = "A .env that allow_read (--read) names is shown."
    return f"{HIDDEN}, which cannot open or change it: {names}{more} in the workspace. {remedy}"


class Watch:
    """Ends a cell with a direct workspace when a hidden file is replaced: the new file would not be hidden."""

    def __init__(self, workspace: Workspace) -> None:
        """Make it before the cell, so that changes during the start are noticed."""
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
        """Start to watch, and call ``kill("uncovered")`` when a file is replaced."""
        if self._watched is not None:
            self._handle = asyncio.get_running_loop().call_later(LOOKS_EVERY, self._look, kill)

    def _look(self, kill: Callable[[Reason], None]) -> None:
        self._handle = None
        if self.find_replaced():
            kill("uncovered")
        else:
            self.begin(kill)

    def find_replaced(self) -> str:
        """The name of a replaced file, or an empty string."""
        return self._watched.find_replaced() if self._watched is not None else ""

    def pause(self) -> None:
        """Stop until `begin`. May be repeated."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Stop for good. May be repeated."""
        self.pause()
        if self._watched is not None:
            self._watched.close()
