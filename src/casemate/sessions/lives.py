"""The interpreters of a session, one after the other, in one workspace."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, Fault, RuntimeMissing
from casemate.execution.finishing import finishing
from casemate.execution.pipeline import report_for
from casemate.execution.plan import plan as make_plan
from casemate.model.execution import SkippedFile
from casemate.sessions.interpreter_cell import InterpreterCell
from casemate.sessions.interpreters import INTERPRETERS
from casemate.sessions.left import Leavings
from casemate.sessions.names import Names
from casemate.sessions.outcome import Left

if TYPE_CHECKING:
    from casemate.execution.admit import Admitted
    from casemate.execution.house import House
    from casemate.isolation.wall import Ending
    from casemate.model.isolation import IsolationReport
    from casemate.model.plan import Plan

_FOREVER = float("inf")  # steps have deadlines, the cell has none
_GONE = SkippedFile(".", "the files of earlier steps went with the process that kept them; those handed out are safe")
_MOVED = SkippedFile(".", "the cell did not stand still while its files were taken: they may be of different moments")


class Lives:
    """``names``: what the user has bound in the interpreter that lives."""

    def __init__(self, admitted: Admitted, house: House) -> None:
        self.names = Names()
        self._admitted = admitted
        self._house = house
        self._birth = asyncio.Lock()
        self._life: InterpreterCell | None = None
        self._former = ""  # the id of the last cell that ended, whose files the next one takes
        self._files_lost = False
        self._leavings: Leavings | None = None

    @property
    def current(self) -> InterpreterCell | None:
        """The interpreter, where there is one."""
        return self._life

    async def living(self) -> InterpreterCell:
        """The interpreter that lives, or a fresh one. Raises ``CasemateError``."""
        async with self._birth:
            if self._life is not None and not self._life.is_alive:
                self.names.lose()  # it ended while nobody asked it anything
                self.bury(self._life)
            if self._life is None:
                report = await self._house.wall.prove()
                self._life = await self._begin(report)
            return self._life

    async def _begin(self, report: IsolationReport) -> InterpreterCell:
        plan = replace(self._planned(), id=os.urandom(16).hex(), continues=self._former)
        self._leavings = self._leavings or await asyncio.to_thread(Leavings, plan, self._house)
        if self._former:
            plan = replace(plan, files={})  # they lie there
        life = InterpreterCell(self._house.wall, plan, INTERPRETERS[plan.language])
        life.report = report_for(plan, report, life.cell)
        self._former = ""
        return life

    def _planned(self) -> Plan:
        return replace(make_plan(self._admitted, self._house, session=True), deadline=_FOREVER)

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
            self._life, self._former = None, "" if is_lost else life.cell.id
            self._files_lost = self._files_lost or is_lost

    async def end(self, *, keep_files: bool) -> None:
        """End the interpreter; what it knew is given up."""
        life = self._life
        if life is not None:
            await life.end(keep_files=keep_files)
            self.bury(life)
            if not keep_files:
                life.cell.forget()
        self.names.forget()

    async def left_by(self, life: InterpreterCell, ending: Ending | None) -> Left:
        """What a step left in the workspace; and once, that the files of the steps before are lost."""
        try:
            left = await self._left_by(life, ending)
        except OSError as error:
            left = Left(skipped=(SkippedFile(".", f"the workspace could not be looked at: {error.strerror}"),))
        if self._files_lost:
            self._files_lost, left = False, replace(left, skipped=(_GONE, *left.skipped))
        return left

    async def _left_by(self, life: InterpreterCell, ending: Ending | None) -> Left:
        """A cell that lives stands still meanwhile, where there is anything."""
        assert self._leavings is not None
        if ending is not None:
            return await finishing(partial(self._leavings.take, ending.tree_fd, dead=True))
        _, tree = await life.files()
        if self._leavings.is_empty(tree) or await asyncio.to_thread(self._leavings.is_untouched, tree):
            return Left()
        try:
            still = await life.cell.freeze()
            left = await finishing(partial(self._leavings.take, tree, dead=False))
        except Fault:  # it has ended since: nothing stands more still
            return await finishing(partial(self._leavings.take, tree, dead=True))
        finally:
            life.cell.thaw()
        return left if still else replace(left, skipped=(*left.skipped, _MOVED))
