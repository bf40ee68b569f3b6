"""A cell behind a link: the handle for the wall's caller, and the pipes that the link's pump reads."""

from __future__ import annotations

import errno
import itertools
import os
import select
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from casemate.errors import CasemateError, Fault
from casemate.supervisor.frames import FrameError, FrameReader
from casemate.walls.native.descriptors import ALL, PIPE, close_all, what_is_in
from casemate.walls.native.refusal import why_unlaunched
from casemate.walls.wall import CellEnding, Stream

if TYPE_CHECKING:
    import asyncio

    from casemate.supervisor.readiness import DescriptorPoll

T = TypeVar("T")
_LONG = 0.005  # seconds for handling the data of one read; most take 0.001
_REST = 4  # after a slow read a cell rests this many times as long as it took, for the sake of other cells
_PIECE = PIPE // 16  # bytes per read after a slow one; doubled after each quick one, up to half a pipe
GONE = "the cell that was ready had ended"
# Stages at which a ready or forked cell has not begun its program. At "workspace", its folder may have been removed and
# the inode number reused.
NOT_BEGUN = ("zygote", "waiting", "workspace")
_FIRST = ("listening", 0)  # the answer with the plan's listeners
numbers = itertools.count(1)  # of requests to the supervisor for a cell


class Pump(Protocol):
    """A thread that reads the output of cells and sends messages to the supervisor: `link.SupervisorLink`."""

    poll: DescriptorPoll
    readers: dict[int, Any]  # cells, by the descriptor that `poll` waits for
    writers: dict[int, Any]

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a message now."""

    def post(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a message with the next one, by `flush`, or after the batch delay."""

    def flush(self) -> None:
        """Send posted messages."""

    def call(self, function: Any, *arguments: Any) -> None:
        """Call ``function`` in the thread."""

    def wake_later(self, cell: RunningCell, when: float) -> None:
        """Call `end_rest` of ``cell`` in the thread at ``when`` (monotonic seconds)."""


class StepPipe(NamedTuple):
    """One of the two pipes of a session's step."""

    step: int
    stream: Stream


class RunningCell:
    """A cell behind a link. Without a ``sink`` it waits for its program."""

    def __init__(self, link: Pump, cell_id: str, sink: Any, pipes: dict[int, Stream | None]) -> None:
        """``sink`` is a `Sink`, or a `SessionSink` for a session's cell."""
        self.id = cell_id
        self.sink = sink
        self.start, self.start_reason = "zygote" if sink is None else "exec", ""
        self.release: Callable[[], None] | None = None  # tells its pool that the run is over
        self.again: Callable[[], None] | None = None  # begins the program by exec if a ready cell failed to
        self.order = self.stdin = self.program = -1  # of a waiting cell: pipe, input file, program file
        self.is_over = False
        self.pipes: dict[int, Stream | StepPipe | None] = dict(pipes)  # by descriptor; None is the control pipe
        self.paused: dict[int, None] = {}  # in the order in which reading resumes
        self.read_size = PIPE  # bytes per read of a pipe
        self.rests = False  # whether it is not read for a while, for the sake of other cells
        self.unsettled = False  # whether frames wait for text in the pipes
        self.will_settle = False  # whether the pump will call `_settle_on`
        self.frames = FrameReader()
        self.future: Future[CellEnding | None] = Future()  # None: it was ready, and ended before its program began
        self.listening: Future[list[int]] = Future()
        self._asked: dict[object, Future[Any]] = {_FIRST: self.listening}  # pending answers
        self._killed = ""  # the reason, if it was killed
        self._link = link

    # -- from any thread

    def kill(self, reason: str) -> None:
        if self.sink is not None:  # a waiting cell has no run yet
            self._killed = reason
        self._send_order("kill", reason=reason)

    def signal(self, number: int) -> None:
        self._send_order("signal", number=number)

    def read_on(self) -> None:
        self._link.call(self.resume_reading)

    def read_now(self, then: Callable[[], object]) -> None:
        self._link.call(self._read_now, then)

    def pause(self) -> None:
        self._send_order("pause")

    def resume(self) -> None:
        self._send_order("resume")

    def _send_order(self, op: str, **fields: Any) -> None:
        self._link.send({"op": op, "id": self.id, **fields})

    def listen(self, sockets: Sequence[tuple[str, str, int]]) -> Future[list[int]]:
        number = next(numbers)
        listeners = [list(socket) for socket in sockets]
        return self._ask(("listening", number), "listen", number=number, listeners=listeners)

    def _ask(self, answer: object, op: str, **fields: Any) -> Future[Any]:
        """Send the supervisor a request; ``answer`` is the key of its answer. The future holds an ``OSError`` if the
        request failed or the cell has ended."""
        future = Future[Any]()
        future.set_running_or_notify_cancel()
        self._asked[answer] = future
        if self.is_over:  # checked after the future is stored, because the end fails only stored ones
            self._end_asked()
        self._send_order(op, **fields)
        return future

    def _take_answer(self, answer: object, value: object, code: int = 0) -> bool:
        """Complete a request with its value or errno. Returns False if no caller waits for it."""
        future = self._asked.pop(answer, None)
        if future is None or not (future.running() or future.set_running_or_notify_cancel()):
            return False
        if code:
            future.set_exception(OSError(code, os.strerror(code)))
        else:
            future.set_result(value)
        return True

    def _end_asked(self) -> None:
        """Fail all pending requests."""
        for answer in list(self._asked):
            future = self._asked.pop(answer, None)  # another thread may pop it first
            if future is not None and not future.cancel():
                future.set_exception(OSError(errno.ESRCH, "the cell has ended"))

    def listeners(self) -> Future[list[int]]:
        return self.listening

    async def wait(self) -> CellEnding:
        import asyncio

        try:
            ending = await self._wait()
        except asyncio.CancelledError:
            raise  # the cell goes on
        except BaseException:
            self._end_use()
            raise
        self._end_use()
        return replace(ending, start=self.start, start_reason=self.start_reason)

    async def _wait(self) -> CellEnding:
        """Wait for the end. If a ready cell ended before its program began, begin again by exec, unnoticed."""
        ending = await outcome(self.future)
        if ending is None and self.again:
            self.again()
            ending = await outcome(self.future)
        if ending is None:
            raise Fault(self.start_reason)
        return ending

    def _end_use(self) -> None:
        self.again = None
        self.listening.cancel()  # unclaimed listeners are not needed any more
        self.give_back()

    def give_back(self) -> None:
        """Tell its pool, if any, that the run is over. A second call does nothing."""
        release, self.release = self.release, None
        if release:
            release()

    def become(self, link: Pump, cell_id: str, pipes: dict[int, Stream | None]) -> None:
        """Turn into a new cell, launched by exec, in place of one whose program did not begin."""
        self._link, self.id, self.start, self.is_over = link, cell_id, "exec", False
        self.pipes, self.frames, self.future = dict(pipes), FrameReader(), Future()
        self._asked[_FIRST] = self.listening

    def kill_again(self) -> None:
        """Kill the new cell if the earlier one was killed."""
        if self._killed:
            self.kill(self._killed)

    # -- called by its link

    def take_ways_in(self, sink: Any) -> tuple[int, int, int]:
        """Hand over the order, standard input and program descriptors of a waiting cell. From now on its output goes to
        ``sink``."""
        ways_in = self.order, self.stdin, self.program
        self.order = self.stdin = self.program = -1
        self.sink = sink
        return ways_in

    def close_ways_in(self) -> None:
        """Close the descriptors of a waiting cell."""
        ways_in = self.order, self.stdin, self.program
        self.order = self.stdin = self.program = -1  # first, because a child forked meanwhile closes these
        close_all(fd for fd in ways_in if fd >= 0)

    def hear(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Handle a message of the supervisor and take over ``fds``. Returns False if no caller waits for it."""
        return message["op"] == "listening" and self.take_listeners(message, fds)

    def take_listeners(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Take over requested sockets. Returns False if no caller waits for them."""
        code = message["errno"]
        if not code and len(fds) != message["count"]:
            close_all(fds)
            fds.clear()
            code = errno.EMFILE
        return self._take_answer(("listening", message["number"]), fds, code)

    def end(self) -> None:
        """Read the rest of its output. It has ended, or was never made."""
        self.close_ways_in()
        if self.sink is None:
            close_all(list(self.pipes))
            return
        if self.pipes and next(iter(self.pipes)) not in self._link.readers:
            self.watch()  # it ended before it was watched
        self.drain()

    def report_end(self, message: dict[str, Any], fds: list[int]) -> None:
        """Complete ``future`` with the supervisor's ``message`` and ``fds``."""
        is_missed = message["op"] != "ended" and self._has_not_begun(message["stage"])
        if is_missed:
            self._asked.pop(_FIRST, None)  # the next cell provides them
        self._end_asked()
        if message["op"] == "ended":
            self.future.set_result(CellEnding(**message["ending"], tree_fd=fds[0]))
            return
        close_all(fds)
        if is_missed:
            self.start_reason = f"{GONE}: {message['detail']}"
            self.future.set_result(None)
        else:
            self.future.set_exception(why_unlaunched(message["stage"], message["errno"], message["detail"]))

    def _has_not_begun(self, stage: str) -> bool:
        """Whether another cell can run it: it was ready, its program has not begun, and it handed out no listeners."""
        return self.start != "exec" and stage in NOT_BEGUN and not self.listening.done()

    def lose(self, error: CasemateError) -> None:
        """Fail everything: the supervisor has ended, or the cell was never made."""
        self.is_over = True
        close_all(list(self.pipes))
        self.close_ways_in()
        self._end_asked()
        self.future.set_exception(error)

    # -- in the pump thread

    def watch(self) -> None:
        """Read its pipes from now on."""
        for fd in self.pipes:
            if fd not in self._link.readers:
                self._link.readers[fd] = self
                if self.rests:
                    self.paused[fd] = None
                else:
                    self._link.poll.register(fd, select.POLLIN)

    def resume_reading(self) -> None:
        """Resume reading its paused pipes, unless it rests."""
        if not self.rests:
            for fd in self.paused:
                self._link.poll.register(fd, select.POLLIN)
            self.paused.clear()

    def end_rest(self) -> None:
        """Resume reading after a rest."""
        self.rests = False
        self.resume_reading()
        self._settle(time.thread_time())

    def read(self, fd: int) -> None:
        """Read its pipe ``fd``, which has data."""
        if fd in self.paused:
            return  # it was paused during this turn
        data = what_is_in(fd, self.read_size)
        if not data:
            if data is not None:
                self.close_pipe(fd)
            return
        began = time.thread_time()
        self._take_in(fd, data)
        is_slow = time.thread_time() - began > _LONG * self.read_size / PIPE
        if not is_slow and len(data) == self.read_size < PIPE // 2:  # more is only for cells that were never slow
            self.read_size *= 2
        self._settle(began, fd, is_slow=is_slow)
        if fd in self.pipes and self._is_full(self.pipes[fd]):
            self._pause_reading([fd])

    def _take_in(self, fd: int, data: bytes) -> None:
        self.deliver(fd, data)

    def _settle(self, began: float, fd: int = -1, *, is_slow: bool = False) -> None:
        """Deliver frames that wait for text, and rest if work since ``began`` took long; ``fd`` was read."""
        if not self.rests:
            self._settle_text()
        took = time.thread_time() - began
        is_slow = is_slow or took > _LONG
        if is_slow and self.read_size < PIPE:  # the first slow read may only have loaded modules
            self._rest(fd, took)
        elif self.unsettled and not self.rests and not self.will_settle:
            self.will_settle = True
            self._link.call(self._settle_on)
        if is_slow:
            self.read_size = _PIECE

    def _settle_on(self) -> None:
        self.will_settle = False
        self._settle(time.thread_time())

    def _settle_text(self) -> None:
        """Deliver frames that wait for text. A run has none."""

    def _rest(self, fd: int, took: float) -> None:
        """Read none of its pipes for a while, and then ``fd`` last."""
        if fd in self.pipes:
            self.pipes[fd] = self.pipes.pop(fd)
        self._pause_reading(list(self.pipes))
        self.rests = True
        self._link.wake_later(self, time.monotonic() + _REST * took)

    def _pause_reading(self, fds: list[int]) -> None:
        """Stop reading these pipes until `read_on`."""
        for fd in fds:
            if fd in self._link.readers and fd not in self.paused:
                self._link.poll.unregister(fd)
                self.paused[fd] = None

    def _is_full(self, _place: Stream | StepPipe | None) -> bool:
        """Whether its sink takes no more from such a pipe now."""
        return self.sink is not None and self.sink.is_full()

    def deliver(self, fd: int, data: bytes) -> None:
        """Pass on the data of a pipe."""
        try:
            self._hand_on(self.pipes[fd], data)
        except FrameError:
            self.close_pipe(fd)
        except Exception:  # noqa: BLE001 - one cell's data must not stop the pump of the others
            self.close_pipe(fd)
            self._link.call(self.kill, "killed")

    def _hand_on(self, place: Stream | StepPipe | None, data: bytes) -> None:
        if place is not None:
            self.sink.output(place, data)
            return
        for frame in self.frames.feed(data):
            self.sink.frame(frame)

    def close_pipe(self, fd: int) -> None:
        """Stop reading a pipe, and close it."""
        if fd not in self.paused:
            self._link.poll.unregister(fd)
        self.paused.pop(fd, None)
        del self.pipes[fd]
        del self._link.readers[fd]
        os.close(fd)

    def _read_now(self, then: Callable[[], object]) -> None:
        """Deliver all output so far, except what is paused, and call ``then``."""
        for fd in [fd for fd in self.pipes if fd in self._link.readers and fd not in self.paused]:
            self._read_out(fd)
        then()

    def drain(self) -> None:
        """Read the rest of its pipes, now that it is dead, and close them."""
        for fd in list(self.pipes):
            self._read_out(fd)
            if fd in self.pipes:
                self.close_pipe(fd)

    def _read_out(self, fd: int, most: int = ALL) -> None:
        """Read up to ``most`` bytes that a pipe holds now."""
        data = what_is_in(fd, most)
        if data:
            self.deliver(fd, data)
        elif data is not None:
            self.close_pipe(fd)


async def outcome(future: Future[T]) -> T:
    """Await ``future``. Cancelling stops only the waiting; a later result is dropped."""
    import asyncio

    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_retrieve_exception)
    return await asyncio.shield(waiting)


def _retrieve_exception(waiting: asyncio.Future[T]) -> None:
    """Keep asyncio from logging an exception that no caller retrieves, because the waiting was cancelled."""
    if not waiting.cancelled():
        waiting.exception()
