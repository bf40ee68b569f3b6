"""Connections in the egress proxy's event loop: plain TCP, and TLS over it with the same methods.

OpenSSL reads and writes TLS in memory (RFC 8446, RFC 5246), so that bytes read before the handshake are not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable

from casemate.egress.accounting import Spent, TimeShare

_CHUNK = 1 << 16  # bytes that are parsed or encrypted at once
_MOST_BUFFERED = 1 << 18  # bytes in the kernel per connection and direction, not counting its own overhead of as many
_NO_LINGER = struct.pack("ii", 1, 0)


class TcpStream:
    """A connected socket, taken over and made non-blocking. Waits use the running event loop, which may change. It is
    a :class:`casemate.files.lines.LineClient`."""

    def __init__(self, taken: socket.socket) -> None:
        taken.setblocking(False)
        bound_buffers(taken)
        with contextlib.suppress(OSError):
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = taken
        self.ahead = bytearray()  # received and not used yet

    async def fill(self) -> bool:
        while True:
            try:
                data = self.socket.recv(_CHUNK)
            except BlockingIOError:
                await readable(self)
                continue
            self.ahead += data
            return bool(data)

    def watch(self, gone: Callable[[], object], most: int) -> Callable[[], None]:
        loop, watched = asyncio.get_running_loop(), self.socket.fileno()

        def look() -> None:
            try:
                data = self.socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.ahead += data
            if not data or len(self.ahead) > most:
                stop()
            if not data:
                gone()

        def stop() -> None:
            loop.remove_reader(watched)

        loop.add_reader(watched, look)
        return stop

    def receive_into(self, buffer: memoryview) -> int:
        """Receive into ``buffer``. Returns the number of bytes. Raises ``BlockingIOError`` and ``OSError``."""
        return self.socket.recv_into(buffer)

    def push(self, data: memoryview) -> int:
        """Send what is possible of ``data``. Returns its number of bytes. Raises ``BlockingIOError``, ``OSError``."""
        return self.socket.send(data)

    def flush(self) -> None:
        """Send what :meth:`push` took but could not send. Raises ``BlockingIOError`` and ``OSError``."""

    @property
    def is_behind(self) -> bool:
        return False

    @property
    def is_ready(self) -> bool:
        """Whether more may be received although the socket has nothing."""
        return False

    def has_something(self) -> bool:
        """Whether bytes, an end or an error are available now."""
        if self.ahead:
            return True
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    async def waste(self) -> int:
        """Wait for more bytes and discard them. Returns their number. Raises ``OSError``."""
        while True:
            try:
                return len(self.socket.recv(_CHUNK))
            except BlockingIOError:
                await readable(self)

    def take(self, count: int | None = None) -> bytes:
        data = bytes(self.ahead[:count])
        del self.ahead[: len(data)]
        return data

    async def send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                await self._writable()

    def end(self) -> None:
        """Signal that nothing more is sent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def halt(self) -> None:
        """End both directions. This wakes readers."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it. What was sent still arrives."""
        self.socket.close()

    def abort(self) -> None:
        """Close it with a reset, so that the other side sees a refusal or a loss and not a normal end."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.socket.close()

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        waiter, watched = loop.create_future(), self.socket.fileno()
        loop.add_writer(watched, _wake, waiter)
        try:
            await waiter
        finally:
            loop.remove_writer(watched)


def bound_buffers(one: socket.socket) -> None:
    """Limit the kernel's buffers of ``one``, and of connections that it accepts: no cell's limits count them."""
    with contextlib.suppress(OSError):
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            one.setsockopt(socket.SOL_SOCKET, buffer, _MOST_BUFFERED)


async def readable(*streams: TcpStream) -> None:
    """Wait until one of ``streams`` has bytes to read, or its end."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    watched = [stream.socket.fileno() for stream in streams]  # given sockets, asyncio would format each of them
    for fd in watched:
        loop.add_reader(fd, _wake, waiter)
    try:
        await waiter
    finally:
        for fd in watched:
            loop.remove_reader(fd)


class StreamPump:
    """Moves bytes from ``source`` to ``sink`` until the source ends, or ``most`` were moved.

    It runs in the loop's callbacks, without a task, and all pumps of a loop share one buffer. Between two callbacks it
    keeps only what the sink did not take, and reads nothing until that is sent. ``buffer_share`` returns the buffer for
    one move. ``count`` gets the size of each chunk before it is sent; an exception ends the pump.
    """

    def __init__(
        self,
        source: TcpStream,
        sink: TcpStream,
        count: Callable[[int], None],
        buffer_share: Callable[[], memoryview],
        most: int | None = None,
    ) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()  # has the number of bytes moved
        self._source, self._sink, self._count, self._buffer_share = source, sink, count, buffer_share
        self._left = most
        self._moved = 0
        self._rest = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        self._has_ended = False
        self._again: asyncio.Handle | None = None
        self._step(self._begin)

    def stop(self) -> None:
        """Stop the pump."""
        self._let_go()
        self.done.cancel()

    @property
    def _is_held_up(self) -> bool:
        return bool(self._rest) or self._sink.is_behind

    def _begin(self) -> None:
        ahead = self._source.take(self._left)
        if ahead:
            self._pass_on(memoryview(ahead))
        if not self._is_held_up:
            self._next()

    def _next(self) -> None:
        if self._left == 0 or self._has_ended:
            self.done.set_result(self._moved)
        else:
            self._loop.add_reader(self._source.socket, self._step, self._read)
            if self._source.is_ready:
                self._again = self._loop.call_soon(self._step, self._read)

    def _read(self) -> None:
        self._again = None
        buffer = self._buffer_share()[: self._left]
        try:
            count = self._source.receive_into(buffer)
        except BlockingIOError:
            return
        if count:
            self._pass_on(buffer[:count])
        else:
            self._has_ended = True
        if self._is_held_up or self._has_ended or self._left == 0:
            self._loop.remove_reader(self._source.socket)
            if not self._is_held_up:
                self._next()
        elif self._source.is_ready:
            self._again = self._loop.call_soon(self._step, self._read)

    def _pass_on(self, data: memoryview) -> None:
        self._count(len(data))
        self._moved += len(data)
        if self._left is not None:
            self._left -= len(data)
        try:
            sent = self._sink.push(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._rest = memoryview(bytes(data[sent:]))
        if self._is_held_up:
            self._loop.add_writer(self._sink.socket, self._step, self._write)

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._sink.flush()
            if self._rest:
                self._rest = self._rest[self._sink.push(self._rest) :]
        if not self._is_held_up:
            self._loop.remove_writer(self._sink.socket)
            self._next()

    def _step(self, step: Callable[[], None]) -> None:
        """Run a callback's step. An error ends the pump and must not reach the loop."""
        try:
            step()
        except (OSError, Spent) as error:
            self._let_go()
            if not self.done.done():
                self.done.set_exception(error)

    def _let_go(self) -> None:
        self._loop.remove_reader(self._source.socket)
        self._loop.remove_writer(self._sink.socket)
        if self._again is not None:
            self._again.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_RECORD = 1 << 14  # bytes of content in one record (RFC 8446, section 5.1)
_MOST_RECORDS = 64  # records read at once; even a tiny record costs time


class TlsStream(TcpStream):
    """TLS over ``raw``, which it takes over. Use it after :meth:`handshake`."""

    def __init__(self, raw: TcpStream, context: ssl.SSLContext, server_name: str | None) -> None:
        """``server_name`` is the name of the server to connect to; None makes this the server's side."""
        self.socket = raw.socket
        self.ahead = bytearray()
        self._loop = asyncio.get_running_loop()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_name is None, server_name)
        self._sending = asyncio.Lock()
        self._unsent = memoryview(b"")  # ciphertext
        self._in.write(raw.take())

    async def handshake(self, time_share: TimeShare) -> None:
        """Do the handshake. Raises ``OSError``; ``ssl.SSLError`` if the other side disagrees or fails verification."""
        while True:
            try:
                await time_share.run(self._tls.do_handshake)
            except ssl.SSLWantReadError:
                await self._send_pending()
                await self._more()
                continue
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()  # sends the alert with the reason
                raise
            await self._send_pending()
            return

    async def fill(self) -> bool:
        """See :class:`TcpStream`. An end without a TLS close raises ``ConnectionResetError``: data may be cut off."""
        while True:
            data = self._read()
            if data is None:
                if self._out.pending and not self._sending.locked():
                    await self._send_pending()
                await self._more()
                continue
            self.ahead += data
            more = data
            for _ in range(_CHUNK // _RECORD):
                if not (more and self.is_ready):
                    break
                more = self._read_or_nothing()
                self.ahead += more
            return bool(data)

    def receive_into(self, buffer: memoryview) -> int:
        """See :class:`TcpStream`."""
        count = 0
        has_received = False
        for _ in range(_MOST_RECORDS):
            if count == len(buffer):
                break
            try:
                got = self._tls.read(len(buffer) - count, buffer[count:])
            except ssl.SSLWantReadError:
                if has_received or count:
                    break
                self._receive()
                has_received = True
                continue
            except ssl.SSLError as error:
                if count:
                    break  # the next call gets it again
                return self._check_end(error)
            if not got:
                return count
            count += int(got)
        if not count:
            raise BlockingIOError
        return count

    def push(self, data: memoryview) -> int:
        """See :class:`TcpStream`."""
        if self._sending.locked():
            raise BlockingIOError
        self.flush()
        count = 0
        while count < len(data) and not self.is_behind:
            count += self._tls.write(data[count : count + _CHUNK])
            with contextlib.suppress(BlockingIOError):
                self.flush()
        return count

    def flush(self) -> None:
        """See :class:`TcpStream`."""
        while self.is_behind:
            if not self._unsent:
                self._unsent = memoryview(self._out.read())
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    @property
    def is_behind(self) -> bool:
        return bool(self._unsent) or self._out.pending > 0

    @property
    def is_ready(self) -> bool:
        return self._in.pending > 0 or self._tls.pending() > 0

    def has_something(self) -> bool:
        """See :class:`TcpStream`."""
        while not self.ahead:
            try:
                data = self._read()
                if data is None:
                    self._receive()
                    continue
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not data:
                return True
            self.ahead += data
        return True

    async def send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        async with self._sending:
            while rest:
                rest = rest[self._tls.write(rest[:_CHUNK]) :]
                await self._drain()

    def end(self) -> None:
        """Signal the end in TLS and on the socket."""
        self._say_goodbye()
        super().end()

    def close(self) -> None:
        """Signal the end in TLS and close the socket."""
        self._say_goodbye()
        super().close()

    def _say_goodbye(self) -> None:
        if self.socket.fileno() < 0 or self._sending.locked():
            return
        with contextlib.suppress(OSError):
            self._tls.unwrap()  # does not wait for the other side's
        with contextlib.suppress(OSError):
            self.flush()

    def _read_or_nothing(self) -> bytes:
        """Return what can be read now. An error comes again from the next wait."""
        try:
            return self._read() or b""
        except OSError:
            return b""

    def _read(self) -> bytes | None:
        """Return what can be read now, b"" at the end, None if more has to come. Raises ``OSError``."""
        try:
            return self._tls.read(_RECORD)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            self._check_end(error)
            return b""

    def _check_end(self, error: ssl.SSLError) -> int:
        """Return 0 if the other side has closed TLS properly; else raise."""
        if isinstance(error, ssl.SSLZeroReturnError):
            return 0
        if isinstance(error, ssl.SSLEOFError):
            raise ConnectionResetError("it ended without a TLS close") from None
        raise error

    async def _more(self) -> None:
        while True:
            try:
                self._receive()
                return
            except BlockingIOError:
                await readable(self)

    def _receive(self) -> None:
        data = self.socket.recv(_CHUNK)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _send_pending(self) -> None:
        async with self._sending:
            await self._drain()

    async def _drain(self) -> None:
        while self.is_behind:
            try:
                self.flush()
            except BlockingIOError:
                await self._writable()
