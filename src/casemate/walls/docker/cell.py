"""One cell of a bridge: carries everything between the link and the cell's container."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.supervisor import carriage, wire
from casemate.supervisor.jobs import Jobs
from casemate.supervisor.readiness import Poller
from casemate.walls.docker import addresses
from casemate.walls.docker.containers import Container, Size, new_file
from casemate.walls.docker.listeners import CarriedListeners
from casemate.walls.docker.messages import check_message
from casemate.walls.docker.mirrors import Mirror, ShownFolder
from casemate.walls.native.descriptors import close_all, closed_on_error

if TYPE_CHECKING:
    from collections.abc import Mapping

_LATE = 5.0  # seconds that a supervisor may be late before its container is ended
_SOON = 1.0  # seconds; a delayed message waits for at most half of that
_NEVER = float("inf")
_MOST_PIPE = 1 << 20  # bytes that an ordinary user's pipe can hold (pipe(7))
_ANSWERS = 4  # messages that a supervisor may send per message it gets; one with files counts as four
_RECORDS = 1 << 22  # bytes of records without file contents
_WITH_FILES = ("launch", "begin", "step", "show")  # messages that may come with files


class CellHost(Poller):
    """The interface of `bridge.Bridge` for its cells."""

    jobs: Jobs

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send the link a message, which takes ``fds`` over."""

    def refuse(self, cell: CarriedCell, stage: str, number: int, detail: str) -> None:
        """Report that the cell cannot be made."""

    def lose(self, cell: CarriedCell, reason: str) -> None:
        """End a cell whose container has ended or must end."""

    def end_cell(self, cell: CarriedCell, ending: dict[str, Any]) -> None:
        """Report the cell's end to the link."""

    def flush_later(self, cell: CarriedCell) -> None:
        """Flush the cell's stream in the next turn."""


class CarriedCell:
    """A cell from its launch request on. ``container`` is None until one of its ``size`` is ready."""

    def __init__(
        self,
        bridge: CellHost,
        folder: Path,
        request: dict[str, Any],
        folders: Mapping[str, str],
        earlier: CarriedCell | None,
    ) -> None:
        """``folder``: for its files. ``folders``: host folders that it sees, by path in the cell. ``earlier``: the
        session's previous cell, whose container and files it takes."""
        self.id: str = request["id"]
        self.is_of_session: bool = request["session"]
        self.size = Size.of(request)
        self._bridge, self._request = bridge, request
        self.container: Container | None = earlier.container if earlier else None
        self._earlier = earlier
        self._folders = folders
        self._continues = self.container is not None  # else a new container gets all files
        self._shown: dict[str, ShownFolder] = earlier._shown if earlier and self._continues else {}
        self.mirror: Mirror = (
            earlier.mirror if earlier else Mirror(folder, self.id, request["workspace"], request["limits"])
        )
        self._channels: carriage.Channels
        self._held: list[Iterator[bytes]] | None = None  # frames that follow a step's files, which a thread reads
        self._outputs: list[carriage.CarriedPipe] = []  # pipes to the link; the last is the control pipe
        self._queue: list[tuple[dict[str, Any], dict[str, int]]] = []
        self._stdin = -1  # of a waiting cell: the file of its standard input
        self._ended: tuple[dict[str, Any], list[tuple[str, int]]] | None = None
        self._listeners = CarriedListeners(self._send, bridge, self._carry)
        self._deadline, self._paused_at = _NEVER, 0.0
        self.is_waiting: bool = request["awaits_order"]  # a ready cell without a program
        self._began = time.monotonic()
        self._reason = ""
        self._answers = 2 * _ANSWERS  # messages that its supervisor may still send
        self._is_over = self._is_left = False
        self._is_read = False  # the host reads its paused files, which must not change
        self._step_over, self._step_until = 0, 0.0  # the last finished step, and the deadline of the newest step

    # -- its container

    def begin(self, fds: dict[str, int]) -> bool:
        """Take the descriptors of its launch. Returns False if the launch is refused."""
        if self._request["workspace"]["kind"] == "direct":
            close_all(fds.values())
            self._bridge.refuse(self, "workspace", 0, "a container cannot write directly to a folder of this machine")
            return False
        if self.is_waiting:
            self._stdin = os.dup(fds["stdin"])
        self._queue.append((self._request, fds))
        earlier, self._earlier = self._earlier, None
        if self.container is not None and earlier is not None:
            self._channels, earlier.container = earlier._channels, None
            self._channels.send = self._send
            self._follow()
        return True

    def enter(self, container: Container) -> None:
        """Begin in this container."""
        self.container = container
        most = self._request["limits"]["disk"] + _RECORDS
        self._channels = carriage.Channels(self._send, self._bridge, 1, new_file, most)
        self._send(_message({"op": "root", "key": self._request["root"], "entries": [], "fds": []}, []))
        self._follow()

    def _follow(self) -> None:
        self.flush()
        queue, self._queue = self._queue, []
        for message, fds in queue:
            self.tell(message, fds)

    def let_go(self) -> Container | None:
        """Stop using its container, and return it."""
        container, self.container = self.container, None
        if container is not None:
            if (fd := container.socket.fileno()) >= 0:  # a thread that removes the container may have closed it
                self._bridge.set_interest(fd, 0)
            self._channels.close_all()
            self._deadline = _NEVER
        return container

    def leave(self) -> Container | None:
        """Release its descriptors and files. Returns its container."""
        container, self._is_left = self.let_go(), True
        for _, fds in self._queue:
            close_all(fds.values())
        self._queue = []
        self._listeners.close()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        self.mirror.close()
        return container

    def _work(
        self,
        do: Callable[[], object],
        then: Callable[[], object],
        else_do: Callable[[Exception], object] | None = None,
        fds: Iterable[int] = (),
    ) -> None:
        """Do work that may touch many files in a thread; see `Jobs.run`. Everything else for the cell waits for it."""
        self._bridge.jobs.run(self.id, do, then, else_do, fds)
        self._bridge.jobs.when_free(self.id, self.flush)
        self.flush()

    # -- from the link

    def tell(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Pass a message from the link to the cell's supervisor."""
        if message["op"] == "kill" and (self.container is None or self._is_busy):
            self._reason = message["reason"]
            self._bridge.lose(self, message["reason"])
        else:
            self._held = [] if message["op"] == "step" else self._held
            self._bridge.jobs.when_free(self.id, lambda: self._tell(message, fds))

    def _tell(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        if self._is_left:
            close_all(fds.values())
        elif self.container is None:
            self._queue.append((message, fds))
        elif message["op"] in _WITH_FILES:
            self._work(
                lambda: self._add_records(message, fds),
                lambda: self._pass_on(message, fds),
                lambda error: self._give_up(error, fds),
            )
        else:
            self._pass_on(message, fds)

    def _give_up(self, error: Exception, fds: dict[str, int]) -> None:
        close_all(fds.values())
        self._bridge.refuse(self, "workspace", getattr(error, "errno", 0) or 0, str(error))

    def _pass_on(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        if self.container is None:  # lost meanwhile
            close_all(fds.values())
            return
        is_known = message["op"] == "step over" and message["step"] == self._step_over
        self._answers += _ANSWERS
        self._listeners.most += len(message.get("listeners", ()))
        waits = is_known and self._step_until - time.monotonic() > _SOON  # it is sent with the next step
        self._note_time(message)
        self._send_frames(self._frames_of(message, fds), waits=waits)
        if message["op"] == "step":
            held, self._held = self._held or [], None
            self._send_frames(held)

    def _add_records(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Add the files that the container needs with this message. Raises ``OSError`` and ``RecordsError``."""
        own, op = self._request["workspace"], message["op"]
        begins = op == "begin" or (op == "launch" and not self.is_waiting)

        def add(name: str, records: int | None) -> None:
            if records is not None:
                fds[name] = records

        if begins and self._request["continues"] and not self._continues:
            add("folder", self.mirror.whole())
        elif begins and own["kind"] == "overlay" and not self._request["continues"]:
            add("folder", self.mirror.copy_folder(own["folder"], own["hidden"], own["inode"]))
        if op == "step":
            add("tree", self.mirror.changes())
        shown = {**self._folders} if op in ("launch", "begin") else {}
        if op == "show":
            shown = {message["target"]: message["source"]}
        for place, source in shown.items():
            add(place, self._shown.setdefault(place, ShownFolder()).changes(source))

    def _frames_of(self, message: dict[str, Any], fds: dict[str, int]) -> list[Iterator[bytes]]:
        """Return the frames of a message and of its descriptors."""
        if message.get("listeners"):
            message = {**message, "listeners": [[kind, addresses.to_container(address), port]
                                                for kind, address, port in message["listeners"]]}  # fmt: skip
        if message["op"] == "launch":
            links = [entry for entry in message["own_entries"] if entry["kind"] == "link"]
            message = {**message, "own_entries": links, "shown": []}
        if message["op"] == "begin":
            fds["stdin"], self._stdin = self._stdin, -1
            os.close(fds.pop("order"))  # a copy; the link keeps its own
        if message["op"] == "resume files":
            self._is_read = False
        if message["op"] == "show":
            message = {**message, "source": ""}
        return [*self._contents(message, fds)]

    def _contents(self, message: dict[str, Any], fds: dict[str, int]) -> Iterator[Iterator[bytes]]:
        channels: list[list[Any]] = []
        text: list[carriage.CarriedPipe] = []
        for name, fd in fds.items():
            number, kind = self._channels.new_number(), _kind_of(fd)
            channels.append([kind, number])
            if kind == "content":
                frames = _content(number, fd)
                yield chain([next(frames)], frames)  # started, so that it closes ``fd`` even if it is never read
                continue
            before = tuple(text) if name == "control" else ()
            channel = self._channels.add(
                number, _own(fd, kind), reads=kind != "write", writes=kind != "read", before=before
            )
            if name in ("stdout", "stderr"):
                text.append(channel)
            if name in ("stdout", "stderr", "control"):
                self._outputs.append(channel)
        yield iter((_message({**message, "fds": list(fds)}, channels),))

    def _note_time(self, message: dict[str, Any]) -> None:
        """Keep the host's own deadline, in case the clock in the container is not kept."""
        now, op = time.monotonic(), message["op"]
        if op == "begin" or (op == "launch" and not self.is_waiting):
            self.is_waiting, self._began = False, now
            self._deadline = now + message["deadline"] + _LATE
        elif op == "step":
            self._step_until = now + message["seconds"]
            self._deadline = self._step_until + message["grace"] + _LATE
        elif op == "step over":
            self._deadline = _NEVER
        elif op == "interrupt" and self._deadline < _NEVER:
            self._deadline, self._paused_at = min(self._deadline, now + message["grace"] + _LATE), 0.0
        elif op == "kill":
            self._reason = self._reason or message["reason"]
            self._deadline, self._paused_at = now + _LATE, 0.0
        elif op == "pause" and not self._paused_at:
            self._paused_at = now
        elif op == "resume" and self._paused_at:
            self._deadline, self._paused_at = self._deadline + now - self._paused_at, 0.0

    def is_overdue(self, now: float) -> bool:
        """Whether it has missed its deadline."""
        return not self._paused_at and not self._is_busy and now > self._deadline

    @property
    def _is_busy(self) -> bool:
        return self.id in self._bridge.jobs.waiting

    def lost_ending(self, reason: str) -> dict[str, Any] | None:
        """Describe its end as far as the host knows it. Returns None if its program never began."""
        if self.is_waiting:
            return None
        return {
            "wait_status": None, "reason": self._reason or reason, "seconds": time.monotonic() - self._began,
            "cpu_seconds": 0.0, "tasks": 0, "begun": 0, "peak_memory": 0, "oom": False, "space_left": 0,
            "inodes_left": 0,
        }  # fmt: skip

    # -- from the container

    def _serve(self) -> None:
        """Read from and write to its stream."""
        container = self.container
        if container is None:
            return
        try:
            for each in container.read() if self._hears(container) else ():
                self._bridge.jobs.when_free(self.id, partial(self._take_from, container, *each))
                if self.container is not container:
                    return
        except Exception:  # noqa: BLE001 - the stream ended or is malformed: end this cell, and no other
            self._bridge.lose(self, "killed")
            return
        self.flush()

    def _hears(self, container: Container) -> bool:
        """Whether to read more: not before its last message is handled, nor while it does not read its own stream."""
        return not self._is_busy and not container.is_full

    def _take_from(self, container: Container, kind: bytes, number: int, payload: bytes) -> None:
        if self.container is not container:
            return
        if kind == carriage.MESSAGE:
            self._hear(*check_message(payload, self.id))
        elif kind == carriage.ACCEPTED:
            self._listeners.accept(number, payload)
        elif kind == carriage.DATA and number in self._listeners:
            self._listeners.ask(number, payload)
        else:
            self._channels.take(kind, number, payload)

    def _hear(self, message: dict[str, Any], channels: list[tuple[str, int]]) -> None:
        """Handle a well-formed message of its supervisor. Raises ``ValueError`` and ``OSError``."""
        op = message["op"]
        self._bound_figures(message.get("ending") or message.get("usage") or {})
        self._answers -= _ANSWERS if op in ("ended", "step over", "files paused") and channels else 1
        if self._answers < 0 or self._is_over or self._ended:
            raise ValueError("an unexpected answer")
        if op == "ended":
            self._ended = message, channels
            self.hand_on_end()
            return
        if op == "launch refused":
            self._bridge.refuse(self, message["stage"], message["errno"], message["detail"])
            return
        if op == "step over":
            self._step_over = message["step"]
        fds: list[int] = []

        def pass_on() -> None:
            self._bridge.send(message, fds)
            if op == "files paused":
                self._is_read = message["complete"]

        if op == "session files":
            fds = [self.mirror.open_workspace(), os.dup(self.mirror.fd)]
        elif op == "listening":
            if len(channels) != message["count"] or (message["errno"] and channels):
                raise ValueError("the wrong number of sockets")
            fds = _for_each(self._listeners.listen, channels)
        elif op == "pipes":
            fds = _for_each(self._open_pipe, channels)
        else:
            self._take_changes(channels, pass_on)
            return
        pass_on()

    def _bound_figures(self, figures: dict[str, Any]) -> None:
        """Clamp the supervisor's figures to what the cell can have used at most."""
        longest = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        for name, most in (("cpu_seconds", longest), ("peak_memory", self.size.whole_memory)):
            if name in figures:
                figures[name] = max(0, min(figures[name], most))

    def hand_on_end(self) -> None:
        """Report the cell's end once all of its output is in the link's pipes."""
        if self._ended is None:
            return
        for channel in [one for one in self._outputs if one.is_open and one.unsent]:
            with contextlib.suppress(OSError):  # the rest waits until the link has read
                fcntl.fcntl(channel.fd, fcntl.F_SETPIPE_SZ, _MOST_PIPE)
            self._channels.write_out(channel)
        if any(one.is_open and one.unsent for one in self._outputs):
            return
        (message, channels), self._ended = self._ended, None
        self._deadline, self._is_over = _NEVER, True
        self._bridge.jobs.when_free(self.id, lambda: self._take_changes(channels, lambda: self._hand_on(message)))

    def _hand_on(self, message: dict[str, Any]) -> None:
        self._outputs = []
        self._bridge.end_cell(self, message["ending"])

    def _take_changes(self, channels: list[tuple[str, int]], then: Callable[[], object]) -> None:
        """Apply the changed files that the container sent, then call ``then``."""
        if not channels:
            then()
            return
        if self._is_read:
            raise ValueError("files changed while the cell was paused")
        records = _for_each(self._channels.take_content, channels)

        def take() -> None:
            for each in records:
                self.mirror.take(each)

        self._work(take, then, fds=records)

    def _carry(self, number: int, connection: int) -> None:
        self._channels.add(number, connection, reads=True, writes=True)

    def _open_pipe(self, number: int) -> int:
        """Open one of a step's pipes, and return the link's end."""
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with closed_on_error([read]):
            channel = self._channels.add(number, write, writes=True)
        self._outputs = [channel, *(one for one in self._outputs if one.is_open)]
        self._outputs[-1].before = tuple(self._outputs[:-1])
        return read

    # -- its stream

    def _send(self, data: bytes) -> None:
        send = self._send_frames if self._held is None else self._held.extend
        send([iter((data,))])

    def _send_frames(self, frames: list[Iterator[bytes]], *, waits: bool = False) -> None:
        """Queue frames and flush soon; with ``waits``, they go with the next message."""
        if self.container is not None:
            for each in frames:
                self.container.send(each)
            if not waits:
                self._bridge.flush_later(self)

    def flush(self) -> None:
        """Send as much as possible, and continue when there is room."""
        if self.container is not None:
            events = select.POLLOUT if self.container.flush() else 0
            events |= select.POLLIN if self._hears(self.container) else 0
            self._bridge.set_interest(self.container.socket.fileno(), events, self._serve)


def _for_each(open_one: Callable[[int], int], channels: list[tuple[str, int]]) -> list[int]:
    fds: list[int] = []
    with closed_on_error(fds):
        for _, number in channels:
            fds.append(open_one(number))
    return fds


def _message(message: dict[str, Any], channels: list[list[Any]]) -> bytes:
    return carriage.frame(carriage.MESSAGE, 0, wire.encode([message, channels]))


def _kind_of(fd: int) -> str:
    """How a descriptor is carried: by content, or as a stream to read, to write or both."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        return "both"
    if not stat.S_ISFIFO(mode):
        return "content"
    return "write" if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY else "read"


def _own(fd: int, kind: str) -> int:
    """Open the same pipe again, so that making it non-blocking does not affect its other users."""
    if kind == "both":
        return fd
    mode = os.O_WRONLY if kind == "write" else os.O_RDONLY
    opened = os.open(f"/proc/self/fd/{fd}", mode | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(fd)
    return opened


def _content(number: int, fd: int) -> Iterator[bytes]:
    try:
        size = os.fstat(fd).st_size if stat.S_ISREG(os.fstat(fd).st_mode) else 0
        yield from carriage.content_frames(number, fd, size)
    finally:
        os.close(fd)
