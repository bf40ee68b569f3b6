"""The interpreters of a session, one after the other, in one workspace."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, Fault, RuntimeMissing, SandboxClosed, Unavailable
from casemate.execution.guarding import find_guarded, rules_of
from casemate.execution.network import CellInterception, CellNetwork
from casemate.execution.pipeline import report_for
from casemate.execution.plan import plan as make_plan
from casemate.execution.request import prepare
from casemate.execution.threads import to_thread_to_end
from casemate.files.names import display_path
from casemate.model.execution import SkippedFile
from casemate.sessions.files import WriteBounds
from casemate.sessions.interpreter_cell import InterpreterCell
from casemate.sessions.outcome import BoundNames, StepFiles
from casemate.sessions.step_files import StepFileCollector
from casemate.supervisor.trees.walk import open_folder
from casemate.workspace.remove import remove
from casemate.workspace.upper import covers, marks_here

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from casemate.execution.admit import AdmittedRequest
    from casemate.execution.context import ExecutionContext
    from casemate.model.isolation import IsolationReport
    from casemate.model.plan import Plan
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import CellEnding, SessionCell
    from casemate.workspace.guarding import GuardedPaths
    from casemate.workspace.review import Review

_MISSED = "the cell that was ready had ended"
_NO_DEADLINE = float("inf")  # steps have deadlines, the cell has none
_FILES_LOST = SkippedFile(
    ".", "the files of earlier steps went with the process that kept them; those handed out are safe"
)
_NOT_PAUSED = SkippedFile(".", "something in the cell ran while its files were taken: they may be of different moments")
_NOT_TAKEN = SkippedFile(
    ".", "something in the cell ran on when it was stopped: what this step changed is taken after a later step"
)
_MOST_BROKEN = 3  # steps in a row
_PAUSE_TRIES, _PAUSE_REST = 40, 0.01  # a second in all; seconds between them
_UNSTOPPABLE = SkippedFile(
    ".", "something in the cell ran on whenever it was stopped: the interpreter was ended, and one begun without it"
)
_NEW = "it is new in the workspace and its name is hidden: the interpreter was ended, and one begun that cannot read it"
_REPLACED = SkippedFile(
    ".", "a file that is hidden was replaced: the interpreter was ended, and one begun that cannot read the new one"
)


def _set_aside(tree: int) -> None:
    """The next cell makes these folders anew; what cannot be removed of the old ones counts for its limits."""
    for name in (b"upper", b"work"):
        aside = b"%b.%b" % (name, os.urandom(8).hex().encode())
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, aside, src_dir_fd=tree, dst_dir_fd=tree)
            remove(tree, (aside,), lambda _path, _is_folder: None, lambda _name, _reason: None, unlock=True)


async def _pause(interpreter: InterpreterCell) -> bool:
    """Stop everything in the cell, which can take a busy machine a while; whether it is stopped. Raises ``Fault``."""
    for _ in range(_PAUSE_TRIES):
        if await interpreter.cell.pause_files():
            return True
        await asyncio.sleep(_PAUSE_REST)
    return False


class SessionCells:
    """Starts an interpreter when one is needed, and goes on with its files when it has ended. ``names``: what the user
    has bound in it."""

    def __init__(
        self, admitted: AdmittedRequest, context: ExecutionContext, redaction: Redaction | None = None
    ) -> None:
        self.names = BoundNames()
        self._admitted = admitted
        self._context = context
        self._redaction = redaction
        self._starting = asyncio.Lock()
        self._current: InterpreterCell | None = None
        self._ended_cell: SessionCell | None = None  # the last one, whose files the next one takes
        self._files_lost = False
        self._is_closed = False
        self._packages: dict[str, str] = {}  # folders of the host that every interpreter sees, by their place
        self._collector: StepFileCollector | None = None
        self._upper = -1  # a descriptor of what the session has written over a caller's folder, from its first step on
        self._broken_pauses = 0  # steps in a row whose files were not taken, as the cell did not stand still
        self._bounds = WriteBounds()  # since its last step
        self._end_note: SkippedFile | None = None  # why an interpreter was ended between two steps

    @property
    def current(self) -> InterpreterCell | None:
        """The interpreter, where there is one."""
        return self._current

    def is_alive(self) -> bool:
        """Whether there is one that can take a step."""
        return self._current is not None and self._current.is_alive

    async def get_alive(self) -> InterpreterCell:
        """The interpreter, or a fresh one where it has ended. Only for who holds the session's lock: a step has still
        to collect what it left in a cell that ended with it. Raises ``CasemateError``."""
        async with self._starting:
            self._check_open()
            if self._current is not None and self._current.is_alive:
                await self._end_if_unsafe(self._current)
            if self._current is not None and not self._current.is_alive:
                self.names.lose()  # it ended while nobody used it
                if not self._current.is_of_this_loop:
                    await self._current.end(keep_files=True)
                self.discard(self._current)
            return self._current or await self._start()

    async def _end_if_unsafe(self, interpreter: InterpreterCell) -> None:
        """End it where a file that is to be hidden came or was replaced since it began, for it could read that; and
        where it cannot be stopped while its files are taken."""
        guarded = await self._find_guarded()
        new = sorted({*guarded.hidden} - {*interpreter.plan.workspace.hidden}) if guarded else []
        if interpreter.watch.find_replaced():
            self._end_note = _REPLACED
        elif new:
            self._end_note = SkippedFile(display_path(tuple(os.fsencode(new[0]).split(b"/"))), _NEW)
        elif self._broken_pauses >= _MOST_BROKEN:
            self._broken_pauses, self._end_note = 0, _UNSTOPPABLE
        else:
            return
        await interpreter.end(keep_files=True)

    async def _find_guarded(self) -> GuardedPaths | None:
        """What of the caller's folder is to be hidden now, or kept. What the session has put there itself is its own,
        and not hidden from it."""
        found = await find_guarded(self._context)
        return found and replace(found, hidden=tuple(path for path in found.hidden if not self._is_own(path)))

    def _is_own(self, path: str) -> bool:
        return self._upper >= 0 and covers(self._upper, path, marks_here())

    def hides(self, name: str) -> bool:
        """Whether what lies at ``name`` in the workspace is hidden from the session's programs, or is to be."""
        guard, folder = self._context.guard, self._context.workspace
        if guard is None or folder is None:
            return False
        known = self._current.plan.workspace.hidden if self._current is not None else ()
        if any(name == path or name.startswith(f"{path}/") for path in known):
            return True
        return guard.hides(folder.resolve(), name) and os.path.lexists(folder / name) and not self._is_own(name)

    async def bounds(self) -> WriteBounds:
        """Where the host may write in the workspace for the session, and how much. Raises ``CasemateError``."""
        if self._context.wall.lays_out:
            usage, limits = await self._current.settled_usage() if self._current else None, self._admitted.limits
            if self._bounds.room is None or usage not in (None, self._bounds.usage):
                room = (usage.space_left, usage.inodes_left) if usage else (limits.disk, limits.inodes)
                self._bounds = WriteBounds(None, room, usage)
        if (guard := self._context.guard) is not None and (folder := self._context.workspace) is not None:
            self._bounds.rules = await to_thread_to_end(lambda: guard.rules(folder.resolve(), names=False))
        return self._bounds

    def note_upload(self, name: str, sha256: str) -> None:
        """A file of this content is about to be put into the workspace from outside: no step made it."""
        if self._collector is not None:
            self._collector.note_upload(name, sha256)

    async def get_current(self) -> InterpreterCell | None:
        """The interpreter, or the first one, for anybody. None where it has ended and no step has seen that yet.

        Raises ``CasemateError``.
        """
        async with self._starting:
            self._check_open()
            if self._current is None:
                return await self._start()
            return self._current if self._current.is_alive else None

    async def _start(self) -> InterpreterCell:
        report = await self._context.wall.prove()
        await self._context.ready()
        intercepted = self._context.sandbox_network.interception_for(self._admitted)
        plan = self._make_plan(intercepted, await self._find_guarded())
        if self._collector is None:
            await prepare(self._redaction)
            self._collector = await asyncio.to_thread(StepFileCollector, plan, self._context, self._redaction)
        self._collector.plan = plan
        if self._ended_cell is not None:
            plan = replace(plan, continues=self._ended_cell.id, files={})  # they lie there
        self._current, self._ended_cell = self._make_cell(plan, intercepted, report), None
        if await self._current.was_missed():
            self._current.release()
            self._current = self._make_cell(replace(plan, waiting=_MISSED), intercepted, report)
        return self._current

    def _make_cell(self, plan: Plan, intercepted: CellInterception | None, report: IsolationReport) -> InterpreterCell:
        interpreter = InterpreterCell(
            self._context.wall, plan, self._context.runtime_for(plan.language).session, self._redaction
        )
        network, offers = self._context.sandbox_network, self._context.offers()
        interpreter.cell_network = CellNetwork(
            network, self._admitted, intercepted, interpreter.cell, lambda _: None, offers
        )
        interpreter.cell_network.attend(None)
        interpreter.packages = dict(self._packages)
        interpreter.report = report_for(plan, self._context, report, interpreter.cell)
        return interpreter

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxClosed("the session was closed")

    def _make_plan(self, intercepted: CellInterception | None, guarded: GuardedPaths | None) -> Plan:
        plan = make_plan(self._admitted, self._context, intercepted, session=True, guarded=guarded)
        return replace(plan, deadline=_NO_DEADLINE, id=os.urandom(16).hex())

    def ending_of(self, interpreter: InterpreterCell) -> CellEnding:
        """How a cell has ended. Raises what kept its interpreter from being there."""
        try:
            ending = interpreter.ended.result()
        except CasemateError:
            self.names.lose()
            self.discard(interpreter)
            raise
        if interpreter.problem:
            self.discard(interpreter)
            raise RuntimeMissing(interpreter.plan.language, f"a session cannot start: {interpreter.problem}")
        return ending

    def discard(self, interpreter: InterpreterCell) -> None:
        """It has ended: the next one goes on with its files, unless the process that kept them is gone, too."""
        is_lost = interpreter.has_ended_with_the_wall
        interpreter.release()
        if self._current is interpreter:
            self._current, self._ended_cell = None, None if is_lost else interpreter.cell
            self._files_lost = self._files_lost or is_lost

    async def show_packages(self, folder: str, place: str) -> None:
        """Have the interpreter, and those after it, see packages at ``place``. Raises ``Fault``."""
        self._packages[place] = folder
        if self._current is not None:
            await self._current.show_packages(folder, place)

    async def end(self, *, keep_files: bool) -> None:
        """End the interpreter; what it knew is given up. Without its files the session is over."""
        async with self._starting:
            interpreter = self._current
            if interpreter is not None:
                await interpreter.end(keep_files=keep_files or self._broken_pauses > 0)
                if self._broken_pauses > 0:  # what the last steps changed is not taken yet, and now nothing runs
                    with contextlib.suppress(CasemateError, OSError):
                        await self._collect_files(interpreter, interpreter.ended.result())
                self.discard(interpreter)
            self.names.forget()
            if not keep_files:
                self.abandon()

    def abandon(self) -> None:
        """The session is over: end the interpreter, if there is one, and give up all files, without waiting."""
        self._is_closed = True
        if self._upper >= 0:
            os.close(self._upper)
            self._upper = -1
        if self._ended_cell is not None:
            self._ended_cell.forget()
            self._ended_cell = None
        if self._current is not None:
            self._current.abandon()

    @contextlib.asynccontextmanager
    async def paused_layer(self) -> AsyncGenerator[tuple[Review, int]]:
        """What is written over the caller's folder, and the review of it; meanwhile the cell is paused. Only for who
        holds the session's lock. Raises ``CasemateError``."""
        tree, interpreter = await self._open_tree()
        review = self._collector.review if self._collector is not None else None
        assert review is not None
        review.rules = await to_thread_to_end(rules_of, self._context, interpreter.plan.workspace)
        try:
            upper = open_folder(tree, b"upper", unlock=False)
            try:
                is_paused = True
                with contextlib.suppress(Fault):  # it has ended since: nothing in it runs
                    is_paused = await _pause(interpreter)
                if not is_paused:
                    raise Unavailable("its changes cannot be looked at: its cell cannot be stopped",
                                      remediation="Reset the session.")  # fmt: skip
                yield review, upper
            finally:
                os.close(upper)
                interpreter.cell.resume_files()
        finally:
            os.close(tree)

    async def discard_layer(self) -> None:
        """End the interpreter, and have the next one see the caller's folder as it is. An overlay that is mounted shows
        what it has shown before (Documentation/filesystems/overlayfs.rst, changes to underlying filesystems)."""
        tree, interpreter = await self._open_tree()
        try:
            async with self._starting:
                await interpreter.end(keep_files=True)
                self.discard(interpreter)
                self.names.lose()
                if self._context.wall.lays_out and self._ended_cell is not None:  # its changes lie in a copy of its own
                    self._ended_cell.forget()
                    self._ended_cell = None
            await to_thread_to_end(_set_aside, tree)
        finally:
            os.close(tree)
        if self._upper >= 0:
            os.close(self._upper)
            self._upper = -1
        if self._collector is not None and self._collector.review is not None:
            self._collector.review.reset()

    async def _open_tree(self) -> tuple[int, InterpreterCell]:
        interpreter = await self.get_alive()
        os.close(await interpreter.open_workspace())  # it has begun by then
        return os.dup(interpreter.tree_fd), interpreter

    async def collect_files(self, interpreter: InterpreterCell, ending: CellEnding | None) -> StepFiles:
        """What a step left in the workspace; and once, that the files of the steps before are lost."""
        try:
            files = await self._collect_files(interpreter, ending)
        except OSError as error:
            self._broken_pauses += 1
            files = StepFiles(skipped=(SkippedFile(".", f"the workspace could not be looked at: {error.strerror}"),))
        if self._files_lost:
            self._files_lost, files = False, replace(files, skipped=(_FILES_LOST, *files.skipped))
        if (note := self._end_note) is not None:
            self._end_note, files = None, replace(files, skipped=(note, *files.skipped))
        return files

    async def _collect_files(self, interpreter: InterpreterCell, ending: CellEnding | None) -> StepFiles:
        """A cell that goes on is paused meanwhile, where there is anything."""
        assert self._collector is not None
        if self._upper < 0 and not self._is_closed and interpreter.plan.workspace.kind == "overlay":
            self._upper = open_folder(interpreter.tree_fd if ending is None else ending.tree_fd, b"upper")
        if ending is not None:
            return await to_thread_to_end(partial(self._collector.collect, ending.tree_fd, dead=True))
        tree = interpreter.tree_fd
        if self._collector.is_empty(tree) or await to_thread_to_end(self._collector.is_untouched, tree):
            return StepFiles()
        try:
            if not await _pause(interpreter):
                self._broken_pauses += 1
                return StepFiles(skipped=(_NOT_TAKEN,))
            self._broken_pauses, is_paused = 0, True
            files = await to_thread_to_end(partial(self._collector.collect, tree, dead=False))
        except Fault:  # it has ended since: nothing in it runs
            return await to_thread_to_end(partial(self._collector.collect, tree, dead=True))
        finally:
            interpreter.cell.resume_files()
        with contextlib.suppress(Fault):  # it has ended since
            is_paused = await interpreter.cell.stayed_paused()
        return files if is_paused else replace(files, skipped=(*files.skipped, _NOT_PAUSED))
