"""Descriptors over a stream of bytes: pipes, files and sockets as numbered channels, between a host and a supervisor in
another container or on another machine.

Both ends use this. Each takes whatever the other sends for hostile: every frame is bounded, and what makes no sense
raises :class:`CarriageError`, which is the end of the stream. A channel carries so many bytes ahead as its receiver has
room for, so that a slow one holds up no other.
"""

from __future__ import annotations

import _socket
import os
import select
import struct

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from casemate.supervisor.readiness import DescriptorPoll


VERSION = 1  # of what both ends say to each other
MESSAGE, DATA, END, CREDIT, DEAF, ACCEPTED, CONTENT = b"m", b"d", b"e", b"c", b"x", b"a", b"o"
HEADER = struct.Struct("!cII")  # kind, channel, length
NUMBER = struct.Struct("!I")
MAX_PIECE = 1 << 16  # bytes of data in a frame
MAX_FRAME = 200_000  # bytes: a message of `wire.MAX_MESSAGE`, and what its channels are
WINDOW = 1 << 18  # bytes of a channel that may be on their way
_DRAINED = 1 << 20  # bytes beyond that at the end of a cell: what an ordinary user's pipe can hold (pipe(7))
MAX_CHANNELS = 4096
_MAX_CONTENTS = 16  # files that are under way at once


class CarriageError(ValueError):
    """What came is nothing that the other end would send."""


class Poller:
    """Of whoever has these two and looks at them in one thread."""

    _poll: DescriptorPoll
    _handlers: dict[int, Callable[[], None]]

    def set_interest(self, fd: int, events: int, handle: Callable[[], None]) -> None:
        """Call ``handle`` when one of ``events`` is there; 0 for not any more."""
        if events:
            self._handlers[fd] = handle
            self._poll.register(fd, events)
        elif self._handlers.pop(fd, None):
            self._poll.unregister(fd)


class CarriageReader:
    """Takes bytes as they come and gives whole frames: kind, channel, payload."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """The frames that ``data`` completes. Raises :class:`CarriageError`."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= HEADER.size:
                kind, number, length = HEADER.unpack_from(self._buffer, at)
                if length > (MAX_FRAME if kind == MESSAGE else MAX_PIECE):
                    raise CarriageError(f"a frame of {length} bytes")
                if len(self._buffer) - at < HEADER.size + length:
                    return
                start = at + HEADER.size
                at = start + length
                yield kind, number, bytes(self._buffer[start:at])
        finally:
            del self._buffer[:at]


def frame(kind: bytes, number: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return HEADER.pack(kind, number, len(payload)) + payload


def content_frames(number: int, source: int, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of the file ``source`` as frames of their own, for a message that comes after them."""
    yield frame(CONTENT, number)
    for at in range(0, size, MAX_PIECE):
        yield frame(DATA, number, os.pread(source, min(MAX_PIECE, size - at), at))


class CarriedPipe:
    """One descriptor: what comes from it is sent while ``reads``, what is received is written to it while ``writes``.

    ``before``: channels whose text must be on its way before anything of this one, which tells of it. ``on_read``: is
    called with each piece before it is sent.
    """

    def __init__(
        self, number: int, fd: int, *, reads: bool, writes: bool, before: tuple[CarriedPipe, ...] = ()
    ) -> None:
        os.set_blocking(fd, False)
        self.number, self.fd = number, fd
        self.reads, self.writes, self.before = reads, writes, before
        self.credit = WINDOW
        self.unsent = bytearray()
        self.written = 0  # since the last credit was given
        self.is_ended = False  # nothing more will be received
        self.is_open = True
        self.on_read: Callable[[bytes], None] = lambda _: None


class Channels:
    """All channels of one stream. ``send`` takes bytes for the other end; ``first``: 1 on one side, 2 on the other;
    ``new_file`` makes files for contents that come, ``most`` bytes at once."""

    def __init__(
        self, send: Callable[[bytes], None], poller: Poller, first: int, new_file: Callable[[], int], most: int
    ) -> None:
        self.send = send
        self._poller = poller
        self._next = first
        self._new_file = new_file
        self._room = most
        self._by_number: dict[int, CarriedPipe] = {}
        self._contents: dict[int, int] = {}  # files by number

    def new_number(self) -> int:
        """A number that the other side does not give."""
        self._next += 2
        return self._next

    def get(self, number: int) -> CarriedPipe | None:
        """The channel of that number, if there is one."""
        return self._by_number.get(number)

    def add(
        self, number: int, fd: int, *, reads: bool = False, writes: bool = False, before: tuple[CarriedPipe, ...] = ()
    ) -> CarriedPipe:
        """Carry ``fd``, which is taken over. Raises :class:`CarriageError`."""
        if number in self._by_number or len(self._by_number) >= MAX_CHANNELS:
            os.close(fd)
            raise CarriageError(f"channel {number} is one too many")
        channel = self._by_number[number] = CarriedPipe(number, fd, reads=reads, writes=writes, before=before)
        self._watch(channel)
        return channel

    def take(self, kind: bytes, number: int, payload: bytes) -> None:
        """A frame about a channel; of one that is closed it says nothing any more. Raises :class:`CarriageError`."""
        channel = self._by_number.get(number)
        if kind == CONTENT:
            self._begin_content(number)
        elif number in self._contents and kind == DATA:
            self._take_content(number, payload)
        elif channel is None:
            return
        elif kind == DATA and payload:
            self._receive(channel, payload)
        elif kind == END:
            channel.is_ended = True
            self.write_out(channel)
        elif (
            kind == CREDIT and len(payload) == NUMBER.size and 0 < NUMBER.unpack(payload)[0] <= WINDOW - channel.credit
        ):
            channel.credit += NUMBER.unpack(payload)[0]
            self._watch(channel)
            self._watch_later(channel)
        elif kind == DEAF:
            self._stop_reading(channel, tell=False)
        else:
            raise CarriageError(f"a frame {kind!r} of {len(payload)} bytes")

    def take_content(self, number: int) -> int:
        """The file of that content, which is the caller's from now on. Raises :class:`CarriageError`."""
        fd = self._contents.pop(number, -1)
        if fd < 0:
            raise CarriageError(f"there is no content {number}")
        self._room += os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _begin_content(self, number: int) -> None:
        if number in self._contents or number in self._by_number or len(self._contents) >= _MAX_CONTENTS:
            raise CarriageError(f"content {number} is one too many")
        self._contents[number] = self._new_file()

    def _take_content(self, number: int, payload: bytes) -> None:
        self._room -= len(payload)
        if self._room < 0:
            raise CarriageError("more content than there may be")
        os.write(self._contents[number], payload)

    def drain(self, channels: list[CarriedPipe]) -> None:
        """Send all that is in these pipes now, which nobody writes to any more, and close them."""
        for channel in channels:
            channel.credit = _DRAINED
            while channel.is_open and channel.reads and channel.credit > 0 and self._read_piece(channel):
                pass
            self.close(channel)

    def close(self, channel: CarriedPipe) -> None:
        """Close it, and tell the other end. Harmless when repeated."""
        if channel.is_open:
            if channel.reads:
                self.send(frame(END, channel.number))
            if channel.writes:
                self.send(frame(DEAF, channel.number))
            channel.reads = channel.writes = False
            self._watch(channel)

    def close_all(self) -> None:
        """The other end is gone."""
        for number in list(self._contents):
            os.close(self._contents.pop(number))
        for channel in list(self._by_number.values()):
            channel.reads = channel.writes = False
            self._watch(channel)

    def _receive(self, channel: CarriedPipe, payload: bytes) -> None:
        if not channel.writes:
            return
        if channel.is_ended or len(channel.unsent) + len(payload) > WINDOW + _DRAINED:
            raise CarriageError("more than there was room for")
        channel.unsent += payload
        self.write_out(channel)

    def _serve(self, channel: CarriedPipe) -> None:
        """The descriptor is ready for something."""
        if channel.unsent:
            self.write_out(channel)
        if channel.is_open and channel.reads and channel.credit > 0:
            self._read(channel)

    def _read(self, channel: CarriedPipe) -> None:
        for earlier in channel.before:
            while earlier.is_open and earlier.reads and earlier.credit > 0 and self._read_piece(earlier):
                pass
        if not _is_held(channel):
            self._read_piece(channel)
        if channel.is_open:
            self._watch(channel)

    def _read_piece(self, channel: CarriedPipe) -> bool:
        """Send a piece of what is there, if there is any."""
        try:
            data = os.read(channel.fd, min(MAX_PIECE, channel.credit))
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop_reading(channel, tell=True)
            return False
        channel.credit -= len(data)
        channel.on_read(data)
        self.send(frame(DATA, channel.number, data))
        if channel.credit <= 0:
            self._watch(channel)
        return True

    def _stop_reading(self, channel: CarriedPipe, *, tell: bool) -> None:
        if channel.reads:
            channel.reads = False
            if tell:
                self.send(frame(END, channel.number))
            self._watch(channel)
            self._watch_later(channel)

    def write_out(self, channel: CarriedPipe) -> None:
        """Write what has come, as much as there is room for; what tells of others' text, only when that is written."""
        held = any(earlier.unsent for earlier in channel.before)
        try:
            while channel.unsent and not held:
                written = os.write(channel.fd, memoryview(channel.unsent)[:MAX_PIECE].tobytes())
                del channel.unsent[:written]
                channel.written += written
        except BlockingIOError:
            pass
        except OSError:
            channel.unsent.clear()
            channel.writes = False
            self.send(frame(DEAF, channel.number))
        if channel.written >= WINDOW // 2 and channel.writes:
            self.send(frame(CREDIT, channel.number, NUMBER.pack(channel.written)))
            channel.written = 0
        if channel.is_ended and channel.writes and not channel.unsent:
            channel.writes = False
            if channel.reads:
                _end_writing(channel.fd)
        self._watch(channel)
        if not channel.unsent:
            for later in list(self._by_number.values()):
                if later.unsent and channel in later.before:
                    self.write_out(later)

    def _watch(self, channel: CarriedPipe) -> None:
        """Wait for what the channel can do something with; close it where there is nothing any more."""
        if not channel.is_open:
            return
        if not channel.reads and not channel.writes:
            channel.is_open = False
            channel.unsent.clear()
            self._by_number.pop(channel.number, None)
            self._poller.set_interest(channel.fd, 0, lambda: None)
            os.close(channel.fd)
            return
        held = any(earlier.unsent for earlier in channel.before)
        events = select.POLLIN if channel.reads and channel.credit > 0 and not _is_held(channel) else 0
        events |= select.POLLOUT if channel.unsent and not held else 0
        self._poller.set_interest(channel.fd, events, lambda: self._serve(channel))

    def _watch_later(self, channel: CarriedPipe) -> None:
        for later in list(self._by_number.values()):
            if channel in later.before:
                self._watch(later)


def _is_held(channel: CarriedPipe) -> bool:
    """Whether text that was written before what it tells of cannot be sent yet."""
    return any(earlier.is_open and earlier.reads and earlier.credit <= 0 for earlier in channel.before)


def _end_writing(fd: int) -> None:
    """Of a connection: the other side reads to its end."""
    try:
        sock: Any = _socket.socket(fileno=os.dup(fd))
        try:
            sock.shutdown(_socket.SHUT_WR)
        finally:
            sock.close()
    except OSError:
        return  # it is gone
