"""HTTP to the service: h11 over a Unix socket or TCP, with connections that are reused."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

from casemate.errors import Unavailable
from casemate.remote.address import Address, connect
from casemate.telemetry.rows import trace_headers

_CONNECT_WITHIN = 10.0  # seconds
_IDLE_MOST = 20.0  # seconds to keep a connection; the service keeps it longer
_KEPT = 16  # connections
_CHUNK = 65536
MOST_BODY = 256 * 2**20  # bytes of one answer
_PIECE = 1 << 20  # bytes between two reports
Report = Callable[[int], None]


def ignore(_count: int) -> None:
    """A ``Report`` that does nothing."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(slots=True, eq=False)
class _HttpConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    step_timeout: float | None
    http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    used: float = 0.0

    async def send(self, *events: Any, report: Report = ignore) -> None:
        """Send the events at once: the other end may answer and close as soon as it has read the head."""
        data = b"".join(data for event in events if (data := self.http.send(event)) is not None)
        for place in range(0, len(data), _PIECE):
            self.writer.write(data[place : place + _PIECE])
            async with asyncio.timeout(self.step_timeout):
                await self.writer.drain()
            report(place + _PIECE)

    async def next_event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(self.step_timeout):
                data = await self.reader.read(_CHUNK)
            self.http.receive_data(data)
        return event

    @property
    def is_usable(self) -> bool:
        is_fresh = time.monotonic() - self.used < _IDLE_MOST
        return is_fresh and not self.reader.at_eof() and not self.writer.is_closing()


class Http:
    """Requests to one address, from one event loop. ``headers`` are added to each. ``step_timeout``: seconds without a
    byte after which a connection fails."""

    def __init__(self, address: Address, headers: Mapping[str, str], step_timeout: float | None = None) -> None:
        self.address = address
        self._step_timeout = step_timeout
        self.headers = {"host": address.host_header, **headers}
        self._kept: list[_HttpConnection] = []

    async def request(
        self, method: str, path: str, body: bytes = b"", report: Report = ignore, **headers: str
    ) -> HttpAnswer:
        """Send one request and return its whole answer. Cancelling closes the connection, which the service notices.

        Raises ``ConnectionError`` if no process listens, and ``Unavailable`` if the connection is lost or the
        certificate is not trusted.
        """
        async with self._exchange(method, path, body, headers, report) as (connection, answer):
            parts = [part async for part in self._parts(connection)]
        return HttpAnswer(answer.status_code, _plain(answer), b"".join(parts))

    async def stream(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> AsyncGenerator[HttpAnswer | bytes]:
        """The answer's head (without a body), then its body in pieces. Leaving early closes the connection.

        Raises like :meth:`request`.
        """
        async with self._exchange(method, path, body, headers) as (connection, answer):
            yield HttpAnswer(answer.status_code, _plain(answer), b"")
            async with contextlib.aclosing(self._parts(connection, most=None)) as parts:
                async for part in parts:
                    yield part

    async def close(self) -> None:
        """Close the idle connections."""
        kept, self._kept = self._kept, []
        for connection in kept:
            await _end(connection)

    @contextlib.asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], report: Report = ignore
    ) -> AsyncGenerator[tuple[_HttpConnection, h11.Response]]:
        connection = self._take() or await self._connect()
        is_whole = False
        try:
            sized = {**self.headers, **trace_headers(), **headers, "content-length": str(len(body))}
            head = h11.Request(method=method, target=path, headers=list(sized.items()))
            with contextlib.suppress(ConnectionError):  # the service may have answered already, and stopped reading
                await connection.send(head, *([h11.Data(data=body)] if body else []), h11.EndOfMessage(), report=report)
            while not isinstance(answer := await connection.next_event(), h11.Response):
                if isinstance(answer, h11.ConnectionClosed):
                    raise ConnectionResetError("closed before it answered")
            yield connection, answer
            is_whole = connection.http.our_state is h11.DONE and connection.http.their_state is h11.DONE
        except (OSError, h11.RemoteProtocolError) as error:
            raise connection_lost(self.address, error) from error
        finally:
            if is_whole:
                self._keep(connection)
            else:
                await _end(connection)

    async def _parts(self, connection: _HttpConnection, most: int | None = MOST_BODY) -> AsyncGenerator[bytes]:
        seen = 0
        while not isinstance(event := await connection.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise ConnectionResetError("closed within its answer")
            seen += len(event.data)
            if most is not None and seen > most:
                raise Unavailable(f"the answer of {self.address} is larger than {most} bytes")
            yield bytes(event.data)

    def _take(self) -> _HttpConnection | None:
        while self._kept:
            connection = self._kept.pop()
            if connection.is_usable:
                return connection
            connection.writer.close()
        return None

    def _keep(self, connection: _HttpConnection) -> None:
        connection.http.start_next_cycle()
        connection.used = time.monotonic()
        self._kept.append(connection)
        if len(self._kept) > _KEPT:
            self._kept.pop(0).writer.close()

    async def _connect(self) -> _HttpConnection:
        address = self.address
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                if address.folder is not None:
                    one = connect(address, _CONNECT_WITHIN)
                    one.setblocking(False)
                    reader, writer = await asyncio.open_unix_connection(sock=one, limit=_CHUNK * 4)
                else:
                    reader, writer = await asyncio.open_connection(
                        address.host, address.port, ssl=True if address.tls else None, limit=_CHUNK * 4
                    )
        except TimeoutError:
            raise ConnectionError(f"{address} does not accept connections") from None
        except ssl.SSLCertVerificationError as error:
            raise connection_lost(address, error) from None
        return _HttpConnection(reader, writer, self._step_timeout)


def connection_lost(address: Address, error: Exception) -> Unavailable:
    """The error for a service that went away during a request, or that is not proven to be the intended one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unavailable(
            f"the certificate of {address} is not trusted, so nothing was sent to it: {error.verify_message}",
            remediation="Set SSL_CERT_FILE to the certificate of the authority that signed it, and use a name that "
            "it is for.",
        )
    return Unavailable(
        f"the connection to {address} was lost: {error}",
        remediation="Its log says why (casemate service logs). What it accepted is still there once it runs again.",
    )


def _plain(answer: h11.Response) -> dict[str, str]:
    return {name.decode("ascii"): value.decode("latin-1") for name, value in answer.headers}


async def _end(connection: _HttpConnection) -> None:
    connection.writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            await connection.writer.wait_closed()
