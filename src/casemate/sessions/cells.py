"""The interpreters of a session, one after another, in one workspace."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from casemate.artifacts.collect import CollectedFiles
from casemate.errors import CasemateError, Fault, RuntimeMissing, SandboxClosed, Unavailable
from casemate.execution.collect import is_untouched
from casemate.execution.gather import FileCollector, digests_of, output_before
from casemate.execution.guarding import find_guarded, rules_of
from casemate.execution.network import CellInterception, CellNetwork
from casemate.execution.plan import plan as make_plan
from casemate.execution.request import prepare
from casemate.execution.seal import report_for
from casemate.execution.threads import to_thread_to_end
from casemate.files.names import display_path
from casemate.files.walk import SeenFiles
from casemate.languages.catalogue import runtime_for
from casemate.model.execution import SkippedFile
from casemate.model.plan import OUTPUT_NAME
from casemate.sessions.files import WriteBounds
from casemate.sessions.interpreter_cell import InterpreterCell
from casemate.sessions.outcome import BoundNames
from casemate.supervisor.trees.walk import open_folder
from casemate.workspace.remove import remove
from casemate.workspace.review import Review
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

_MISSED = "the cell that was ready had ended"
_NO_DEADLINE = float("inf")  # steps have deadlines, the cell has none
_FILES_LOST = SkippedFile(
    ".", "the files of earlier steps were lost with the supervisor; files already returned are safe"
)
_NOT_PAUSED = SkippedFile(
    ".", "a process in the cell ran while files were collected: they may be from different moments"
)
_NOT_TAKEN = SkippedFile(
    ".", "a process in the cell could not be paused: this step's changes are collected after a later step"
)
_MOST_BROKEN = 3  # steps in a row
_PAUSE_TRIES, _PAUSE_REST = 40, 0.01  # tries, which take a second in all; seconds between two
_UNSTOPPABLE = SkippedFile(
    ".", "a process in the cell could not be paused: the interpreter was ended, and a fresh one started"
)
_NEW = "it is new and its name is hidden: the interpreter was ended, and one started that cannot read it"
_REPLACED = SkippedFile(
    ".", "a hidden file was replaced: the interpreter was ended, and one started that cannot read the new file"
)


def _set_aside(tree: int) -> None:
    """Move the old layer away; the next cell makes these folders. What cannot be removed counts for its limits."""
    for name in (b"upper", b"work"):
        aside = b"%b.%b" % (name, os.urandom(8).hex().encode())
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, aside, src_dir_fd=tree, dst_dir_fd=tree)
            remove(tree, (aside,), lambda _path, _is_folder: None, lambda _name, _reason: None, unlock=True)


def _make_collector(plan: Plan, context: ExecutionContext, redaction: Redaction | None) -> FileCollector:
    review = Review([(OUTPUT_NAME.encode(),)]) if plan.workspace.reviewed else None
    known = {**digests_of(plan), **output_before(plan)}
    return FileCollector(plan, context, redaction, known, SeenFiles(), SeenFiles(), review)


async def _pause(interpreter: InterpreterCell) -> bool:
    """Pause everything in the cell; on a busy machine it takes a while. Returns whether it worked. Raises ``Fault``."""
    for _ in range(_PAUSE_TRIES):
        if await interpreter.cell.pause_files():
            return True
        await asyncio.sleep(_PAUSE_REST)
    return False


class SessionCells:
    """Starts an interpreter when one is needed; it continues with the files of the one before."""

    def __init__(
        self, admitted: AdmittedRequest, context: ExecutionContext, redaction: Redaction | None = None
    ) -> None:
        self.names = BoundNames()  # names bound by the session's programs
        self._admitted = admitted
        self._context = context
        self._redaction = redaction
        self._starting = asyncio.Lock()
        self._current: InterpreterCell | None = None
        self._ended_cell: SessionCell | None = None  # the next one takes its files
        self._files_lost = False
        self._is_closed = False
        self._packages: dict[str, str] = {}  # host folders that every interpreter sees, by their path there
        self._collector: FileCollector | None = None
        self._upper = -1  # a descriptor of the session's layer over the caller's folder, from its first step on
        self._broken_pauses = 0  # steps in a row whose files were not collected
        self._bounds = WriteBounds()  # since its last step
        self._end_note: SkippedFile | None = None  # why the interpreter was ended between two steps

    @property
    def current(self) -> InterpreterCell | None:
        return self._current

    def is_alive(self) -> bool:
        """Whether an interpreter can take a step."""
        return self._current is not None and self._current.is_alive

    async def get_alive(self) -> InterpreterCell:
        """Return the interpreter, or a fresh one if it has ended. Raises ``CasemateError``. The caller must hold the
        session's lock: a step has to collect its files first if its cell ended with it."""
        async with self._starting:
            self._check_open()
            if self._current is not None and self._current.is_alive:
                await self._end_if_unsafe(self._current)
            if self._current is not None and not self._current.is_alive:
                self.names.lose()  # it ended between two steps
                if not self._current.is_of_this_loop:
                    await self._current.end(keep_files=True)
                self.discard(self._current)
            return self._current or await self._start()

    async def _end_if_unsafe(self, interpreter: InterpreterCell) -> None:
        """End the interpreter if it could read a new or replaced file that must be hidden, or cannot be paused."""
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
        """Find what to hide and protect in the caller's folder now. The session's own files are not hidden from it."""
        found = await find_guarded(self._context)
        return found and replace(found, hidden=tuple(path for path in found.hidden if not self._is_own(path)))

    def _is_own(self, path: str) -> bool:
        return self._upper >= 0 and covers(self._upper, path, marks_here())

    def hides(self, name: str) -> bool:
        """Whether the workspace's ``name`` is hidden from the session's programs, now or from the next cell on."""
        guard, folder = self._context.folder.guard, self._context.folder.path
        if guard is None or folder is None:
            return False
        known = self._current.plan.workspace.hidden if self._current is not None else ()
        if any(name == path or name.startswith(f"{path}/") for path in known):
            return True
        return guard.hides(folder.resolve(), name) and os.path.lexists(folder / name) and not self._is_own(name)

    async def bounds(self) -> WriteBounds:
        """Return where, and how much, the host may write into the workspace. Raises ``CasemateError``."""
        if self._context.wall.lays_out:
            usage, limits = await self._current.settled_usage() if self._current else None, self._admitted.limits
            if self._bounds.room is None or usage not in (None, self._bounds.usage):
                room = (usage.space_left, usage.inodes_left) if usage else (limits.disk, limits.inodes)
                self._bounds = WriteBounds(None, room, usage)
        guard, folder = self._context.folder.guard, self._context.folder.path
        if guard is not None and folder is not None:
            self._bounds.rules = await to_thread_to_end(lambda: guard.rules(folder.resolve(), names=False))
        return self._bounds

    def note_upload(self, name: str, sha256: str) -> None:
        """Note that the host is about to write a file with this content, so that no step reports it as its own."""
        if self._collector is not None:
            self._collector.note_upload(name, sha256)

    async def get_current(self) -> InterpreterCell | None:
        """Return the interpreter, or start the first one. Needs no lock. Raises ``CasemateError``. Returns None if it
        has ended and no step has collected its files yet."""
        async with self._starting:
            self._check_open()
            if self._current is None:
                return await self._start()
            return self._current if self._current.is_alive else None

    async def _start(self) -> InterpreterCell:
        report = await self._context.wall.prove()
        await self._context.supplies.ready()
        intercepted = self._context.sandbox_network.interception_for(self._admitted)
        guarded = await self._find_guarded()
        plan = make_plan(self._admitted, self._context, intercepted, session=True, guarded=guarded)
        plan = replace(plan, deadline=_NO_DEADLINE, id=os.urandom(16).hex())
        if self._collector is None:
            await prepare(self._redaction)
            self._collector = await asyncio.to_thread(_make_collector, plan, self._context, self._redaction)
        self._collector.plan = plan
        if self._ended_cell is not None:
            plan = replace(plan, continues=self._ended_cell.id, files={})  # the workspace has them already
        self._current, self._ended_cell = self._make_cell(plan, intercepted, report), None
        if await self._current.was_missed():
            self._current.release()
            self._current = self._make_cell(replace(plan, waiting=_MISSED), intercepted, report)
        return self._current

    def _make_cell(self, plan: Plan, intercepted: CellInterception | None, report: IsolationReport) -> InterpreterCell:
        interpreter = InterpreterCell(self._context.wall, plan, runtime_for(plan.language).session, self._redaction)
        network, offers = self._context.sandbox_network, self._context.supplies.offers()
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

    def ending_of(self, interpreter: InterpreterCell) -> CellEnding:
        """Return how a cell ended. Raises the error that kept its interpreter from starting."""
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
        """Drop an interpreter that has ended. The next one takes its files, unless the supervisor is gone too."""
        is_lost = interpreter.has_ended_with_the_wall
        interpreter.release()
        if self._current is interpreter:
            self._current, self._ended_cell = None, None if is_lost else interpreter.cell
            self._files_lost = self._files_lost or is_lost

    async def show_packages(self, folder: str, place: str) -> None:
        """Show packages at ``place`` to the interpreter and its successors. Raises ``Fault``."""
        self._packages[place] = folder
        if self._current is not None:
            await self._current.show_packages(folder, place)

    async def end(self, *, keep_files: bool) -> None:
        """End the interpreter and forget its state. Without ``keep_files`` the session is over."""
        async with self._starting:
            interpreter = self._current
            if interpreter is not None:
                await interpreter.end(keep_files=keep_files or self._broken_pauses > 0)
                if self._broken_pauses > 0:  # the last changes are not collected yet, and nothing runs now
                    with contextlib.suppress(CasemateError, OSError):
                        await self._collect_files(interpreter, interpreter.ended.result())
                self.discard(interpreter)
            self.names.forget()
            if not keep_files:
                self.abandon()

    def abandon(self) -> None:
        """End the interpreter, if any, and discard all files, without waiting. The session is over."""
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
        """Yield the review and a descriptor of the layer over the caller's folder; the cell is paused meanwhile. The
        caller must hold the session's lock. Raises ``CasemateError``."""
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
                    raise Unavailable("the session's changes cannot be read: its cell cannot be paused",
                                      remediation="Reset the session.")  # fmt: skip
                yield review, upper
            finally:
                os.close(upper)
                interpreter.cell.resume_files()
        finally:
            os.close(tree)

    async def discard_layer(self) -> None:
        """End the interpreter, so that the next one sees the original folder. A mounted overlay does not show changes
        to its layer reliably (Documentation/filesystems/overlayfs.rst, changes to underlying filesystems)."""
        tree, interpreter = await self._open_tree()
        try:
            async with self._starting:
                await interpreter.end(keep_files=True)
                self.discard(interpreter)
                self.names.lose()
                if self._context.wall.lays_out and self._ended_cell is not None:  # a copy holds its changes
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
        os.close(await interpreter.open_workspace())  # waits until the folders are open
        return os.dup(interpreter.tree_fd), interpreter

    async def collect_files(self, interpreter: InterpreterCell, ending: CellEnding | None) -> CollectedFiles:
        """Collect the files of a step. The first step after a loss also reports it."""
        try:
            files = await self._collect_files(interpreter, ending)
        except OSError as error:
            self._broken_pauses += 1
            why = f"the workspace could not be read: {error.strerror}"
            files = CollectedFiles(skipped=(SkippedFile(".", why),))
        if self._files_lost:
            self._files_lost, files = False, replace(files, skipped=(_FILES_LOST, *files.skipped))
        if (note := self._end_note) is not None:
            self._end_note, files = None, replace(files, skipped=(note, *files.skipped))
        return files

    async def _collect_files(self, interpreter: InterpreterCell, ending: CellEnding | None) -> CollectedFiles:
        """Pause a cell that lives on while its files are collected, unless it wrote nothing."""
        assert self._collector is not None
        kind = interpreter.plan.workspace.kind
        if self._upper < 0 and not self._is_closed and kind == "overlay":
            self._upper = open_folder(interpreter.tree_fd if ending is None else ending.tree_fd, b"upper")
        if ending is not None:
            return await to_thread_to_end(partial(self._collector.collect, ending.tree_fd, dead=True))
        tree = interpreter.tree_fd
        if kind == "private" and not self._collector.known_files and is_untouched(tree, unlock=False):
            return CollectedFiles()
        if await to_thread_to_end(self._collector.is_unchanged, tree):
            return CollectedFiles()
        try:
            if not await _pause(interpreter):
                self._broken_pauses += 1
                return CollectedFiles(skipped=(_NOT_TAKEN,))
            self._broken_pauses, is_paused = 0, True
            files = await to_thread_to_end(partial(self._collector.collect, tree, dead=False))
        except Fault:  # it has ended meanwhile: nothing in it runs
            return await to_thread_to_end(partial(self._collector.collect, tree, dead=True))
        finally:
            interpreter.cell.resume_files()
        with contextlib.suppress(Fault):  # it has ended since
            is_paused = await interpreter.cell.stayed_paused()
        return files if is_paused else replace(files, skipped=(*files.skipped, _NOT_PAUSED))
