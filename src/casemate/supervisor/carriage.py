"""Descriptors over a byte stream: pipes, files and sockets as numbered channels, between a host and a supervisor in
another container or on another machine.

Both ends use this, and each treats the other as hostile: every frame is bounded, and invalid input raises
:class:`CarriageError`, which ends the stream. A channel sends only as much as its receiver has credit for, so a slow
channel delays no other.
"""

from __future__ import annotations

import _socket
import os
import select
import struct

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from casemate.supervisor.readiness import Poller


VERSION = 1  # of the protocol
MESSAGE, DATA, END, CREDIT, DEAF, ACCEPTED, CONTENT = b"m", b"d", b"e", b"c", b"x", b"a", b"o"
HEADER = struct.Struct("!cII")  # kind, channel, length
NUMBER = struct.Struct("!I")
MAX_PIECE = 1 << 16  # bytes of data in a frame
MAX_FRAME = 200_000  # bytes: a message of `wire.MAX_MESSAGE` and the description of its channels
WINDOW = 1 << 18  # bytes of a channel that may be in flight
_DRAINED = 1 << 20  # extra bytes at the end of a cell: the most an ordinary user's pipe can hold (pipe(7))
MAX_CHANNELS = 4096
_MAX_CONTENTS = 16  # files in transfer at once


class CarriageError(ValueError):
    """The other end sent something invalid."""


class CarriageReader:
    """Splits a byte stream into frames: kind, channel, payload."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """The frames completed by ``data``. Raises :class:`CarriageError`."""
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
    """Encode one frame."""
    return HEADER.pack(kind, number, len(payload)) + payload


def content_frames(number: int, source: int, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of the file ``source`` as frames, to be sent before the message that refers to them."""
    yield frame(CONTENT, number)
    for at in range(0, size, MAX_PIECE):
        yield frame(DATA, number, os.pread(source, min(MAX_PIECE, size - at), at))


class CarriedPipe:
    """A carried descriptor: data from it is sent while ``reads``; received data is written to it while ``writes``."""

    def __init__(
        self, number: int, fd: int, *, reads: bool, writes: bool, before: tuple[CarriedPipe, ...] = ()
    ) -> None:
        os.set_blocking(fd, False)
        self.number, self.fd = number, fd
        # before: channels whose data must be sent before this one's
        self.reads, self.writes, self.before = reads, writes, before
        self.credit = WINDOW
        self.unsent = bytearray()
        self.written = 0  # since the last credit was given
        self.is_ended = False  # nothing more will be received
        self.is_open = True
        self.on_read: Callable[[bytes], None] = lambda _: None  # called with each piece before it is sent


class Channels:
    """All channels of one stream. ``send`` sends bytes to the other end. ``first`` is 1 on one side, 2 on the other.
    ``new_file`` makes files for incoming contents, which may hold ``most`` bytes in total."""

    def __init__(
        self, send: Callable[[bytes], None], poller: Poller, first: int, new_file: Callable[[], int], most: int
    ) -> None:
        self.send = send
        self._poller = poller
        self._next = first
        self._new_file = new_file
        self._room = most
        self._by_number: dict[int, CarriedPipe] = {}
        self._contents: dict[int, int] = {}  # files of incoming contents, by number

    def new_number(self) -> int:
        """A channel number that the other side does not use."""
        self._next += 2
        return self._next

    def get(self, number: int) -> CarriedPipe | None:
        return self._by_number.get(number)

    def add(
        self, number: int, fd: int, *, reads: bool = False, writes: bool = False, before: tuple[CarriedPipe, ...] = ()
    ) -> CarriedPipe:
        """Carry ``fd`` and take ownership of it. Raises :class:`CarriageError`."""
        if number in self._by_number or len(self._by_number) >= MAX_CHANNELS:
            os.close(fd)
            raise CarriageError(f"channel {number} is one too many")
        channel = self._by_number[number] = CarriedPipe(number, fd, reads=reads, writes=writes, before=before)
        self._watch(channel)
        return channel

    def take(self, kind: bytes, number: int, payload: bytes) -> None:
        """Handle a frame about a channel; frames for closed channels are ignored. Raises :class:`CarriageError`."""
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
        """The file of content ``number``, which the caller then owns. Raises :class:`CarriageError`."""
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
            raise CarriageError("more content than allowed")
        os.write(self._contents[number], payload)

    def drain(self, channels: list[CarriedPipe]) -> None:
        """Send what is left in these pipes, which have no writers any more, and close them."""
        for channel in channels:
            channel.credit = _DRAINED
            while channel.is_open and channel.reads and channel.credit > 0 and self._read_piece(channel):
                pass
            self.close(channel)

    def close(self, channel: CarriedPipe) -> None:
        """Close a channel, if open, and tell the other end."""
        if channel.is_open:
            if channel.reads:
                self.send(frame(END, channel.number))
            if channel.writes:
                self.send(frame(DEAF, channel.number))
            channel.reads = channel.writes = False
            self._watch(channel)

    def close_all(self) -> None:
        """Close everything, because the other end is gone."""
        for number in list(self._contents):
            os.close(self._contents.pop(number))
        for channel in list(self._by_number.values()):
            channel.reads = channel.writes = False
            self._watch(channel)

    def _receive(self, channel: CarriedPipe, payload: bytes) -> None:
        if not channel.writes:
            return
        if channel.is_ended or len(channel.unsent) + len(payload) > WINDOW + _DRAINED:
            raise CarriageError("more data than its credit allows")
        channel.unsent += payload
        self.write_out(channel)

    def _serve(self, channel: CarriedPipe) -> None:
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
        """Write as much received data as the descriptor takes, after all data of the channels in ``before``."""
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
        """Poll for the events that the channel can handle; close it if there are none left."""
        if not channel.is_open:
            return
        if not channel.reads and not channel.writes:
            channel.is_open = False
            channel.unsent.clear()
            self._by_number.pop(channel.number, None)
            self._poller.set_interest(channel.fd, 0)
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
    """Whether data of a channel in ``before`` cannot be sent yet, for lack of credit."""
    return any(earlier.is_open and earlier.reads and earlier.credit <= 0 for earlier in channel.before)


def _end_writing(fd: int) -> None:
    try:
        sock: Any = _socket.socket(fileno=os.dup(fd))
        try:
            sock.shutdown(_socket.SHUT_WR)
        finally:
            sock.close()
    except OSError:
        return  # the connection is gone
