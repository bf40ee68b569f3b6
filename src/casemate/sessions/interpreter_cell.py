"""One interpreter of a session: its cell, what it says, and the way to its files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError, Fault
from casemate.execution.capture import Capture
from casemate.execution.guarding import Watch
from casemate.execution.network import CellNetwork
from casemate.languages.session_program import StepRequest
from casemate.model.plan import ListeningSocket
from casemate.sessions.inbox import Inbox, RunningStep
from casemate.walls.wall import CellEnding, CellMissed

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter
    from casemate.languages.session_program import SessionProgram
    from casemate.model.execution import Crossing
    from casemate.model.isolation import IsolationReport
    from casemate.model.limits import Limits
    from casemate.model.plan import Plan
    from casemate.redaction.redaction import Redaction
    from casemate.sessions.protocol import Reply
    from casemate.walls.wall import Reason, SessionCell, StepUsage, Wall

GRACE = 2.0  # seconds that a step has after an interrupt, before its cell is ended
_READY_WITHIN = 60.0  # seconds that an interpreter has to start, on a machine under heavy load
_ANSWER_WITHIN = 30.0  # seconds that it has to answer between steps; what holds it up so long is no longer its own
_UNMEASURED = 0.01  # seconds after its start the supervisor first looks at a step
_END_WITHIN = 10.0  # seconds; a killed cell is dead in milliseconds, so more means that the supervisor is gone
_CLIENTS_AT_ONCE = 8  # sockets


class InterpreterCell:
    """A running interpreter. ``ended`` is done when its cell is dead."""

    def __init__(self, wall: Wall, plan: Plan, protocol: SessionProgram, redaction: Redaction | None = None) -> None:
        """Starts it. Raises ``CasemateError``."""
        self.plan = plan
        self.report: IsolationReport
        self.cell_network: CellNetwork
        self.reported_crossings: tuple[Crossing, ...] = ()  # by steps
        self._protocol = protocol
        self._needs_layout = wall.lays_out and plan.workspace.kind == "overlay"
        self._inbox = Inbox(redaction)
        self.watch = Watch(plan.workspace)
        try:
            self.cell: SessionCell = wall.open(plan, self._inbox)
        except BaseException:
            self.watch.close()
            raise
        self.watch.begin(self.cell.kill)
        self._inbox.cell = self.cell
        self.ended: asyncio.Future[CellEnding] = asyncio.ensure_future(self.cell.wait())  # noqa: TID251 - ended by `end`
        self._folders = asyncio.ensure_future(self.cell.open_folders())  # noqa: TID251 - done at the latest when the cell ends
        self._folders.add_done_callback(_ignore_exception)
        self.ended.add_done_callback(_ignore_exception)
        self._is_released = False
        self._client_sockets: dict[str, list[socket.socket]] = {}  # by the address that they are for
        self._making_sockets = asyncio.Lock()
        self._step = 0
        self._last_step: RunningStep | None = None
        self._requests = 0
        self.packages: dict[str, str] = {}  # folders of the host that are to be shown in its cell, by their place there
        for step in (1, 2):  # and from then on the next but one, when a step is over
            self.cell.prepare_step(step)

    @property
    def is_alive(self) -> bool:
        """Whether its cell has not ended, as far as anybody here can know."""
        return not self.ended.done() and self.is_of_this_loop

    async def begin(self, step: RunningStep, code: bytes, stdin: bytes | None, cwd: str | None, seconds: float) -> None:
        """Have it run a step, once it has started."""
        await self._wait_started()  # the step's time begins when there is an interpreter
        await self._wait_unless_ended(self._inbox.pipes_of(step.number))
        self._step, self._last_step = step.number, step
        step.has_begun = True
        self._inbox.begin_step(step)
        request = self._protocol.run(StepRequest(step.number, code, stdin, cwd, step.asks, step.terms))
        self.cell.begin_step(step.number, request, seconds, GRACE, self._protocol.repeat)

    def make_capture(self, limits: Limits, emitter: Emitter | None, redaction: Redaction | None) -> Capture:
        """What takes in the output of a step; too much of it interrupts the step, and its state is kept."""
        capture = Capture(limits, emitter, redaction)

        def interrupt(_reason: Reason) -> None:
            self.cell.interrupt(GRACE)

        capture.kill = interrupt
        if emitter:
            emitter.on_room = self.cell.read_on
        return capture

    def answer(self, number: int, allow: bool, reason: str) -> None:
        """Answer what the step that runs has asked for as ``number``. From any thread."""
        self.cell.send(self._protocol.answer(number, allow, reason))

    async def show_packages(self, folder: str, place: str) -> None:
        """Have it see a folder of packages, at once where it is there, else when it is. Raises ``Fault``."""
        self.packages[place] = folder
        if self.is_alive and self._inbox.ready.done():
            await self._show()

    async def _show(self) -> None:
        folders, self.packages = self.packages, {}
        for place, folder in folders.items():
            shown = asyncio.wrap_future(self.cell.show(folder, place))
            await self._wait_unless_ended(shown)
            if shown.done() and shown.exception() is not None and not self.ended.done():
                raise Fault(f"the packages could not be shown in the session's cell: {shown.exception()}")

    def next_number(self) -> int:
        """The number of the next step."""
        return self._step + 1

    async def wait_over(self, step: RunningStep) -> bool:
        """Wait for the end of a step, or of the cell. True where it was the step's."""
        if step.done is None:
            await self._wait_unless_ended(step.over)
        return step.done is not None

    async def wait_ended(self, step: RunningStep) -> None:
        """Wait for the end of the cell, whose last step is ``step``: that emits what waits from the background."""
        await asyncio.wait([self.ended])
        self._inbox.end(step)

    async def usage_of(self, step: RunningStep, seconds: float) -> StepUsage | None:
        """What a step that is over, and took so long, has used; None when the cell has ended since.

        Of a short one the supervisor knows no more than before it, so it is not waited for, but for a folder's sake.
        """
        known = self._inbox.last_usage
        if known is not None and seconds < _UNMEASURED and not self._needs_layout:
            return known._replace(
                interrupted=False, cpu_seconds=0.0, peak_memory=known.memory_left, tasks=known.tasks_left
            )
        self.cell.hurry()
        await self._wait_unless_ended(step.used)
        return step.used.result() if step.used.done() else None

    async def settled_usage(self) -> StepUsage | None:
        """What the last step that is over has used; None where none is known, or it has ended."""
        step = self._last_step
        if step is not None and step.over.done() and not step.used.done():
            self.cell.hurry()
            await self._wait_unless_ended(step.used)
        return self._inbox.last_usage

    async def list_variables(self) -> Reply | None:
        """Its answer about the user's names; None when it ended meanwhile."""
        return await self._request(self._protocol.variables(self._requests + 1))

    async def get(self, name: str) -> Reply | None:
        """Its answer about one value."""
        return await self._request(self._protocol.get(self._requests + 1, name))

    async def settle(self) -> None:
        """Wait until an interrupt that came late is over: it is when a request is answered. It has that long."""
        await self._request(self._protocol.get(self._requests + 1, "_"), GRACE)

    async def set(self, name: str, value: str) -> Reply | None:
        """Its answer when it has bound ``name`` to ``value``, which is JSON."""
        return await self._request(self._protocol.set(self._requests + 1, name, value))

    async def open_workspace(self) -> int:
        """A descriptor of the workspace as the cell sees it, which the receiver closes. Raises ``CasemateError``."""
        await self._wait_unless_ended(self._folders)
        if self._is_released or not self._folders.done():
            raise Fault("the session's cell has ended")
        workspace = self.plan.workspace
        if workspace.kind == "direct":  # the cell's own mount of it gives what is made to another user
            assert workspace.folder is not None
            return os.open(workspace.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return os.dup(self._folders.result()[0])

    async def take_client_socket(self, address: str) -> socket.socket:
        """A socket of the cell's network, of the family of ``address``, for the host to connect. Raises ``OSError``."""
        kept = self._client_sockets.setdefault(address, [])
        async with self._making_sockets:
            if not kept:
                kept += await self._open_client_sockets(address)
            if self._is_released:  # meanwhile
                _close_all(kept)
                raise OSError(errno.ESRCH, "the session's interpreter has ended")
            one = kept.pop()
        one.setblocking(False)
        return one

    async def _open_client_sockets(self, address: str) -> list[socket.socket]:
        """Some at once: a child of the supervisor makes them, which takes a millisecond."""
        await self._wait_unless_ended(self._folders)
        making = asyncio.wrap_future(self.cell.listen([ListeningSocket("client", address, 0)] * _CLIENTS_AT_ONCE))
        try:
            await asyncio.wait([making])  # it ends with the cell at the latest
        except asyncio.CancelledError:
            making.add_done_callback(_close_sockets)
            raise
        return [socket.socket(fileno=fd) for fd in making.result()]

    @property
    def tree_fd(self) -> int:
        """The folder of all that it can write; its own, until it is let go. Only when it has begun a step."""
        return self._folders.result()[1]

    async def was_missed(self) -> bool:
        """Whether it ended before its program began, as a cell may that was ready: another is as good."""
        await self._wait_unless_ended(self._folders)
        if self._folders.done() and self._folders.exception() is not None:
            await asyncio.wait([self.ended], timeout=_END_WITHIN)  # a moment later, with the reason
        return self.ended.done() and isinstance(self.ended.exception(), CellMissed)

    @property
    def problem(self) -> str:
        """Why it could not start, when it has ended; empty when it could."""
        ready = self._inbox.ready
        return ready.result().problem if ready.done() else ""

    @property
    def has_ended_with_the_wall(self) -> bool:
        """Whether it has ended because its supervisor has, or was never made: nothing of it is left."""
        return self.ended.done() and not self.ended.cancelled() and self.ended.exception() is not None

    @property
    def is_of_this_loop(self) -> bool:
        """Whether the event loop that runs is the one in which it was started: in no other can anybody wait for it."""
        return self.ended.get_loop() is asyncio.get_running_loop()

    @property
    def is_fresh(self) -> bool:
        """Whether it has run no step yet."""
        return self._step == 0

    async def end(self, *, keep_files: bool) -> None:
        """End it, if it has not ended, and wait for that. Bounded."""
        self.cell.kill("cancelled" if keep_files else "closed")
        if self.is_of_this_loop:
            await asyncio.wait([self.ended], timeout=_END_WITHIN)
            return
        with contextlib.suppress(CasemateError, TimeoutError):
            async with asyncio.timeout(_END_WITHIN):
                os.close((await self.cell.wait()).tree_fd)

    def abandon(self) -> None:
        """End it and give up its files, without waiting. Harmless when it has ended."""
        self.cell.kill("closed")
        self.cell.forget()
        if not self.ended.get_loop().is_closed():
            self.ended.add_done_callback(lambda _: self.release())

    def release(self) -> None:
        """It has ended: close what leads to its files. Harmless when repeated."""
        if self._is_released:
            return
        self._is_released = True
        self.watch.close()
        self.cell_network.end()
        for kept in self._client_sockets.values():
            _close_all(kept)
        for future in (self._folders, self.ended):
            if not future.done():
                if not future.get_loop().is_closed():
                    future.cancel()
            elif not future.cancelled() and future.exception() is None:
                result = future.result()
                for fd in (result.tree_fd,) if isinstance(result, CellEnding) else result:
                    os.close(fd)

    async def _request(self, request: bytes, seconds: float = 0.0) -> Reply | None:
        await self._wait_started()
        self._requests += 1
        answer = self._inbox.reply_to(self._requests)
        self.cell.send(request)
        await self._wait_unless_ended(answer, seconds or _ANSWER_WITHIN)
        return answer.result() if answer.done() else None

    async def _wait_started(self) -> None:
        """Wait until it can be talked to, or has ended."""
        await self._wait_unless_ended(self._folders)  # its order is on its way then, and a request comes after it
        await self._wait_unless_ended(self._inbox.ready, _READY_WITHIN)
        if self.packages and self.is_alive:
            await self._show()

    async def _wait_unless_ended(self, future: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait until it is done, or the cell has ended: after ``seconds`` without a word it is ended."""
        while not future.done() and not self.ended.done():
            waited_for, _ = await asyncio.wait(
                [future, self.ended], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not waited_for:
                self.cell.kill("silent")
                seconds = None


def _close_all(kept: list[socket.socket]) -> None:
    while kept:
        kept.pop().close()


def _close_sockets(making: asyncio.Future[list[int]]) -> None:
    if making.exception() is None:
        for fd in making.result():
            os.close(fd)


def _ignore_exception(future: asyncio.Future[Any]) -> None:
    """Whoever waits for it gets its exception; asyncio need not log it for nobody."""
    if not future.cancelled():
        future.exception()
