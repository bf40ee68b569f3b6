"""The pipes of sessions' cells: requests to their interpreters, and what comes back through many pipes, in order."""

from __future__ import annotations

import os
import resource
import select
from typing import TYPE_CHECKING, Any, Protocol

from casemate.walls.native.descriptors import PIPE, close_all, what_is_in
from casemate.walls.native.running import RunningCell, RunningSession, StepPipe, usage_of

if TYPE_CHECKING:
    from casemate.walls.wall import Stream

# Steps of a session whose pipes are still read, for what they left running may write: as long as descriptors are not
# scarce, and then.
_STEPS_KEPT, _STEPS_KEPT_AT_LEAST = 64, 4


class Pump(Protocol):
    """What this needs of the thread that reads."""

    epoll: select.epoll
    readers: dict[int, RunningCell]

    def call(self, function: Any, *arguments: Any) -> None:
        """Have the thread call ``function``."""
        ...

    def deliver(self, fd: int, cell: RunningCell, data: bytes) -> None:
        """Hand on what came through a pipe of the cell's."""
        ...

    def close_pipe(self, fd: int, cell: RunningCell) -> None:
        """Nothing more is wanted of this pipe, or will come."""
        ...

    def drain(self, cell: RunningCell) -> None:
        """Read what a dead cell's pipes still hold, and close them."""
        ...

    def read_out(self, fd: int, cell: RunningCell) -> None:
        """Everything that is in a pipe now."""
        ...

    def watch(self, cell: RunningCell) -> None:
        """Read the cell's pipes from now on."""
        ...


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
                self._pump.epoll.register(cell.requests, select.EPOLLOUT)

    def send_on(self, fd: int) -> None:
        """There is room in the pipe ``fd`` to an interpreter."""
        cell = self.writers[fd]
        with cell.sending:
            self._write_on(cell)
            if not cell.unsent:
                self._pump.epoll.unregister(fd)
                del self.writers[fd]

    def report_closed(self, cell: RunningSession) -> None:
        """Its interpreter has closed its end of a pipe."""
        if cell.session_sink:
            cell.session_sink.interpreter_closed()

    def read_control(self, cell: RunningSession) -> None:
        """Everything that is in a session's control pipe now."""
        fd = next((fd for fd, place in cell.pipes.items() if place is None), -1)
        if fd >= 0 and fd not in cell.paused:
            self._pump.read_out(fd, cell)

    def settle(self, cell: RunningSession) -> None:
        """Where frames wait for text that was written before them: it is in the pipes, all of it."""
        if cell.unsettled and cell.session_sink:
            cell.unsettled = False
            upto = cell.session_sink.count_frames()
            self._read_text(cell)
            cell.session_sink.settle(upto)
            if cell.unsettled:
                self._pump.call(self.settle, cell)

    def _read_text(self, cell: RunningSession) -> None:
        """Everything that is in a session's text pipes now; before each piece what was said before it."""
        for fd in [fd for fd, place in cell.pipes.items() if place is not None]:
            for data in what_is_in(fd):
                if not data:
                    break  # nobody writes to it yet, or any more; which of them the poll tells
                self.read_control(cell)
                if fd in cell.pipes:
                    self._pump.deliver(fd, cell, data)
                if fd not in cell.pipes:
                    break

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
        elif message["op"] == "session files" and len(fds) == 2:
            cell.files.set_result((fds[0], fds[1]))
        elif message["op"] == "pipes" and len(fds) == 2:
            self._take_step_pipes(cell, message["step"], fds)
        elif message["op"] == "step over":
            cell.session_sink.step_over(message["step"], usage_of(message))
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
            self._pump.readers[fd] = cell
            self._pump.epoll.register(fd, select.EPOLLIN)
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
            self._pump.epoll.unregister(cell.requests)
            del self.writers[cell.requests]
        cell.close_ways_in()
        if cell.session_sink is None:
            close_all(list(cell.pipes))
        else:
            if cell.pipes and next(iter(cell.pipes)) not in self._pump.readers:
                self._pump.watch(cell)
            self.read_control(cell)
            self._pump.drain(cell)
            cell.session_sink.settle()
        cell.give_up()
