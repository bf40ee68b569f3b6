"""One cell of a bridge: what goes between the link and the container that it is in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.supervisor import carriage, wire
from casemate.supervisor.trees.records import RecordsError
from casemate.walls.docker import addresses
from casemate.walls.docker.containers import Container, Size, new_file
from casemate.walls.docker.mirrors import Mirror, ShownFolder
from casemate.walls.native.descriptors import close_all

if TYPE_CHECKING:
    from collections.abc import Mapping

_LATE = 5.0  # seconds that a supervisor may be late; then its container is ended
_SOON = 1.0  # seconds; what waits to be sent does so for half of it at most
_NEVER = float("inf")
_MOST_PIPE = 1 << 20  # bytes that an ordinary user's pipe can hold (pipe(7))
_MOST_ASKING = 64  # sockets of one cell that wait for names
_ANSWERS = 4  # messages of a supervisor for each that it gets, at most; one with files is as many
_RECORDS = 1 << 22  # bytes of records besides their contents


class CellHost(carriage.Poller):
    """What a cell needs of `bridge.Bridge`, which is one."""

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send the link a message; ``fds`` are given away."""

    def receive(self, cell: CarriedCell, payload: bytes) -> None:
        """A message from its container."""

    def refuse(self, cell: CarriedCell, stage: str, number: int, detail: str) -> None:
        """There will be no such cell."""

    def lose(self, cell: CarriedCell, reason: str) -> None:
        """Its container has ended, or must."""

    def over(self, cell: CarriedCell, *, keep: bool) -> None:
        """It has ended, and its link knows."""

    def flush_later(self, cell: CarriedCell) -> None:
        """Flush its stream after one more look at what else is to be sent."""


class CarriedCell:
    """From its launch request on. It has no ``container`` until there is one of its ``size``."""

    def __init__(
        self,
        bridge: CellHost,
        folder: Path,
        request: dict[str, Any],
        folders: Mapping[str, str],
        earlier: CarriedCell | None,
    ) -> None:
        """``folder``: for its files; ``folders``: of the host, that it sees, by place; ``earlier``: the session's cell
        before it, whose container and files it takes."""
        self.id: str = request["id"]
        self.size = Size.of(request)
        self._bridge, self._folder, self._request = bridge, folder, request
        self.container: Container | None = earlier.container if earlier else None
        self._earlier = earlier
        self._folders = folders
        self._shown: dict[str, ShownFolder] = earlier._shown if earlier else {}
        self.mirror: Mirror = (
            earlier.mirror if earlier else Mirror(folder, self.id, request["workspace"], request["limits"])
        )
        self._channels: carriage.Channels
        self._outputs: list[carriage.CarriedPipe] = []  # to the link; the last is the control pipe
        self._queue: list[tuple[dict[str, Any], dict[str, int]]] = []
        self._stdin = -1  # of a cell that waits: what it will read, when it has been written
        self._ended: tuple[dict[str, Any], list[tuple[str, int]]] | None = None
        self._listeners: dict[int, socket.socket] = {}
        self._asking: dict[tuple[int, bytes], socket.socket] = {}
        self._deadline, self._paused_at = _NEVER, 0.0
        self._is_waiting: bool = request["awaits_order"]
        self._began = time.monotonic()
        self._reason = ""
        self._answers = 2 * _ANSWERS  # that its supervisor may still give
        self._may_listen = 0  # sockets
        self._is_over = False
        self._is_read = False  # its files are, by somebody here, and do not change
        self._step_over, self._step_until = 0, 0.0  # the last step that is, and when it would have been interrupted

    # -- its container

    def begin(self, fds: dict[str, int]) -> bool:
        """Take the descriptors of its launch. False where it is refused."""
        if self._request["workspace"]["kind"] == "direct":
            close_all(fds.values())
            self._bridge.refuse(self, "workspace", 0, "a container cannot write a folder of this machine at once")
            return False
        if self._is_waiting:
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
        """Its container, of which it hears no more."""
        container, self.container = self.container, None
        if container is not None:
            self._bridge.set_interest(container.socket.fileno(), 0, self._serve)
            self._channels.close_all()
            self._deadline = _NEVER
        return container

    def leave(self) -> Container | None:
        """It needs its container no more, and nobody its descriptors."""
        container = self.let_go()
        for _, fds in self._queue:
            close_all(fds.values())
        self._queue = []
        for sock in self._asking.values():
            self._bridge.set_interest(sock.fileno(), 0, self._serve)
            sock.close()
        self._asking.clear()
        for sock in self._listeners.values():
            sock.close()
        self._listeners.clear()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        self.mirror.close()
        return container

    @property
    def is_urgent(self) -> bool:
        """Whether there is a program to run in it."""
        return not self._is_waiting

    def mirror_is_gone(self) -> bool:
        """Whether its files are removed, as they are when nobody reads them any more."""
        return self.mirror.remove_if_unused()

    # -- from the link

    def tell(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """The link tells the cell's supervisor something."""
        if self.container is None:
            if message["op"] == "kill":
                self._reason = message["reason"]
                self._bridge.lose(self, message["reason"])
            else:
                self._queue.append((message, fds))
            return
        is_known = message["op"] == "step over" and message["step"] == self._step_over
        self._answers += _ANSWERS
        self._may_listen += len(message.get("listeners", ()))
        waits = is_known and self._step_until - time.monotonic() > _SOON  # it goes with the next step
        self._note_time(message)
        try:
            self._send_frames(self._frames_of(message, fds), waits=waits)
        except (OSError, RecordsError) as error:
            self._bridge.refuse(self, "workspace", getattr(error, "errno", 0) or 0, str(error))

    def _frames_of(self, message: dict[str, Any], fds: dict[str, int]) -> list[Iterator[bytes]]:
        """The frames of a message, with what else its receiver must have."""
        own = self._request["workspace"]
        if message.get("listeners"):
            message = {**message, "listeners": [[kind, addresses.to_container(address), port]
                                                for kind, address, port in message["listeners"]]}  # fmt: skip
        if message["op"] == "launch":
            links = [entry for entry in message["own_entries"] if entry["kind"] == "link"]
            message = {**message, "own_entries": links, "shown": []}
        if message["op"] == "begin":
            fds["stdin"], self._stdin = self._stdin, -1
            os.close(fds.pop("order"))  # it is the link's, which has it open
        begins = message["op"] == "begin" or (message["op"] == "launch" and not self._is_waiting)
        if begins and own["kind"] == "overlay" and not self._request["continues"]:
            try:
                records = self.mirror.copy_folder(own["folder"], own["hidden"], own["inode"])
            except BaseException:
                close_all(fds.values())
                raise
            fds |= {} if records is None else {"folder": records}
        if message["op"] == "resume files":
            self._is_read = False
        if message["op"] == "step" and (changes := self.mirror.changes()) is not None:
            fds["tree"] = changes
        shown = {**self._folders} if message["op"] in ("launch", "begin") else {}
        if message["op"] == "show":
            shown = {message["target"]: message["source"]}
            message = {**message, "source": ""}
        for place, source in shown.items():
            records = self._shown.setdefault(place, ShownFolder()).changes(source)
            if records is not None:
                fds[place] = records
        return [*self._contents(message, fds)]

    def _contents(self, message: dict[str, Any], fds: dict[str, int]) -> Iterator[Iterator[bytes]]:
        channels: list[list[Any]] = []
        text: list[carriage.CarriedPipe] = []
        for name, fd in fds.items():
            number, kind = self._channels.new_number(), _kind_of(fd)
            channels.append([kind, number])
            if kind == "content":
                yield _content(number, fd)
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
        """Its own clocks are in the container; these are for one that does not keep them."""
        now, op = time.monotonic(), message["op"]
        if op == "begin" or (op == "launch" and not self._is_waiting):
            self._is_waiting, self._began = False, now
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
        """Whether it should have ended long ago."""
        return not self._paused_at and now > self._deadline

    def lost_ending(self, reason: str) -> dict[str, Any] | None:
        """How it ended, as far as that is known here; None for one whose program never began."""
        if self._request["awaits_order"] and self._is_waiting:
            return None
        return {
            "wait_status": None, "reason": self._reason or reason, "seconds": time.monotonic() - self._began,
            "cpu_seconds": 0.0, "tasks": 0, "begun": 0, "peak_memory": 0, "oom": False, "space_left": 0,
            "inodes_left": 0,
        }  # fmt: skip

    # -- from the container

    def _serve(self) -> None:
        """Its stream is ready for something."""
        container = self.container
        if container is None:
            return
        try:
            for kind, number, payload in container.read():
                self._take(kind, number, payload)
                if self.container is not container:
                    return
        except Exception:  # noqa: BLE001 - it is gone, or nothing that it says is believed: this cell ends, and no other
            self._bridge.lose(self, "killed")
            return
        self.flush()

    def _take(self, kind: bytes, number: int, payload: bytes) -> None:
        if kind == carriage.MESSAGE:
            self._bridge.receive(self, payload)
        elif kind == carriage.ACCEPTED:
            self._accept(number, payload)
        elif kind == carriage.DATA and number in self._listeners:
            self._ask(number, payload)
        else:
            self._channels.take(kind, number, payload)

    def hear(self, message: dict[str, Any], channels: list[tuple[str, int]]) -> None:
        """What its supervisor says, which is well formed. Raises ``ValueError`` and ``OSError``."""
        op = message["op"]
        self._answers -= _ANSWERS if op in ("ended", "step over", "files paused") and channels else 1
        if self._answers < 0 or self._is_over or self._ended:
            raise ValueError("an answer without a question")
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
        if op == "session files":
            fds = [self.mirror.open_workspace(), os.dup(self.mirror.fd)]
        elif op == "listening":
            if len(channels) != message["count"] or (message["errno"] and channels):
                raise ValueError("another number of sockets")
            fds = _for_each(self._listen, channels)
        elif op == "pipes":
            fds = _for_each(self._open_pipe, channels)
        else:
            self._take_changes(channels)
        self._bridge.send(message, fds)
        if op == "files paused":
            self._is_read = message["complete"]

    def hand_on_end(self) -> None:
        """Tell the link that the cell has ended, once all that it said is where the link reads it."""
        if self._ended is None:
            return
        for channel in [one for one in self._outputs if one.is_open and one.unsent]:
            with contextlib.suppress(OSError):  # there is no more room for it then, until somebody has read
                fcntl.fcntl(channel.fd, fcntl.F_SETPIPE_SZ, _MOST_PIPE)
            self._channels.write_out(channel)
        if any(one.is_open and one.unsent for one in self._outputs):
            return
        (message, channels), self._ended = self._ended, None
        try:
            self._take_changes(channels)
        except Exception:  # noqa: BLE001 - of what it says, as above
            self._bridge.lose(self, "killed")
            return
        self._deadline, self._is_over = _NEVER, True
        self._outputs = []
        self._bridge.send(message, [os.dup(self.mirror.fd)])
        reason = message["ending"]["reason"]
        self._bridge.over(self, keep=self._request["session"] and reason != "closed")

    def _take_changes(self, channels: list[tuple[str, int]]) -> None:
        if channels and self._is_read:
            raise ValueError("files changed while all was paused")
        for _, number in channels:
            records = self._channels.take_content(number)
            try:
                self.mirror.take(records)
            finally:
                os.close(records)

    def _open_pipe(self, number: int) -> int:
        """The link's end of the pipe of a step."""
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            channel = self._channels.add(number, write, writes=True)
        except ValueError:
            os.close(read)
            raise
        self._outputs = [channel, *(one for one in self._outputs if one.is_open)]
        self._outputs[-1].before = tuple(self._outputs[:-1])
        return read

    # -- its network

    def _listen(self, number: int) -> int:
        """One end of a pair for the link, over which each connection comes that the container has accepted."""
        if number in self._listeners or len(self._listeners) >= self._may_listen:
            raise ValueError("a listener too many")
        self._listeners[number], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return theirs.detach()

    def _hand_over(self, number: int, kind: socket.SocketKind) -> socket.socket:
        """Our end of a new connection, whose other end the link gets. Raises ``OSError`` where nobody listens."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            socket.send_fds(self._listeners[number], [b"c"], [theirs.fileno()], flags)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours

    def _accept(self, number: int, payload: bytes) -> None:
        (accepted,) = carriage.NUMBER.unpack(payload) if len(payload) == carriage.NUMBER.size else (0,)
        if number not in self._listeners or not accepted:
            raise ValueError("a connection from nowhere")
        try:
            sock = self._hand_over(number, socket.SOCK_STREAM)
        except OSError:
            self._send(carriage.frame(carriage.DEAF, accepted) + carriage.frame(carriage.END, accepted))
            return
        self._channels.add(accepted, sock.detach(), reads=True, writes=True)

    def _ask(self, number: int, payload: bytes) -> None:
        """A question for a name, from one of the cell's sockets."""
        who, question = (number, payload[: addresses.SENDER]), payload[addresses.SENDER :]
        sock = self._asking.pop(who, None)
        with contextlib.suppress(OSError):  # it asks again
            if sock is None:
                if len(self._asking) >= _MOST_ASKING:
                    self._stop_asking(next(iter(self._asking)))
                sock = self._hand_over(number, socket.SOCK_SEQPACKET)
                self._bridge.set_interest(sock.fileno(), select.POLLIN, lambda: self._answer(who))
            self._asking[who] = sock
            sock.send(question, socket.MSG_NOSIGNAL)

    def _stop_asking(self, who: tuple[int, bytes]) -> None:
        sock = self._asking.pop(who)
        self._bridge.set_interest(sock.fileno(), 0, self._serve)
        sock.close()

    def _answer(self, who: tuple[int, bytes]) -> None:
        number, sender = who
        answer = b""
        with contextlib.suppress(OSError):
            answer = self._asking[who].recv(carriage.MAX_PIECE - addresses.SENDER)
        if not answer:  # nobody is there to answer
            self._stop_asking(who)
        else:
            self._send(carriage.frame(carriage.DATA, number, sender + addresses.answer_to_container(answer)))

    # -- its stream

    def _send(self, data: bytes) -> None:
        self._send_frames([iter((data,))])

    def _send_frames(self, frames: list[Iterator[bytes]], *, waits: bool = False) -> None:
        """Send frames: in a moment, or where they can wait, when something else is sent."""
        if self.container is not None:
            for each in frames:
                self.container.send(each)
            if not waits:
                self._bridge.flush_later(self)

    def flush(self) -> None:
        """Send what waits, as far as there is room, and go on when there is more."""
        if self.container is not None:
            events = select.POLLIN | (select.POLLOUT if self.container.flush() else 0)
            self._bridge.set_interest(self.container.socket.fileno(), events, self._serve)


def _for_each(open_one: Callable[[int], int], channels: list[tuple[str, int]]) -> list[int]:
    fds: list[int] = []
    try:
        for _, number in channels:
            fds.append(open_one(number))
    except BaseException:
        close_all(fds)
        raise
    return fds


def _message(message: dict[str, Any], channels: list[list[Any]]) -> bytes:
    return carriage.frame(carriage.MESSAGE, 0, wire.encode([message, channels]))


def _kind_of(fd: int) -> str:
    """How a descriptor is carried: what is in it, or what comes from or goes to it."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        return "both"
    if not stat.S_ISFIFO(mode):
        return "content"
    return "write" if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY else "read"


def _own(fd: int, kind: str) -> int:
    """The same pipe, opened once more: that nobody waits at it concerns us alone."""
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
