"""Cells behind a link, and the pipes of sessions' cells: requests to their interpreters, and answers in order."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from casemate.errors import CasemateError, Fault
from casemate.supervisor.frames import FrameReader
from casemate.walls.native.descriptors import ALL, PIPE, close_all, what_is_in
from casemate.walls.native.refusal import Unlaunched, why_unlaunched
from casemate.walls.wall import CellEnding, CellMissed, SessionSink, Sink, StepUsage, Stream

if TYPE_CHECKING:
    import asyncio

    from casemate.model.plan import ListeningSocket
    from casemate.supervisor.readiness import DescriptorPoll

# Steps of a session whose pipes are still read, for what they left running may write: as long as descriptors are not
# scarce, and then.
_STEPS_KEPT, _STEPS_KEPT_AT_LEAST = 64, 4
_BATCH = 1 << 22  # bytes of text between two looks at the control pipe
T = TypeVar("T")
_NEAR = 15.0  # seconds before a step's deadline: the application may hold the interpreter's lock for as long meanwhile
GONE = "the cell that was ready had ended"
# Stages at which a cell that was ready, or was to be forked, has not begun its program. Its workspace may be one that
# was removed since, of whose number there is another.
MISSED = ("zygote", "waiting", "workspace")


class Pump(Protocol):
    """The thread that reads and sends, as cells and the pipes of sessions use it: `link.SupervisorLink`."""

    poll: DescriptorPoll
    readers: dict[int, RunningCell]
    sessions: SessionPipes

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send the supervisor a message."""

    def post(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Have it sent with the next one: by `flush`, or soon."""

    def flush(self) -> None:
        """Send what was posted."""

    def call(self, function: Any, *arguments: Any) -> None:
        """Have the thread call ``function``."""

    def read_on(self, cell: RunningCell) -> None:
        """Read on where the sink was full."""

    def watch(self, cell: RunningCell) -> None:
        """Read the cell's pipes from now on."""

    def deliver(self, fd: int, cell: RunningCell, data: bytes) -> None:
        """Hand on what came through a pipe of the cell's."""

    def read_out(self, fd: int, cell: RunningCell, most: int = ...) -> None:
        """What is in a pipe now, ``most`` bytes of it."""

    def read_now(self, cell: RunningCell, then: Callable[[], object]) -> None:
        """Hand on what the cell has written by now, and call ``then``."""

    def drain(self, cell: RunningCell) -> None:
        """Read what a dead cell's pipes still hold, and close them."""

    def close_pipe(self, fd: int, cell: RunningCell) -> None:
        """Nothing more is wanted of this pipe, or will come."""


_numbers = itertools.count(1)  # of what is asked of the supervisor for a cell


class StepPipe(NamedTuple):
    """One of the two pipes that a step of a session has of its own."""

    step: int
    stream: Stream


class RunningCell:
    """A cell behind a link.

    Without a ``sink`` it waits for its program. Then ``order`` and ``stdin`` lead to its process, and ``program``
    to its file, once the supervisor has sent that.
    """

    def __init__(self, link: Pump, cell_id: str, sink: Sink | None, pipes: dict[int, Stream | None]) -> None:
        self.id = cell_id
        self.sink = sink
        self.order = self.stdin = self.program = -1
        self.is_over = False
        self.pipes: dict[int, Stream | StepPipe | None] = dict(pipes)  # by descriptor; None is the control pipe
        self.paused: dict[int, None] = {}  # in the order in which they are read on
        self.read_size = PIPE  # bytes read of a pipe at once
        self.rests = False  # so that other cells have their turn
        self.frames = FrameReader()
        self.future: Future[CellEnding] = Future()
        self.listening: Future[list[int]] = Future()
        self._sockets: dict[int, Future[list[int]]] = {0: self.listening}  # asked for, by number
        self._link = link

    def kill(self, reason: str) -> None:
        self._send_order("kill", reason=reason)

    def read_on(self) -> None:
        self._link.call(self._link.read_on, self)

    def signal(self, number: int) -> None:
        self._send_order("signal", number=number)

    def read_now(self, then: Callable[[], object]) -> None:
        self._link.call(self._link.read_now, self, then)

    def pause(self) -> None:
        self._send_order("pause")

    def resume(self) -> None:
        self._send_order("resume")

    def _send_order(self, op: str, **fields: Any) -> None:
        self._link.send({"op": op, "id": self.id, **fields})

    def listen(self, sockets: Sequence[ListeningSocket]) -> Future[list[int]]:
        number, opened = next(_numbers), Future[list[int]]()
        opened.set_running_or_notify_cancel()
        self._sockets[number] = opened
        if self.is_over:
            self.end_listening()
        self._send_order("listen", number=number, listeners=[list(socket) for socket in sockets])
        return opened

    def listeners(self) -> Future[list[int]]:
        return self.listening

    def take_listeners(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Take over sockets that were asked for; False when nobody waits for them any more."""
        opened = self._sockets.pop(message["number"], None)
        if not message["errno"] and len(fds) != message["count"]:
            close_all(fds)
            fds.clear()
            message = {**message, "errno": errno.EMFILE}
        if opened is None or (opened is self.listening and not opened.set_running_or_notify_cancel()):
            return False
        if message["errno"]:
            opened.set_exception(OSError(message["errno"], os.strerror(message["errno"])))
        else:
            opened.set_result(fds)
        return True

    def end_listening(self) -> None:
        """No more sockets come."""
        for number in list(self._sockets):
            opened = self._sockets.pop(number, None)  # another thread may do the same
            if opened is not None and not opened.cancel():
                opened.set_exception(OSError(errno.ESRCH, "the cell has ended"))

    def discard(self) -> None:
        """End a cell that waits and will not be used."""
        self.kill("closed")

    def take_ways_in(self, sink: Sink | SessionSink) -> tuple[int, int, int]:
        """What only a cell that waits has, which is its taker's now: order, standard input and program. What it says
        goes to ``sink`` from now on."""
        ways_in = self.order, self.stdin, self.program
        self.order = self.stdin = self.program = -1
        self._set_sink(sink)
        return ways_in

    def _set_sink(self, sink: Any) -> None:
        self.sink = sink

    def close_ways_in(self) -> None:
        """Close what only a cell that waits has."""
        ways_in = self.order, self.stdin, self.program
        self.order = self.stdin = self.program = -1  # first: a child that is forked meanwhile closes what is named here
        close_all(fd for fd in ways_in if fd >= 0)

    def lose(self, error: CasemateError) -> None:
        """It is gone with its supervisor, or never was."""
        self.is_over = True
        close_all(list(self.pipes))
        self.close_ways_in()
        self.end_listening()
        self.future.set_exception(error)

    async def wait(self) -> CellEnding:
        return await outcome(self.future)


class RunningSession(RunningCell):
    """A session's cell behind a link: ``requests`` leads to its interpreter once it is open."""

    def __init__(
        self,
        link: Pump,
        cell_id: str,
        sink: SessionSink | None,
        pipes: dict[int, Stream | None],
        requests: int = -1,
    ) -> None:
        super().__init__(link, cell_id, None, pipes)
        self.session_sink: SessionSink | None = sink
        self.requests = requests
        self.unsent = bytearray()
        self.sending = threading.Lock()
        self.unsettled = False  # frames wait for text that is in the pipes
        self.will_settle = False  # the pump is asked to look at them again
        self.files: Future[tuple[int, int]] = Future()
        self.paused_files: Future[bool] | None = None
        self.resumed_files: Future[bool] | None = None
        self._shown: dict[int, Future[None]] = {}  # folders that are to be shown, by number
        self.is_gone = False
        self._deadline = 0.0  # of the step that runs (monotonic seconds)
        self.start, self.start_reason = "exec", ""

    def send(self, request: bytes) -> None:
        self._link.sessions.write(self, request)

    def prepare_step(self, step: int) -> None:
        self._send_order("pipes", step=step)

    def begin_step(self, step: int, request: bytes, seconds: float, grace: float, repeat: float) -> None:
        order = {"op": "step", "id": self.id, "step": step, "seconds": seconds, "grace": grace, "repeat": repeat}
        self._deadline = time.monotonic() + seconds
        self._link.post(order)
        self._link.flush()  # before the request: a container is given the files of the host's with it
        self.send(request)

    def end_step(self, step: int) -> None:
        self._link.post({"op": "step over", "id": self.id, "step": step})
        if time.monotonic() > self._deadline - _NEAR:
            self._link.flush()  # else the next step might get the interrupt of this one

    def hurry(self) -> None:
        self._link.flush()

    def interrupt(self, grace: float) -> None:
        self._send_order("interrupt", grace=grace)

    async def pause_files(self) -> bool:
        self.paused_files = paused_files = Future[bool]()
        if self.is_gone:  # asked after `paused_files` is there: whoever sets it looks at that afterwards
            raise Fault("the session's cell has ended")
        self._send_order("pause files")
        return await outcome(paused_files)

    def resume_files(self) -> None:
        self.resumed_files = Future()
        self._send_order("resume files")

    async def stayed_paused(self) -> bool:
        resumed_files = self.resumed_files
        if resumed_files is None or self.is_gone:
            raise Fault("the session's cell has ended")
        return await outcome(resumed_files)

    def show(self, source: str, target: str) -> Future[None]:
        number, shown = next(_numbers), Future[None]()
        shown.set_running_or_notify_cancel()
        self._shown[number] = shown
        if self.is_gone:  # after it is there: whoever gives up looks at it afterwards
            self._end_showing()
        self._send_order("show", number=number, source=source, target=target)
        return shown

    def take_shown(self, number: int, code: int) -> None:
        """The supervisor has shown a folder, or tells with an errno why it could not."""
        shown = self._shown.pop(number, None)
        if shown is not None and code:
            shown.set_exception(OSError(code, os.strerror(code)))
        elif shown is not None:
            shown.set_result(None)

    def _end_showing(self) -> None:
        for number in list(self._shown):
            self.take_shown(number, errno.ESRCH)

    async def open_folders(self) -> tuple[int, int]:
        return await outcome(self.files)

    async def wait(self) -> CellEnding:
        try:
            ending = await outcome(self.future)
        except Unlaunched as error:
            if self.start != "exec" and error.stage in MISSED:
                raise CellMissed(f"{GONE}: {error.detail}") from None
            raise why_unlaunched(error) from None
        return replace(ending, start=self.start, start_reason=self.start_reason)

    def forget(self) -> None:
        self._send_order("forget")

    def take_ways_in(self, sink: Sink | SessionSink) -> tuple[int, int, int]:
        """The same; requests go where the order goes. Raises ``OSError``."""
        self.requests = os.dup(self.order)
        return super().take_ways_in(sink)

    def _set_sink(self, sink: Any) -> None:
        self.session_sink = sink

    def close_ways_in(self) -> None:
        """Close the way to its interpreter, too."""
        super().close_ways_in()
        with self.sending:
            if self.requests >= 0:
                os.close(self.requests)
            self.requests = -1

    def lose(self, error: CasemateError) -> None:
        """The same, also for who waits for its files."""
        self.give_up()
        super().lose(error)

    def give_up(self) -> None:
        """Nobody is left to answer."""
        self.is_gone = True
        self._end_showing()
        for future in (self.files, self.paused_files, self.resumed_files):
            if future is not None and not future.done():
                future.set_exception(Fault("the session's cell has ended"))


async def outcome(future: Future[T]) -> T:
    """What comes of ``future``. Cancelling ends the waiting alone, and what comes later is then nobody's business."""
    import asyncio

    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_retrieve_exception)
    return await asyncio.shield(waiting)


def _retrieve_exception(waiting: asyncio.Future[T]) -> None:
    """asyncio logs an exception that nobody has asked for, also where whoever waited was cancelled."""
    if not waiting.cancelled():
        waiting.exception()


class SessionPipes:
    """All but `write` is called in the pump thread."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self.writers: dict[int, RunningSession] = {}

    def write(self, cell: RunningSession, data: bytes) -> None:
        """Send ``data`` to a session's interpreter; what does not go at once follows when there is room."""
        with cell.sending:
            cell.unsent += data
            if len(cell.unsent) == len(data):
                self._write_on(cell)
            waiting = bool(cell.unsent)
        if waiting:
            self._pump.call(self._watch_requests, cell)

    def _write_on(self, cell: RunningSession) -> None:
        """As much as there is room for. Under the cell's lock."""
        if cell.requests < 0:
            cell.unsent.clear()
            return
        try:
            while cell.unsent:
                del cell.unsent[: os.write(cell.requests, memoryview(cell.unsent)[:PIPE].tobytes())]
        except BlockingIOError:
            return
        except OSError:
            cell.unsent.clear()
            self._pump.call(self.report_closed, cell)

    def _watch_requests(self, cell: RunningSession) -> None:
        """Write on to a session's interpreter when it has read."""
        with cell.sending:
            if cell.requests >= 0 and cell.requests not in self.writers:
                self.writers[cell.requests] = cell
                self._pump.poll.register(cell.requests, select.POLLOUT)

    def send_on(self, fd: int) -> None:
        """There is room in the pipe ``fd`` to an interpreter."""
        cell = self.writers[fd]
        with cell.sending:
            self._write_on(cell)
            if not cell.unsent:
                self._pump.poll.unregister(fd)
                del self.writers[fd]

    def report_closed(self, cell: RunningSession) -> None:
        """Its interpreter has closed its end of a pipe."""
        if cell.session_sink:
            cell.session_sink.interpreter_closed()

    def read_control(self, cell: RunningSession, most: int = PIPE) -> None:
        """Everything that is in a session's control pipe now; where its code has made that longer, not all."""
        fd = next((fd for fd, place in cell.pipes.items() if place is None), -1)
        if fd >= 0:  # also while it is paused: it says in which order the text came
            self._pump.read_out(fd, cell, most)

    def settle(self, cell: RunningSession) -> None:
        """Where frames wait for text that was written before them: it is in the pipes, all of it."""
        if cell.unsettled and cell.session_sink:
            cell.unsettled = False
            upto = cell.session_sink.count_frames()
            self._read_text(cell)
            cell.session_sink.settle(upto)

    def _read_text(self, cell: RunningSession) -> None:
        """Everything that is in a session's text pipes now; before each part of it what was said before."""
        poll = select.poll()
        for fd in [fd for fd, place in cell.pipes.items() if place is not None]:
            poll.register(fd, select.POLLIN)
        texts: dict[int, bytes] = {}
        for fd, _ in poll.poll(0):
            if fd in cell.pipes and (data := what_is_in(fd)):
                texts[fd] = data
            if sum(map(len, texts.values())) >= _BATCH:
                self._deliver(cell, texts)
                texts = {}
        self._deliver(cell, texts)

    def _deliver(self, cell: RunningSession, texts: dict[int, bytes]) -> None:
        """Hand on text of its pipes, and before it what was said before."""
        if texts:
            self.read_control(cell)
        for fd, data in texts.items():
            if fd in cell.pipes:
                self._pump.deliver(fd, cell, data)

    def hand_on(self, cell: RunningSession, place: Stream | StepPipe | None, data: bytes) -> None:
        """What came through one of its pipes."""
        sink = cell.session_sink
        assert sink is not None
        if isinstance(place, StepPipe):
            sink.output(place.step, place.stream, data)
        elif place is not None:
            sink.output(None, place, data)
        else:
            for frame in cell.frames.feed(data):
                cell.unsettled = sink.frame(frame) or cell.unsettled

    def handle(self, cell: RunningCell | None, message: dict[str, Any], fds: list[int]) -> None:
        """The supervisor tells of a session's cell."""
        if not isinstance(cell, RunningSession) or cell.session_sink is None:
            close_all(fds)
        elif message["op"] == "session files" and len(fds) == 2 and not cell.files.done():
            cell.files.set_result((fds[0], fds[1]))
        elif message["op"] == "pipes" and len(fds) == 2:
            self._take_step_pipes(cell, message["step"], fds)
        elif message["op"] == "step over":
            cell.session_sink.step_over(message["step"], StepUsage(**message["usage"]))
        elif message["op"] == "shown":
            cell.take_shown(message["number"], message["errno"])
        elif message["op"] in ("files paused", "files resumed"):
            answer = cell.paused_files if message["op"] == "files paused" else cell.resumed_files
            if answer is not None and not answer.done():
                answer.set_result(message["complete"])
        else:
            close_all(fds)  # no descriptor was left for them
            cell.kill("pipes")

    def _take_step_pipes(self, cell: RunningSession, step: int, fds: list[int]) -> None:
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for fd, stream in zip(fds, streams, strict=True):
            cell.pipes[fd] = StepPipe(step, stream)
        self._pump.watch(cell)
        are_scarce = len(self._pump.readers) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        oldest = step - (_STEPS_KEPT_AT_LEAST if are_scarce else _STEPS_KEPT)
        old = [fd for fd, place in cell.pipes.items() if isinstance(place, StepPipe) and place.step <= oldest]
        for fd in old:
            self._pump.close_pipe(fd, cell)
        assert cell.session_sink is not None
        cell.session_sink.step_ready(step)

    def end(self, cell: RunningSession) -> None:
        """A session's cell has ended: what it said before, and no more."""
        if cell.requests in self.writers:
            self._pump.poll.unregister(cell.requests)
            del self.writers[cell.requests]
        cell.close_ways_in()
        if cell.session_sink is None:
            close_all(list(cell.pipes))
        else:
            if cell.pipes and next(iter(cell.pipes)) not in self._pump.readers:
                self._pump.watch(cell)
            self.read_control(cell, ALL)
            self._pump.drain(cell)
            cell.session_sink.settle()
        cell.give_up()
