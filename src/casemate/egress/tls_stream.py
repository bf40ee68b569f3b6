"""TLS over a stream, with a stream's face: what is read and sent is what TLS covers.

It is spoken by OpenSSL between two buffers in memory (RFC 8446, RFC 5246), so that what was read ahead of the handshake
still counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING

from casemate.egress.stream import TcpStream, readable

if TYPE_CHECKING:
    from casemate.egress.shares import TimeShare

_CHUNK = 1 << 16  # bytes that are read from the socket, or encrypted, at once
_RECORD = 1 << 14  # bytes that one record covers at most (RFC 8446, section 5.1)
_MOST_RECORDS = 64  # that are read at once: each costs, however little it covers


class TlsStream(TcpStream):
    """TLS over ``raw``, which is this one's from now on. Use it after :meth:`handshake`."""

    def __init__(self, raw: TcpStream, context: ssl.SSLContext, server_name: str | None) -> None:
        """``server_name``: of the server that is spoken to; None for the side of a server."""
        self.socket = raw.socket
        self.ahead = bytearray()
        self._loop = asyncio.get_running_loop()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_name is None, server_name)
        self._sending = asyncio.Lock()
        self._unsent = memoryview(b"")  # ciphertext
        self._in.write(raw.take())

    @property
    def protocol(self) -> str | None:
        """What was agreed on (ALPN, RFC 7301)."""
        return self._tls.selected_alpn_protocol()

    async def handshake(self, time_share: TimeShare) -> None:
        """Raises ``OSError``: ``ssl.SSLError`` where the other side does not agree, or is not who it should be."""
        while True:
            try:
                await time_share.run(self._tls.do_handshake)
            except ssl.SSLWantReadError:
                await self._send_pending()
                await self._more()
                continue
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()  # the alert that says why
                raise
            await self._send_pending()
            return

    async def fill(self) -> bool:
        """See :class:`TcpStream`. An end that TLS did not announce is a ``ConnectionResetError``: somebody may have cut
        off what comes."""
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

    def receive_into(self, room: memoryview) -> int:
        """See :class:`TcpStream`."""
        count = 0
        has_received = False
        for _ in range(_MOST_RECORDS):
            if count == len(room):
                break
            try:
                got = self._tls.read(len(room) - count, room[count:])
            except ssl.SSLWantReadError:
                if has_received or count:
                    break
                self._receive()
                has_received = True
                continue
            except ssl.SSLError as error:
                if count:
                    break  # it is met again with the next call
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
        """See :class:`TcpStream`."""
        rest = memoryview(data)
        async with self._sending:
            while rest:
                rest = rest[self._tls.write(rest[:_CHUNK]) :]
                await self._drain()

    def end(self) -> None:
        """Say that nothing more is sent: both TLS and the socket do."""
        self._say_goodbye()
        super().end()

    def close(self) -> None:
        """Close it, after having said so."""
        self._say_goodbye()
        super().close()

    def _say_goodbye(self) -> None:
        if self.socket.fileno() < 0 or self._sending.locked():
            return
        with contextlib.suppress(OSError):
            self._tls.unwrap()  # it does not wait for the other's
        with contextlib.suppress(OSError):
            self.flush()

    def _read_or_nothing(self) -> bytes:
        """What can be read now; what is wrong is met again when it is waited for."""
        try:
            return self._read() or b""
        except OSError:
            return b""

    def _read(self) -> bytes | None:
        """What can be read now, empty at the end; None where there has to come more. Raises ``OSError``."""
        try:
            return self._tls.read(_RECORD)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            self._check_end(error)
            return b""

    def _check_end(self, error: ssl.SSLError) -> int:
        """0 where the other side has said that it ends."""
        if isinstance(error, ssl.SSLZeroReturnError):
            return 0
        if isinstance(error, ssl.SSLEOFError):
            raise ConnectionResetError("it ended without saying so") from None
        raise error

    async def _more(self) -> None:
        """Wait for bytes of the socket."""
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
