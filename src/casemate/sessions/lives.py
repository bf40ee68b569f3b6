"""The interpreters of a session, one after the other, in one workspace."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, Fault, RuntimeMissing, SandboxClosed
from casemate.execution.finishing import finishing
from casemate.execution.guarding import hidden_in
from casemate.execution.pipeline import report_for
from casemate.execution.plan import plan as make_plan
from casemate.execution.redact import prepared
from casemate.files.names import shown
from casemate.files.walk import open_folder
from casemate.model.execution import SkippedFile
from casemate.sessions.interpreter_cell import InterpreterCell
from casemate.sessions.interpreters import INTERPRETERS
from casemate.sessions.left import Leavings
from casemate.sessions.names import Names
from casemate.sessions.outcome import Left
from casemate.workspace.upper import covers, marks_here

if TYPE_CHECKING:
    from casemate.execution.admit import Admitted
    from casemate.execution.house import House
    from casemate.execution.interception import Intercepted
    from casemate.model.isolation import IsolationReport
    from casemate.model.plan import Plan
    from casemate.redaction.redaction import Redaction
    from casemate.walls.ending import Ending
    from casemate.walls.wall import SessionCell

_MISSED = "the cell that was ready had ended"
_FOREVER = float("inf")  # steps have deadlines, the cell has none
_GONE = SkippedFile(".", "the files of earlier steps went with the process that kept them; those handed out are safe")
_MOVED = SkippedFile(".", "the cell did not stand still while its files were taken: they may be of different moments")


_NEW = "it is new in the workspace and its name is hidden: the interpreter was ended, and one begun that cannot read it"
_REPLACED = SkippedFile(
    ".", "a file that is hidden was replaced: the interpreter was ended, and one begun that cannot read the new one"
)


class Lives:
    """``names``: what the user has bound in the interpreter that lives."""

    def __init__(self, admitted: Admitted, house: House, redaction: Redaction | None = None) -> None:
        self.names = Names()
        self._admitted = admitted
        self._house = house
        self._redaction = redaction
        self._birth = asyncio.Lock()
        self._life: InterpreterCell | None = None
        self._former: SessionCell | None = None  # the last cell that ended, whose files the next one takes
        self._files_lost = False
        self._is_over = False
        self._packages: dict[str, str] = {}  # folders of the host that every life sees, by their place
        self._leavings: Leavings | None = None
        self._upper = -1  # a descriptor of what the session has written over a caller's folder, from its first step on
        self._told: SkippedFile | None = None  # why an interpreter was ended between two steps

    @property
    def current(self) -> InterpreterCell | None:
        """The interpreter, where there is one."""
        return self._life

    async def living(self) -> InterpreterCell:
        """The interpreter that lives, or a fresh one. Only for who has the session's turn: a step has still to look at
        what it left in a cell that ended with it. Raises ``CasemateError``."""
        async with self._birth:
            self._check_open()
            if self._life is not None and self._life.is_alive:
                await self._end_if_uncovered(self._life)
            if self._life is not None and not self._life.is_alive:
                self.names.lose()  # it ended while nobody asked it anything
                if not self._life.is_of_this_loop:
                    await self._life.end(keep_files=True)
                self.bury(self._life)
            return self._life or await self._begin()

    async def _end_if_uncovered(self, life: InterpreterCell) -> None:
        """A file that is to be hidden, and came or was replaced since the interpreter began, is not hidden from it."""
        found = await self._hidden()
        new = sorted({*found} - {*life.plan.workspace.hidden})
        if life.watch.replaced():
            self._told = _REPLACED
        elif new:
            self._told = SkippedFile(shown(tuple(os.fsencode(new[0]).split(b"/"))), _NEW)
        else:
            return
        await life.end(keep_files=True)

    async def _hidden(self) -> tuple[str, ...]:
        """What of the caller's folder is to be hidden now. What the session has put there itself is its own."""
        found = await hidden_in(self._house)
        return tuple(path for path in found if not self._has_own(path)) if found else ()

    def _has_own(self, path: str) -> bool:
        return self._upper >= 0 and covers(self._upper, path, marks_here())

    def hides(self, name: str) -> bool:
        """Whether what lies at ``name`` in the workspace is hidden from the session's programs, or is to be."""
        guard, folder = self._house.guard, self._house.workspace
        if guard is None or folder is None:
            return False
        known = self._life.plan.workspace.hidden if self._life is not None else ()
        if any(name == path or name.startswith(f"{path}/") for path in known):
            return True
        return guard.hides(folder.resolve(), name) and os.path.lexists(folder / name) and not self._has_own(name)

    def gave(self, name: str, sha256: str) -> None:
        """A file of this content is about to be put into the workspace from outside: nothing that a step leaves."""
        if self._leavings is not None:
            self._leavings.gave(name, sha256)

    async def present(self) -> InterpreterCell | None:
        """The same for anybody; None where one has ended and is not buried. Raises ``CasemateError``."""
        async with self._birth:
            self._check_open()
            if self._life is None:
                return await self._begin()
            return self._life if self._life.is_alive else None

    async def _begin(self) -> InterpreterCell:
        report = await self._house.wall.prove()
        await self._house.ready()
        intercepted = self._house.outside.intercepted(self._admitted)
        plan = self._planned(intercepted, await self._hidden())
        if self._leavings is None:
            await prepared(self._redaction)
            self._leavings = await asyncio.to_thread(Leavings, plan, self._house, self._redaction)
        if self._former is not None:
            plan = replace(plan, continues=self._former.id, files={})  # they lie there
        self._life, self._former = self._cell_for(plan, intercepted, report), None
        if await self._life.was_missed():
            self._life.let_go()
            self._life = self._cell_for(replace(plan, waiting=_MISSED), intercepted, report)
        return self._life

    def _cell_for(self, plan: Plan, intercepted: Intercepted | None, report: IsolationReport) -> InterpreterCell:
        life = InterpreterCell(self._house.wall, plan, INTERPRETERS[plan.language], self._redaction)
        door, offers = self._house.outside, self._house.offers()
        life.doorway = door.doorway(self._admitted, intercepted, life.cell, lambda _: None, offers)
        life.doorway.attend(None)
        life.packages = dict(self._packages)
        life.report = report_for(plan, self._house, report, life.cell)
        return life

    def _check_open(self) -> None:
        if self._is_over:
            raise SandboxClosed("the session was closed")

    def _planned(self, intercepted: Intercepted | None, hidden: tuple[str, ...]) -> Plan:
        plan = make_plan(self._admitted, self._house, intercepted, session=True, hidden=hidden)
        return replace(plan, deadline=_FOREVER, id=os.urandom(16).hex())

    def ending(self, life: InterpreterCell) -> Ending:
        """How a cell has ended. Raises what kept its interpreter from being there."""
        try:
            ending = life.ended.result()
        except CasemateError:
            self.names.lose()
            self.bury(life)
            raise
        if life.problem:
            self.bury(life)
            raise RuntimeMissing(life.plan.language, f"a session cannot start: {life.problem}")
        return ending

    def bury(self, life: InterpreterCell) -> None:
        """It has ended: the next one goes on with its files, unless whoever kept them is gone, too."""
        is_lost = life.has_ended_with_the_wall
        life.let_go()
        if self._life is life:
            self._life, self._former = None, None if is_lost else life.cell
            self._files_lost = self._files_lost or is_lost

    async def show_packages(self, folder: str, place: str) -> None:
        """Have the interpreter that lives, and those after it, see packages at ``place``. Raises ``Fault``."""
        if folder != self._packages.get(place):
            self._packages[place] = folder
            if self._life is not None:
                await self._life.show_packages(folder, place)

    async def end(self, *, keep_files: bool) -> None:
        """End the interpreter; what it knew is given up. Without its files the session is over."""
        async with self._birth:
            life = self._life
            if life is not None:
                await life.end(keep_files=keep_files)
                self.bury(life)
            self.names.forget()
            if not keep_files:
                self.abandon()

    def abandon(self) -> None:
        """The session is over: end the interpreter, if there is one, and give up all files, without waiting."""
        self._is_over = True
        if self._upper >= 0:
            os.close(self._upper)
            self._upper = -1
        if self._former is not None:
            self._former.forget()
            self._former = None
        if self._life is not None:
            self._life.abandon()

    async def left_by(self, life: InterpreterCell, ending: Ending | None) -> Left:
        """What a step left in the workspace; and once, that the files of the steps before are lost."""
        try:
            left = await self._left_by(life, ending)
        except OSError as error:
            left = Left(skipped=(SkippedFile(".", f"the workspace could not be looked at: {error.strerror}"),))
        if self._files_lost:
            self._files_lost, left = False, replace(left, skipped=(_GONE, *left.skipped))
        if (told := self._told) is not None:
            self._told, left = None, replace(left, skipped=(told, *left.skipped))
        return left

    async def _left_by(self, life: InterpreterCell, ending: Ending | None) -> Left:
        """A cell that lives stands still meanwhile, where there is anything."""
        assert self._leavings is not None
        if self._upper < 0 and not self._is_over and life.plan.workspace.kind == "overlay":
            self._upper = open_folder(life.tree_fd if ending is None else ending.tree_fd, b"upper")
        if ending is not None:
            return await finishing(partial(self._leavings.take, ending.tree_fd, dead=True))
        tree = life.tree_fd
        if self._leavings.is_empty(tree) or await asyncio.to_thread(self._leavings.is_untouched, tree):
            return Left()
        try:
            still = await life.cell.freeze()
            left = await finishing(partial(self._leavings.take, tree, dead=False))
        except Fault:  # it has ended since: nothing stands more still
            return await finishing(partial(self._leavings.take, tree, dead=True))
        finally:
            life.cell.thaw()
        with contextlib.suppress(Fault):  # it has ended since
            still = still and await life.cell.has_stood_still()
        return left if still else replace(left, skipped=(*left.skipped, _MOVED))
