"""One interpreter of a session: its cell, its replies, and access to its files."""

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
from casemate.sessions.inbox import Inbox, RunningStep
from casemate.walls.wall import CellEnding

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

GRACE = 2.0  # seconds from a step's interrupt to the end of its cell
_READY_WITHIN = 60.0  # seconds to start an interpreter on a machine under heavy load
_ANSWER_WITHIN = 30.0  # seconds to answer between steps; code of the session must be blocking it then
_UNMEASURED = 0.01  # seconds from a step's start to the supervisor's first measurement
_END_WITHIN = 10.0  # seconds; a killed cell is dead in milliseconds, so the supervisor must be gone then
_CLIENTS_AT_ONCE = 8  # sockets


class InterpreterCell:
    def __init__(self, wall: Wall, plan: Plan, protocol: SessionProgram, redaction: Redaction | None = None) -> None:
        """Start the cell. Raises ``CasemateError``."""
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
        # Done when the cell is dead.
        self.ended: asyncio.Future[CellEnding] = asyncio.ensure_future(self.cell.wait())  # noqa: TID251 - ended by `end`
        self._folders = asyncio.ensure_future(self.cell.open_folders())  # noqa: TID251 - done at the latest when the cell ends
        self._folders.add_done_callback(_ignore_exception)
        self.ended.add_done_callback(_ignore_exception)
        self._is_released = False
        self._client_sockets: dict[str, list[socket.socket]] = {}  # by destination address
        self._making_sockets = asyncio.Lock()
        self._step = 0
        self._last_step: RunningStep | None = None
        self._requests = 0
        self.packages: dict[str, str] = {}  # host folders still to be shown in the cell, by their path there

    @property
    def is_alive(self) -> bool:
        """Whether its cell is alive and belongs to the running event loop."""
        return not self.ended.done() and self.is_of_this_loop

    async def begin(self, step: RunningStep, code: bytes, stdin: bytes | None, cwd: str | None, seconds: float) -> None:
        """Begin a step once the interpreter has started."""
        await self._wait_started()  # the step's time starts after that
        await self._wait_unless_ended(self._inbox.pipes_of(step.number))
        self._step, self._last_step = step.number, step
        step.has_begun = True
        self._inbox.begin_step(step)
        request = self._protocol.run(StepRequest(step.number, code, stdin, cwd, step.asks, step.terms))
        self.cell.begin_step(step.number, request, seconds, GRACE, self._protocol.repeat)

    def make_capture(self, limits: Limits, emitter: Emitter | None, redaction: Redaction | None) -> Capture:
        """Return the capture of a step's output. Too much output interrupts the step; the state is kept."""
        capture = Capture(limits, emitter, redaction)

        def interrupt(_reason: Reason) -> None:
            self.cell.interrupt(GRACE)

        capture.kill = interrupt
        if emitter:
            emitter.on_room = self.cell.read_on
        return capture

    def answer(self, number: int, allow: bool, reason: str) -> None:
        """Answer the running step's request ``number``. Callable from any thread."""
        self.cell.send(self._protocol.answer(number, allow, reason))

    async def show_packages(self, folder: str, place: str) -> None:
        """Show a folder of packages in the cell, now or once it has started. Raises ``Fault``."""
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
        """Return the number of the next step."""
        return self._step + 1

    async def wait_over(self, step: RunningStep) -> bool:
        """Wait for the end of a step, or of the cell. Returns True if the step ended."""
        if step.done is None:
            await self._wait_unless_ended(step.over)
        return step.done is not None

    async def wait_ended(self, step: RunningStep) -> None:
        """Wait for the end of the cell. ``step``, its last, then gets the waiting background output."""
        await asyncio.wait([self.ended])
        self._inbox.end(step)

    async def usage_of(self, step: RunningStep, seconds: float) -> StepUsage | None:
        """Return the usage of a step that took ``seconds``; None if the cell ended meanwhile. The supervisor does not
        measure short steps, so this does not wait for one unless a caller's folder needs it."""
        known = self._inbox.last_usage
        if known is not None and seconds < _UNMEASURED and not self._needs_layout:
            return known._replace(
                interrupted=False, cpu_seconds=0.0, peak_memory=known.memory_left, tasks=known.tasks_left
            )
        self.cell.hurry()
        await self._wait_unless_ended(step.used)
        return step.used.result() if step.used.done() else None

    async def settled_usage(self) -> StepUsage | None:
        """Return the usage after the last finished step; None if it is unknown."""
        step = self._last_step
        if step is not None and step.over.done() and not step.used.done():
            self.cell.hurry()
            await self._wait_unless_ended(step.used)
        return self._inbox.last_usage

    async def list_variables(self) -> Reply | None:
        """Ask for the variables; None if the cell ended meanwhile."""
        return await self._request(self._protocol.variables(self._requests + 1))

    async def get(self, name: str) -> Reply | None:
        """Ask for one value; None if the cell ended meanwhile."""
        return await self._request(self._protocol.get(self._requests + 1, name))

    async def settle(self) -> None:
        """Wait until a late interrupt is over: until the interpreter answers a request, at most `GRACE`."""
        await self._request(self._protocol.get(self._requests + 1, "_"), GRACE)

    async def set(self, name: str, value: str) -> Reply | None:
        """Bind ``name`` to ``value``, which is JSON; None if the cell ended meanwhile."""
        return await self._request(self._protocol.set(self._requests + 1, name, value))

    async def open_workspace(self) -> int:
        """Return a descriptor of the workspace as the cell sees it; the caller closes it. Raises ``CasemateError``."""
        await self._wait_unless_ended(self._folders)
        if self._is_released or not self._folders.done():
            raise Fault("the session's cell has ended")
        workspace = self.plan.workspace
        if workspace.kind == "direct":  # files made in the cell's mount would have another owner
            assert workspace.folder is not None
            return os.open(workspace.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return os.dup(self._folders.result()[0])

    async def take_client_socket(self, address: str) -> socket.socket:
        """Return an unconnected socket in the cell's network, of the family of ``address``. Raises ``OSError``."""
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
        """Open several sockets at once: a child of the supervisor makes them, which takes a millisecond."""
        await self._wait_unless_ended(self._folders)
        making = asyncio.wrap_future(self.cell.listen([("client", address, 0)] * _CLIENTS_AT_ONCE))
        try:
            await asyncio.wait([making])  # it ends with the cell at the latest
        except asyncio.CancelledError:
            making.add_done_callback(_close_sockets)
            raise
        return [socket.socket(fileno=fd) for fd in making.result()]

    @property
    def tree_fd(self) -> int:
        """The folder of everything the cell can write, valid until `release`. Only after it began a step."""
        return self._folders.result()[1]

    async def was_missed(self) -> bool:
        """Whether a ready cell ended before its program began. The caller can take another cell."""
        await self._wait_unless_ended(self._folders)
        if self._folders.done() and self._folders.exception() is not None:
            await asyncio.wait([self.ended], timeout=_END_WITHIN)  # the reason follows a moment later
        return self.ended.done() and self.cell.is_missed

    @property
    def problem(self) -> str:
        ready = self._inbox.ready
        return ready.result().problem if ready.done() else ""

    @property
    def has_ended_with_the_wall(self) -> bool:
        """Whether it ended because its supervisor ended or never started. Its files are lost."""
        return self.ended.done() and not self.ended.cancelled() and self.ended.exception() is not None

    @property
    def is_of_this_loop(self) -> bool:
        """Whether it was started in the running event loop. Other loops cannot wait for it."""
        return self.ended.get_loop() is asyncio.get_running_loop()

    @property
    def is_fresh(self) -> bool:
        return self._step == 0

    async def end(self, *, keep_files: bool) -> None:
        """End the cell and wait for its end, at most 10 seconds."""
        self.cell.kill("cancelled" if keep_files else "closed")
        if self.is_of_this_loop:
            await asyncio.wait([self.ended], timeout=_END_WITHIN)
            return
        with contextlib.suppress(CasemateError, TimeoutError):
            async with asyncio.timeout(_END_WITHIN):
                os.close((await self.cell.wait()).tree_fd)

    def abandon(self) -> None:
        """End the cell and discard its files, without waiting."""
        self.cell.kill("closed")
        self.cell.forget()
        if not self.ended.get_loop().is_closed():
            self.ended.add_done_callback(lambda _: self.release())

    def release(self) -> None:
        """Close everything of a cell that has ended. Safe to call again."""
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
        await self._wait_unless_ended(self._folders)  # requests sent after this come after the order to start
        await self._wait_unless_ended(self._inbox.ready, _READY_WITHIN)
        if self.packages and self.is_alive:
            await self._show()

    async def _wait_unless_ended(self, future: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait for ``future`` or the end of the cell. Ends a cell that sends nothing within ``seconds``."""
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
    """Keep asyncio from logging an exception that nothing retrieves. Waiters still get it."""
    if not future.cancelled():
        future.exception()
