"""The supervisor's side of the stream to the host, for a supervisor in a container."""

from __future__ import annotations

import _socket
import fcntl
import os
import select
from collections import deque

from casemate.supervisor import carriage, wire
from casemate.supervisor.frames import StepEnds
from casemate.supervisor.trees.records import Bounds, Tree
from casemate.supervisor.trees.walk import open_beneath, opened

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from casemate.supervisor.readiness import Poller

_READ = 1 << 18
_DATAGRAM = 4096  # bytes; name queries are shorter
_ADDRESS = 6  # bytes of an IPv4 address and a port
_MOST_STEP_PIPES = 8  # pipes of recent steps
_MOST_UNSENT = 1 << 16  # bytes
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
ANY = Bounds(1 << 40, 1 << 24)  # for the trusted host; the container's file systems are the bound


class StreamHost:
    """The host at the other end of a stream, as `main.HostSocket`."""

    def __init__(
        self, stream_in: int, stream_out: int, poller: Poller, report_step: Callable[[str, int], None]
    ) -> None:
        """``report_step`` is called with cell and step when an interpreter says that a step is over."""
        self._in, self._out = stream_in, stream_out
        self._frames = carriage.CarriageReader()
        self._poller = poller
        self._channels = carriage.Channels(self._write_frame, poller, 2, _memory_file, 1 << 40)
        self._orders: dict[str, carriage.CarriedPipe] = {}  # order pipes, by cell
        self._outputs: dict[str, list[carriage.CarriedPipe]] = {}  # output pipes, by cell
        self._inputs: dict[str, int] = {}  # files of the standard input of waiting cells
        self._datagrams: dict[int, _socket.socket] = {}
        self._unsent = bytearray()
        self._reported = ("", 0)  # cell and number of the last step reported over
        self._is_urgent = False
        self._step_pipes: deque[int] = deque(maxlen=_MOST_STEP_PIPES)
        self._report_step = report_step
        self.scratch: Any = None  # of the cell

    def fileno(self) -> int:
        """The stream's descriptor, for polling."""
        return self._in

    def read(self) -> list[tuple[dict[str, Any], dict[str, int]]] | None:
        """The messages that have arrived, with their descriptors; None if the host is gone."""
        data = os.read(self._in, _READ)
        if not data:
            return None
        messages = []
        for kind, number, payload in self._frames.feed(data):
            if kind == carriage.MESSAGE:
                message, channels = wire.decode(payload)
                messages.append((message, self._descriptors(message, channels)))
            elif kind == carriage.DATA and number in self._datagrams:
                _send_datagram(self._datagrams[number], payload)
            elif kind == carriage.DEAF and number in self._datagrams:
                self._close_listener(self._datagrams.pop(number))
            else:
                self._channels.take(kind, number, payload)
        return messages

    def _descriptors(self, message: dict[str, Any], channels: list[list[Any]]) -> dict[str, int]:
        """The descriptors of a message. Ends of pipes are made here."""
        cell = message.get("id", "")
        fds: dict[str, int] = {}
        carried: dict[str, carriage.CarriedPipe] = {}
        for name, (kind, number) in zip(message.get("fds", ()), channels, strict=True):
            if kind == "content":
                fds[name] = self._channels.take_content(number)
                continue
            if kind == "both":
                one, other = _socket.socketpair()
                ours, fds[name] = one.detach(), other.detach()
            else:
                ends = os.pipe2(os.O_CLOEXEC)
                ours, fds[name] = ends if kind == "write" else ends[::-1]
            before = tuple(carried[text] for text in ("stdout", "stderr") if text in carried and name == "control")
            carried[name] = self._channels.add(
                number, ours, reads=kind != "read", writes=kind != "write", before=before
            )
        if message["op"] == "launch":
            if "order" in carried:
                self._orders[cell] = carried["order"]
            if message["session"]:
                carried["control"].on_read = self._look_for_step_ends(cell)
            self._outputs[cell] = [carried[name] for name in ("stdout", "stderr", "control") if name in carried]
            if message["awaits_order"]:
                self._inputs[cell] = fds["stdin"]
                fds["stdin"] = os.open(f"/proc/self/fd/{fds['stdin']}", os.O_RDONLY | os.O_CLOEXEC)
        elif message["op"] == "begin":
            _fill(self._inputs.pop(cell), fds.pop("stdin"))
            fds["order"] = os.dup(self._orders[cell].fd)
        elif "tree" in fds:  # the host's changes of the workspace come before the message itself
            records = fds.pop("tree")
            if self.scratch:
                self.scratch.tree.apply(records, ANY)
            os.close(records)
        for place in [name for name in fds if name.startswith("/")]:
            self._take_folder(message, place, fds.pop(place))
        return fds

    def _look_for_step_ends(self, cell: str) -> Callable[[bytes], None]:
        steps = StepEnds()

        def look(data: bytes) -> None:
            for step in steps.feed(data):
                self._report_step(cell, step)

        return look

    def _take_folder(self, message: dict[str, Any], place: str, records: int) -> None:
        """Apply the host's changes of a shown folder. On failure the message gets the errno as ``problem``."""
        try:
            with (
                opened(records),
                opened(os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as top,
                opened(open_beneath(top, place.strip("/").split("/"), make=True)) as folder,
            ):
                Tree(folder).apply(records, ANY)
        except OSError as error:
            message["problem"] = error.errno or 5

    def send(self, message: dict[str, Any], fds: Sequence[int] | None = None) -> None:
        match message["op"]:
            case "ended":
                self._channels.drain(self._outputs.pop(message["id"], []))
                channels = self._send_changes()
            case "step over":
                if self._reported == (message["id"], message["step"]):
                    return
                self._reported = message["id"], message["step"]
                channels = self._send_changes()
            case "files paused":
                channels = self._send_changes()
            case "pipes":
                channels = [["read", self._carry_pipe(message["id"], fd)] for fd in fds or ()]
                self._step_pipes += [number for _, number in channels]
                if message["step"] > 1:  # not needed before this step is over
                    self._unsent += carriage.frame(carriage.MESSAGE, 0, wire.encode([message, channels]))
                    return
            case "listening":
                channels = [[_kind_of(fd), self._carry_listener(fd)] for fd in fds or ()]
            case _:
                channels = []
        self._write(carriage.frame(carriage.MESSAGE, 0, wire.encode([message, channels])))

    def _send_changes(self) -> list[list[Any]]:
        records = self.scratch.tree.write_changes(_memory_file) if self.scratch else None
        if records is None:
            return []
        number = self._channels.new_number()
        with opened(records):
            for piece in carriage.content_frames(number, records, os.fstat(records).st_size):
                self._write(piece)
        return [["content", number]]

    def _carry_pipe(self, cell: str, fd: int) -> int:
        number = self._channels.new_number()
        channel = self._channels.add(number, os.dup(fd), reads=True)
        outputs = self._outputs[cell]
        outputs[:] = [one for one in outputs if one.is_open]
        control = outputs[-1]
        outputs.insert(0, channel)
        control.before = tuple(one for one in outputs if one is not control)
        return number

    def _carry_listener(self, fd: int) -> int:
        number = self._channels.new_number()
        sock = self._datagrams[number] = _socket.socket(fileno=os.dup(fd))
        sock.setblocking(False)
        take = self._read_datagrams if sock.type == _socket.SOCK_DGRAM else self._accept
        self._poller.set_interest(sock.fileno(), select.POLLIN, lambda: take(number, sock))
        return number

    def _close_listener(self, sock: _socket.socket) -> None:
        self._poller.set_interest(sock.fileno(), 0)
        sock.close()

    def _accept(self, number: int, sock: _socket.socket) -> None:
        try:
            fd, _ = sock._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        accepted = self._channels.new_number()
        self._write(carriage.frame(carriage.ACCEPTED, number, carriage.NUMBER.pack(accepted)))
        self._channels.add(accepted, fd, reads=True, writes=True)

    def _read_datagrams(self, number: int, sock: _socket.socket) -> None:
        try:
            data, (address, port) = sock.recvfrom(_DATAGRAM)
        except OSError:
            return
        self._write(carriage.frame(carriage.DATA, number, _socket.inet_aton(address) + port.to_bytes(2, "big") + data))

    def _write_frame(self, data: bytes) -> None:
        kind, number, _ = carriage.HEADER.unpack_from(data)
        if kind == carriage.END and number in self._step_pipes:
            self._unsent += data  # the end of a step's pipe is not urgent
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        self._unsent += data
        self._is_urgent = True
        if len(self._unsent) > _MOST_UNSENT:
            self.flush()

    def flush(self) -> None:
        """Send what has been written, if any of it is urgent. Blocks."""
        if not self._is_urgent:
            return
        data, self._unsent, self._is_urgent = self._unsent, bytearray(), False
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._out, view) :]
        except OSError:
            os._exit(0)  # the host is gone, and the container ends with this process


def _kind_of(fd: int) -> str:
    return "udp" if _socket.socket(fileno=os.dup(fd)).type == _socket.SOCK_DGRAM else "tcp"


def _send_datagram(sock: _socket.socket, payload: bytes) -> None:
    try:
        address = _socket.inet_ntoa(payload[:4]), int.from_bytes(payload[4:_ADDRESS], "big")
        sock.sendto(payload[_ADDRESS:], address)
    except OSError:
        return  # the resolver asks again


def _memory_file() -> int:
    return os.memfd_create("casemate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _fill(target: int, source: int) -> None:
    """Write the standard input of a program that waited, and seal it."""
    at, size = 0, os.fstat(source).st_size
    while at < size:
        at += os.sendfile(target, source, at, size - at)
    fcntl.fcntl(target, fcntl.F_ADD_SEALS, _SEALS)
    os.close(target)
    os.close(source)
