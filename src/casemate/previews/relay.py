"""Serves one client: reads, judges and forwards each request, over its own connection to the server in the cell.

h11 parses each request and response (RFC 9112) and writes it again. So only judged requests reach a cell, and it
cannot send two responses to one request. Reading waits until the other end takes the data, so little is buffered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import h11

from casemate.previews.admission import Admitted, Answer, admit, answer_for_redirect, headers_for_client
from casemate.previews.exposed import ExposedServer

AT_ONCE = 64 * 1024  # bytes per read; buffers hold a few times as many
_MOST_HEAD = 64 * 1024
_HEAD_WITHIN = 15.0  # seconds for the first request's head, from the connection on
_KEPT_IDLE = 60.0  # seconds that a connection may be idle
_CONNECT_WITHIN = 10.0  # seconds; connecting blocks if the server's backlog is full
_TAKEN_WITHIN = 10.0  # seconds for a client to read the rest of a response
_LAST_WORDS = 30.0  # seconds that one end may go on sending after the other has ended
_PLAIN = ((b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store"))

Find = Callable[[str], ExposedServer | None]


class _End:
    """One end of the relay, read and written through h11."""

    def __init__(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http, self.reader, self.writer = http, reader, writer

    async def receive(self) -> Any:
        """Return the next event. Raises ``h11.RemoteProtocolError`` and ``OSError``."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(AT_ONCE))
        await asyncio.sleep(0)  # thousands of events may be buffered: let other tasks run after each
        return event

    async def send(self, event: Any) -> None:
        """Send an event, and wait until the buffer has room."""
        self.writer.write(self.http.send(event) or b"")
        await self.writer.drain()

    async def say(self, answer: Answer) -> None:
        """Respond instead of the cell and announce the connection's end, unless a response has begun."""
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"{answer.text}\n".encode()
        headers = [*answer.headers, *_PLAIN, (b"content-length", b"%d" % len(text)), (b"connection", b"close")]
        await self.send(h11.Response(status_code=answer.status, headers=headers))
        await self.send(h11.Data(data=text))
        await self.send(h11.EndOfMessage())


async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, find: Find) -> None:
    """Serve a client until its connection ends. ``find`` returns the server of a host name."""
    client, wait = _End(h11.Connection(h11.SERVER, _MOST_HEAD), reader, writer), _HEAD_WITHIN
    try:
        with contextlib.suppress(h11.ProtocolError, OSError, TimeoutError):  # no client is left to answer
            while await _serve_next(client, find, wait):
                client.http.start_next_cycle()
                wait = _KEPT_IDLE
            writer.close()
            async with asyncio.timeout(_TAKEN_WITHIN):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def relay(exposed: ExposedServer, client: Streams, cell: Streams) -> None:
    """Relay both directions unchanged, until both have ended, or ``_LAST_WORDS`` after the first."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(AT_ONCE):
                if reader is cell[0]:
                    exposed.bytes_out += len(data)
                else:
                    exposed.bytes_in += len(data)
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async with asyncio.TaskGroup() as both:
        pumps = [both.create_task(pump(client[0], cell[1])), both.create_task(pump(cell[0], client[1]))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(pumps, timeout=_LAST_WORDS)
        for running in pumps:
            running.cancel()


async def _serve_next(client: _End, find: Find, wait: float) -> bool:
    """Serve one request. Returns whether another may follow."""
    try:
        async with asyncio.timeout(wait):
            request = await client.receive()
    except h11.RemoteProtocolError as error:
        await client.say(Answer(error.error_status_hint, "This is not a valid HTTP/1.1 request."))
        return False
    if not isinstance(request, h11.Request):
        return False
    judged = admit(request, find)
    if isinstance(judged, Answer):
        await client.say(judged)
        return False
    try:
        with judged.exposed.count_client():
            async with asyncio.timeout(judged.end - time.monotonic()):
                return await _forward(client, request, judged)
    except OSError as error:
        await client.say(Answer(502, f"The preview cannot be reached: {error.strerror or 'it took too long'}."))
        return False


async def _forward(client: _End, request: h11.Request, admitted: Admitted) -> bool:
    """Forward a request and the cell's response. Returns whether another request may follow. Raises ``OSError``."""
    async with asyncio.timeout(_CONNECT_WITHIN):
        there = await admitted.exposed.connect()
    ends = await asyncio.open_connection(sock=there, limit=AT_ONCE)
    cell = _End(h11.Connection(h11.CLIENT, _MOST_HEAD), *ends)
    try:
        await cell.send(h11.Request(method=request.method, target=request.target, headers=admitted.headers))
        async with asyncio.TaskGroup() as both:
            answering = both.create_task(_answer(client, cell, admitted))
            sending = both.create_task(_send_body(client, cell, admitted.exposed))
            await asyncio.wait({answering, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and sending.result():  # else the client is gone
                await asyncio.wait({answering})
            answering.cancel()
            sending.cancel()
        if answering.cancelled() or not answering.result():
            return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE
        for one, other in ((client, cell), (cell, client)):
            other.writer.write(one.http.trailing_data[0])
        await relay(admitted.exposed, (client.reader, client.writer), ends)
        return False
    finally:
        cell.writer.transport.abort()


async def _send_body(client: _End, cell: _End, exposed: ExposedServer) -> bool:
    """Forward a request's body, and wait for the next input. Returns whether the client is still connected."""
    try:
        while isinstance(event := await client.receive(), h11.Data):
            exposed.bytes_in += len(event.data)
            with contextlib.suppress(OSError):  # a server may answer without reading all
                await cell.send(event)
        with contextlib.suppress(OSError):
            await cell.send(h11.EndOfMessage())
        more = await client.reader.read(AT_ONCE)
    except (h11.ProtocolError, OSError):
        return False
    client.http.receive_data(more)  # it begins the next request
    return bool(more)


async def _answer(client: _End, cell: _End, admitted: Admitted) -> bool:
    """Forward the cell's response. Returns whether it starts a WebSocket."""
    with contextlib.suppress(h11.LocalProtocolError, OSError):  # the client is gone, or cannot take this response
        while True:
            try:
                event = await cell.receive()
            except (h11.RemoteProtocolError, OSError):
                event = None
            if isinstance(event, h11.InformationalResponse) and event.status_code not in (100, 101):
                continue  # Early Hints let a browser connect before it has the Content-Security-Policy
            if isinstance(event, h11.InformationalResponse | h11.Response):
                if page := answer_for_redirect(event.status_code, event.headers, admitted):
                    await client.say(page)
                    return False
                is_upgraded = event.status_code == 101
                headers = headers_for_client(event.headers, admitted, upgrades=is_upgraded)
                await client.send(type(event)(status_code=event.status_code, headers=headers, reason=event.reason))
                if is_upgraded:
                    return True
            elif isinstance(event, h11.Data):
                admitted.exposed.bytes_out += len(event.data)
                await client.send(event)
            elif isinstance(event, h11.EndOfMessage):
                await client.send(h11.EndOfMessage())
                return False
            else:
                await client.say(Answer(502, "The server in the cell does not answer in HTTP/1.1."))
                return False
    return False
