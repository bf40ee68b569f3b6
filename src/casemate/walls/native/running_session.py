"""A session's cell behind a link: requests to its interpreter, the pipes of its steps, and answers in order."""

from __future__ import annotations

import os
import resource
import select
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from casemate.errors import Fault
from casemate.walls.native.descriptors import ALL, PIPE, what_is_in
from casemate.walls.native.running import NOT_BEGUN, Pump, RunningCell, StepPipe, T, numbers, outcome
from casemate.walls.wall import StepUsage, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from casemate.walls.wall import SessionSink

# The last steps whose pipes are still read, because processes that they left may write: usually, and when descriptors
# are scarce.
_STEPS_KEPT, _STEPS_KEPT_AT_LEAST = 64, 4
_BATCH = 1 << 22  # bytes of text between two reads of the control pipe
_ENDED = "the session's cell has ended"
_NEAR = 15.0  # seconds before a step's deadline; the application may hold the GIL for as long


class RunningSession(RunningCell):
    """A session's cell behind a link. ``requests`` is the pipe to its interpreter, once open."""

    def __init__(
        self,
        link: Pump,
        cell_id: str,
        sink: SessionSink | None,
        pipes: dict[int, Stream | None],
        requests: int = -1,
    ) -> None:
        super().__init__(link, cell_id, sink, pipes)
        self.requests = requests
        self._files: Future[tuple[int, int]] = Future()
        self._files.set_running_or_notify_cancel()
        self._asked["session files"] = self._files
        self._unsent = bytearray()  # requests
        self._sending = threading.Lock()
        self._resumed_files: Future[bool] | None = None
        self._deadline = 0.0  # of the step that runs (monotonic seconds)

    # -- from any thread

    @property
    def is_missed(self) -> bool:
        return self.future.done() and self.future.exception() is None and self.future.result() is None

    def send(self, request: bytes) -> None:
        """Send a request. The part that does not fit follows when there is room."""
        with self._sending:
            self._unsent += request
            if len(self._unsent) == len(request):
                self._write_on()
            waiting = bool(self._unsent)
        if waiting:
            self._link.call(self._watch_requests)

    def _write_on(self) -> None:
        """Write as much as fits. Call under `_sending`."""
        if self.requests < 0:
            self._unsent.clear()
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self.requests, memoryview(self._unsent)[:PIPE].tobytes())]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
            self._link.call(self._report_closed)

    def begin_step(self, step: int, request: bytes, seconds: float, grace: float, repeat: float) -> None:
        order = {"op": "step", "id": self.id, "step": step, "seconds": seconds, "grace": grace, "repeat": repeat}
        self._deadline = time.monotonic() + seconds
        self._link.post(order)
        self._link.flush()  # before the request: with it a container gets the host's files
        self.send(request)

    def end_step(self, step: int) -> None:
        self._link.post({"op": "step over", "id": self.id, "step": step})
        if time.monotonic() > self._deadline - _NEAR:
            self._link.flush()  # or the next step might get this one's interrupt

    def hurry(self) -> None:
        self._link.flush()

    def interrupt(self, grace: float) -> None:
        self._send_order("interrupt", grace=grace)

    async def pause_files(self) -> bool:
        return await _answer(self._ask("files paused", "pause files"))

    def resume_files(self) -> None:
        self._resumed_files = self._ask("files resumed", "resume files")

    async def stayed_paused(self) -> bool:
        if self._resumed_files is None or self.is_over:
            raise Fault(_ENDED)
        return await _answer(self._resumed_files)

    async def open_folders(self) -> tuple[int, int]:
        return await _answer(self._files)

    def show(self, source: str, target: str) -> Future[None]:
        number = next(numbers)
        return self._ask(("shown", number), "show", number=number, source=source, target=target)

    def forget(self) -> None:
        self._send_order("forget")

    # -- begun and ended by its link

    def take_ways_in(self, sink: Any) -> tuple[int, int, int]:
        """As in the base class. Requests go through the order's pipe. Raises ``OSError``."""
        self.requests = os.dup(self.order)
        return super().take_ways_in(sink)

    def close_ways_in(self) -> None:
        """Also close the pipe to its interpreter."""
        super().close_ways_in()
        with self._sending:
            if self.requests >= 0:
                os.close(self.requests)
            self.requests = -1

    def end(self) -> None:
        """Also drop unsent requests."""
        if self._link.writers.pop(self.requests, None):
            self._link.poll.unregister(self.requests)
        super().end()

    def _has_not_begun(self, stage: str) -> bool:
        """As in the base class, but also with listeners handed out: the session itself opens the next cell."""
        return self.start != "exec" and stage in NOT_BEGUN

    def drain(self) -> None:
        """As in the base class, but read the control pipe first."""
        self._read_control(ALL)
        super().drain()
        self.sink.settle()

    # -- in the pump thread

    def _watch_requests(self) -> None:
        """Resume writing when its interpreter has read."""
        with self._sending:
            if self.requests >= 0 and self.requests not in self._link.writers:
                self._link.writers[self.requests] = self
                self._link.poll.register(self.requests, select.POLLOUT)

    def send_on(self) -> None:
        """Write more requests, now that the pipe has room."""
        with self._sending:
            self._write_on()
            if not self._unsent:
                self._link.poll.unregister(self.requests)
                del self._link.writers[self.requests]

    def _report_closed(self) -> None:
        """Report that its interpreter closed its end of a pipe."""
        if self.sink:
            self.sink.interpreter_closed()

    def close_pipe(self, fd: int) -> None:
        """As in the base class. The end of the control pipe is reported."""
        is_control = self.pipes[fd] is None
        super().close_pipe(fd)
        if is_control:
            self._report_closed()

    def _read_control(self, most: int = PIPE) -> None:
        """Read the control pipe's content, at most ``most`` bytes; a program can enlarge the pipe."""
        fd = next((fd for fd, place in self.pipes.items() if place is None), -1)
        if fd >= 0:  # even while paused: its frames give the order of the text
            self._read_out(fd, most)

    def _take_in(self, fd: int, data: bytes) -> None:
        """Deliver the data of a pipe. Before text, deliver the frames that were written before it."""
        if self.pipes[fd] is None:
            self.deliver(fd, data)
        else:
            self._deliver_texts({fd: data})

    def _deliver_texts(self, texts: dict[int, bytes]) -> None:
        """Deliver text, after the frames that were written before it."""
        if texts:
            self._read_control()
        for fd, data in texts.items():
            if fd in self.pipes:
                self.deliver(fd, data)

    def _settle_text(self) -> None:
        """Read all text from the pipes if frames wait for it."""
        if self.unsettled and self.sink:
            self.unsettled = False
            upto = self.sink.count_frames()
            self._read_text()
            self.sink.settle(upto)

    def _read_text(self) -> None:
        """Read the text pipes' content, and before each batch the control pipe."""
        poll = select.poll()
        for fd in [fd for fd, place in self.pipes.items() if place is not None]:
            poll.register(fd, select.POLLIN)
        texts: dict[int, bytes] = {}
        for fd, _ in poll.poll(0):
            if fd in self.pipes and (data := what_is_in(fd)):
                texts[fd] = data
            if sum(map(len, texts.values())) >= _BATCH:
                self._deliver_texts(texts)
                texts = {}
        self._deliver_texts(texts)

    def _read_now(self, then: Callable[[], object]) -> None:
        """As in the base class, with frames and text in order."""
        if not self.paused:
            self.unsettled = True
            self._settle(time.thread_time())
        then()

    def _is_full(self, place: Stream | StepPipe | None) -> bool:
        step = place.step if isinstance(place, StepPipe) else None if place is None else 0
        return self.sink is not None and self.sink.is_full(step)

    def _hand_on(self, place: Stream | StepPipe | None, data: bytes) -> None:
        if isinstance(place, StepPipe):
            self.sink.output(place.step, place.stream, data)
        elif place is not None:
            self.sink.output(None, place, data)
        else:
            for frame in self.frames.feed(data):
                self.unsettled = self.sink.frame(frame) or self.unsettled

    def hear(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Also handle messages about the session's steps and files."""
        op = message["op"]
        if op == "listening":
            return super().hear(message, fds)
        if self.sink is None:
            return False
        if op == "session files" and len(fds) == 2 and op in self._asked:
            return self._take_answer(op, (fds[0], fds[1]))
        if op == "pipes" and len(fds) == 2:
            self._take_step_pipes(message["step"], fds)
        elif op == "step over":
            self.sink.step_over(message["step"], StepUsage(**message["usage"]))
        elif op == "shown":
            self._take_answer((op, message["number"]), None, message["errno"])
        elif op in ("files paused", "files resumed"):
            self._take_answer(op, message["complete"])
        else:
            self.kill("pipes")  # no descriptors were left for them
            return False
        return True

    def _take_step_pipes(self, step: int, fds: list[int]) -> None:
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for fd, stream in zip(fds, streams, strict=True):
            self.pipes[fd] = StepPipe(step, stream)
        self.watch()
        are_scarce = len(self._link.readers) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        oldest = step - (_STEPS_KEPT_AT_LEAST if are_scarce else _STEPS_KEPT)
        old = [fd for fd, place in self.pipes.items() if isinstance(place, StepPipe) and place.step <= oldest]
        for fd in old:
            self.close_pipe(fd)
        self.sink.step_ready(step)


async def _answer(future: Future[T]) -> T:
    """Await the supervisor's answer. Raises ``Fault`` if the cell has ended."""
    try:
        return await outcome(future)
    except OSError:
        raise Fault(_ENDED) from None
