"""A cell behind a link, as the rest of the wall sees it."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from casemate.errors import CasemateError, Fault
from casemate.walls.native.descriptors import close_all
from casemate.walls.wall import SessionSink, Sink, Stream

if TYPE_CHECKING:
    import asyncio

    from casemate.model.plan import CellSocket
    from casemate.walls.wall import Ending, StepUsage

MAX_FRAME = 16 << 20  # bytes; a large picture in base64
_HEADER = 4


class FrameError(ValueError):
    """The cell sent something that is no frame; nothing after it can be understood."""


class FrameReader:
    """Takes bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by ``data``. Raises :class:`FrameError`."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER:
            length = int.from_bytes(self._buffer[:_HEADER], "big")
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes")
            if len(self._buffer) < _HEADER + length:
                break
            frames.append(bytes(self._buffer[_HEADER : _HEADER + length]))
            del self._buffer[: _HEADER + length]
        return frames


T = TypeVar("T")


class CellLink(Protocol):
    """What a cell needs of the link to its supervisor."""

    @property
    def sessions(self) -> RequestWriter:
        """Where requests to interpreters are written."""
        ...

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send the supervisor a message."""
        ...

    def call(self, function: Any, *arguments: Any) -> None:
        """Have the pump thread call ``function``."""
        ...

    def read_on(self, cell: RunningCell) -> None:
        """Read on where the sink was full."""
        ...


class RequestWriter(Protocol):
    """Sends requests to sessions' interpreters."""

    def write(self, cell: RunningSession, data: bytes) -> None:
        """Send ``data``."""
        ...


_numbers = itertools.count(1)  # of what is asked of the supervisor for a cell


class StepPipe(NamedTuple):
    """One of the two pipes that a step of a session has of its own."""

    step: int
    stream: Stream


class RunningCell:
    """A cell behind a link.

    Without a ``sink`` it waits for its program; ``order`` and ``stdin`` then lead to its process.
    """

    def __init__(self, link: CellLink, cell_id: str, sink: Sink | None, pipes: dict[int, Stream | None]) -> None:
        self.id = cell_id
        self.sink = sink
        self.order = self.stdin = -1
        self.is_over = False
        self.pipes: dict[int, Stream | StepPipe | None] = dict(pipes)  # by descriptor; None is the control pipe
        self.paused: set[int] = set()
        self.frames = FrameReader()
        self.future: Future[Ending] = Future()
        self.listening: Future[list[int]] = Future()
        self._sockets: dict[int, Future[list[int]]] = {0: self.listening}  # asked for, by number
        self._link = link

    def kill(self, reason: str) -> None:
        self._link.send({"op": "kill", "id": self.id, "reason": reason})

    def read_on(self) -> None:
        self._link.call(self._link.read_on, self)

    def signal(self, number: int) -> None:
        self._say("signal", number=number)

    def pause(self) -> None:
        self._say("pause")

    def resume(self) -> None:
        self._say("resume")

    def _say(self, what: str, **more: Any) -> None:
        self._link.send({"op": what, "id": self.id, **more})

    def listen(self, sockets: Sequence[CellSocket]) -> Future[list[int]]:
        """Have more sockets in its network."""
        number, asked = next(_numbers), Future[list[int]]()
        asked.set_running_or_notify_cancel()
        self._sockets[number] = asked
        wanted = [list(socket) for socket in sockets]
        if self.is_over:
            self.end_listening()
        self._link.send({"op": "listen", "id": self.id, "number": number, "listeners": wanted})
        return asked

    def take_listeners(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Take over sockets that were asked for; False when nobody waits for them any more."""
        asked = self._sockets.pop(message["number"], None)
        if not message["errno"] and len(fds) != message["count"]:
            close_all(fds)
            message, fds = {**message, "errno": errno.EMFILE}, []
        if asked is None or (asked is self.listening and not asked.set_running_or_notify_cancel()):
            return False
        if message["errno"]:
            asked.set_exception(OSError(message["errno"], os.strerror(message["errno"])))
        else:
            asked.set_result(fds)
        return True

    def end_listening(self) -> None:
        """No more sockets come."""
        for number in list(self._sockets):
            asked = self._sockets.pop(number, None)  # another thread may do the same
            if asked is not None and not asked.cancel():
                asked.set_exception(OSError(errno.ESRCH, "the cell has ended"))

    def discard(self) -> None:
        """End a cell that waits and will not be used."""
        self.kill("closed")

    def close_ways_in(self) -> None:
        """Close what only a cell that waits has."""
        for fd in (self.order, self.stdin):
            if fd >= 0:
                os.close(fd)
        self.order = self.stdin = -1

    def lose(self, error: CasemateError) -> None:
        """It is gone with its supervisor, or never was."""
        self.is_over = True
        close_all(list(self.pipes))
        self.close_ways_in()
        self.end_listening()
        self.future.set_exception(error)

    async def wait(self) -> Ending:
        return await outcome(self.future)


class RunningSession(RunningCell):
    """A session's cell behind a link: ``requests`` leads to its interpreter once it is open."""

    def __init__(
        self,
        link: CellLink,
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
        self.files: Future[tuple[int, int]] = Future()
        self.paused_files: Future[bool] | None = None
        self.resumed_files: Future[bool] | None = None
        self._shown: dict[int, Future[None]] = {}  # folders that are to be shown, by number
        self.is_gone = False

    def send(self, request: bytes) -> None:
        self._link.sessions.write(self, request)

    def prepare_step(self, step: int) -> None:
        self._say("pipes", step=step)

    def begin_step(self, step: int, seconds: float, grace: float, repeat: float) -> None:
        self._say("step", step=step, seconds=seconds, grace=grace, repeat=repeat)

    def end_step(self, step: int) -> None:
        """Ask what was used up to the end of ``step``."""
        self._say("step over", step=step)

    def interrupt(self, grace: float) -> None:
        self._say("interrupt", grace=grace)

    async def pause_files(self) -> bool:
        self.paused_files = paused_files = Future[bool]()
        if self.is_gone:  # asked after `paused_files` is there: whoever sets it looks at that afterwards
            raise Fault("the session's cell has ended")
        self._say("pause files")
        return await outcome(paused_files)

    def resume_files(self) -> None:
        self.resumed_files = Future()
        self._say("resume files")

    async def stayed_paused(self) -> bool:
        resumed_files = self.resumed_files
        if resumed_files is None or self.is_gone:
            raise Fault("the session's cell has ended")
        return await outcome(resumed_files)

    def show(self, source: str, target: str) -> Future[None]:
        """Show a folder of the host in it."""
        number, asked = next(_numbers), Future[None]()
        asked.set_running_or_notify_cancel()
        self._shown[number] = asked
        if self.is_gone:  # after it is there: whoever gives up looks at it afterwards
            self._end_showing()
        self._say("show", number=number, source=source, target=target)
        return asked

    def take_shown(self, number: int, code: int) -> None:
        """The supervisor has shown a folder, or tells with an errno why it could not."""
        asked = self._shown.pop(number, None)
        if asked is not None and code:
            asked.set_exception(OSError(code, os.strerror(code)))
        elif asked is not None:
            asked.set_result(None)

    def _end_showing(self) -> None:
        for number in list(self._shown):
            self.take_shown(number, errno.ESRCH)

    async def open_folders(self) -> tuple[int, int]:
        return await outcome(self.files)

    def forget(self) -> None:
        self._say("forget")

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


def usage_of(message: dict[str, Any]) -> StepUsage:
    """What was used up to the end of a step, as the supervisor tells it."""
    from casemate.walls.wall import StepUsage

    return StepUsage(
        cpu_seconds=message["cpu"],
        peak_memory=message["peak"],
        tasks=message["tasks"],
        memory_left=message["memory_left"],
        tasks_left=message["tasks_left"],
        space_left=message["space_left"],
        inodes_left=message["inodes_left"],
        interrupted=message["interrupted"],
    )


def ending_of(message: dict[str, Any], tree_fd: int) -> Ending:
    """How a cell ended, as the supervisor tells it."""
    from casemate.walls.wall import Ending  # it loads while a cell runs, not before one starts

    return Ending(
        wait_status=message["main"],
        reason=message["reason"],
        seconds=message["seconds"],
        cpu_seconds=message["cpu"],
        peak_memory=message["peak"],
        tasks=message["tasks"],
        oom=message["oom"],
        space_left=message["space_left"],
        inodes_left=message["inodes_left"],
        tree_fd=tree_fd,
    )


def open_requests(fds: dict[str, int]) -> int:
    """A fresh pipe for requests to a session's interpreter: its end is put into ``fds``, ours is given.

    Raises ``OSError``, and then closes all of ``fds``.
    """
    try:
        fds["order"], requests = os.pipe2(os.O_CLOEXEC)
    except OSError:
        close_all([*fds.values()])
        raise
    os.set_blocking(requests, False)  # an interpreter that does not read must not hold us up
    return requests


def open_ways_in(fds: dict[str, int]) -> tuple[int, int]:
    """The standard input and the order of a cell that waits: its ends are put into ``fds``, ours are given.

    Raises ``OSError``, and then closes all of ``fds``.
    """
    ours: list[int] = []
    try:
        ours.append(os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fds["stdin"] = os.open(f"/proc/self/fd/{ours[0]}", os.O_RDONLY | os.O_CLOEXEC)
        fds["order"], order = os.pipe2(os.O_CLOEXEC)
    except OSError:
        close_all([*fds.values(), *ours])
        raise
    os.set_blocking(order, False)  # a cell that does not read must not hold the supervisor up
    return ours[0], order


def open_pipes(fds: dict[str, int], *others: int) -> dict[int, Stream | None]:
    """Fresh pipes for what a cell says: their ends for it are put into ``fds``, unless it has some of another's there;
    ours are given, by descriptor.

    Raises ``OSError``, and then closes all of ``fds`` and the ``others``.
    """
    pipes: dict[int, Stream | None] = {}
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    try:
        for name in (*streams, "control"):
            if name in fds:
                continue
            read, fds[name] = os.pipe()
            os.set_blocking(read, False)
            pipes[read] = next((stream for stream in streams if stream == name), None)
    except OSError:
        close_all([*fds.values(), *pipes, *others])
        raise
    return pipes
