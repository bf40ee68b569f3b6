"""HTTP/1 relay: each request is read, checked against the rules, rewritten and sent to the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine

from casemate.egress.accounting import EgressRefused, Unreachable
from casemate.egress.connection import EgressConnection, something_from
from casemate.egress.http1 import MOST_HEAD, AnswerReader, BadAnswer, BadRequest, HttpRequest, RequestReader
from casemate.egress.injection import BodyRedaction, Fields
from casemate.egress.stream import TcpStream
from casemate.policy.hosts import HTTP, HTTPS, canonical

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")  # RFC 9110, section 5.6.2
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*\Z")


def rewrite_fields(
    connection: EgressConnection, name: str, port: int, method: str, target: str, fields: Fields, *, is_tls: bool
) -> Fields:
    """Return the fields for the server after injection, which is recorded. Raises ``ValueError`` for invalid ones."""
    rewrite = connection.terms.rewrite
    if rewrite is None:
        return fields
    made = rewrite.request(name, port, is_tls, method.encode(), target.encode(), fields)
    _note(connection, name, port, made.notes)
    for used in made.used:
        connection.cell.ledger.note(name, port, "allowed", used)
    if not all(_NAME.match(field) and _VALUE.match(value) for field, value in made.headers):
        raise ValueError("invalid header field")
    return made.headers


def redact_answer(following: AnswerReader, hide: BodyRedaction) -> bytes:
    """Return the answer so far, redacted. Chunks are rewritten, since a secret could be split between two."""
    heads, body, trailers = following.take()
    written = hide.feed(heads) + hide.finish() if heads else b""
    if not following.in_chunks:
        return written + hide.feed(body)
    body = hide.feed(body) + (hide.finish() if following.is_whole else b"")
    if body:
        written += b"%x\r\n%s\r\n" % (len(body), body)
    if following.is_whole:
        lines = (hide.feed(b"%s: %s\r\n" % field) + hide.finish() for field in trailers)
        written += b"0\r\n%s\r\n" % b"".join(lines)
    return written


def _note(connection: EgressConnection, name: str, port: int, notes: tuple[str, ...]) -> None:
    for note in notes:
        connection.cell.ledger.note(name, port, "denied", note)


_MOST_PIECES = 256  # of a head
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # named in refusals


def in_clear(refused: EgressRefused) -> bytes:
    """Return a refusal as casemate's own HTTP answer, which ends the connection."""
    status = b"502 Bad Gateway" if isinstance(refused, Unreachable) else b"403 Forbidden"
    body = str(refused).encode() + b"\n"
    head = b"HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, len(body)) + body


async def read_request(
    connection: EgressConnection, reading: RequestReader, name: str, port: int
) -> HttpRequest | None:
    """Read the next request's head; None at the end. Raises :class:`EgressRefused` with ``name`` and ``port``."""
    client, time_share = connection.client, connection.cell.time_share
    if not client.ahead and not await client.fill():
        return None
    try:
        async with asyncio.timeout(connection.terms.limits.head_seconds):
            for _ in range(_MOST_PIECES):
                request = await time_share.run(reading.head, bytes(client.ahead[: MOST_HEAD + 4]))
                if request is not None:
                    client.take(request.size)
                    return request
                if not await client.fill():
                    raise BadRequest("it is cut off")
            raise BadRequest("it comes in too many pieces")
    except BadRequest as error:
        raise EgressRefused(name, port, f"its HTTP request is not accepted: {error}") from None


async def relay(
    connection: EgressConnection, name: str, port: int, server: TcpStream | None = None, *, is_tls: bool = False
) -> None:
    """Carry requests to one host until either side ends. Each is checked against the terms when it comes. ``server`` is
    an existing connection; with ``is_tls`` both sides use TLS."""
    connection.refuse = in_clear
    while True:
        reading = RequestReader()
        request = await read_request(connection, reading, name, port)
        if request is None:
            return
        await connection.permit(name, port)
        check_host(request, name, port, is_tls=is_tls)
        check_request(connection, request, name, port)
        server = server or await connection.dial(name, port)
        if not await _exchange(connection, request, reading, name, port, server, is_tls=is_tls):
            return
        await something_from(connection.client, server)
        if not connection.client.ahead and server.has_something():
            return


async def relay_any(connection: EgressConnection, reading: RequestReader, request: HttpRequest | None) -> None:
    """Carry requests to an explicit proxy. Each names its host by a URL, and may go to another host."""
    connection.refuse = in_clear
    at: tuple[str, int] | None = None
    server: TcpStream | None = None
    while request is not None:
        name, port = named_by_url(request)
        if connection.terms.intercepts(name, port) is not None:
            raise EgressRefused(name, port, "plain text where TLS is expected")
        await connection.permit(name, port)
        check_host(request, name, port)
        check_request(connection, request, name, port)
        if server is not None and (at != (name, port) or server.has_something()):
            connection.leave(server)
            server = None
        server, at = server or await connection.dial(name, port), (name, port)
        if not await _exchange(connection, request, reading, name, port, server):
            return
        reading = RequestReader()
        request = await read_request(connection, reading, "proxy", 0)


def named_by_url(request: HttpRequest) -> tuple[str, int]:
    """Return the host and port of a proxy request's URL. Raises :class:`EgressRefused`."""
    if request.url_host is None:
        raise EgressRefused(
            request.host, request.port or HTTP, "the request to the proxy names no host", "Write the whole URL."
        )
    port = request.url_port or HTTP
    return host_name(request.url_host, port), port


def host_name(written: str, port: int) -> str:
    """Return the canonical name. Raises :class:`EgressRefused` for an invalid name, and for any address."""
    name = canonical(written)
    if name is None:
        raise EgressRefused(written, port, "hosts are reached by name only", "No rule can allow an address.")
    return name


def check_host(request: HttpRequest, name: str, port: int, *, is_tls: bool = False) -> None:
    """Check that the request is for ``name`` and ``port`` wherever it names a host. Raises :class:`EgressRefused`."""
    usual = HTTPS if is_tls else HTTP
    if request.method == "CONNECT":
        raise EgressRefused(name, port, "CONNECT inside a connection to one host")
    said = [(request.host, request.port)]
    if request.url_host is not None:
        if is_tls:
            raise EgressRefused(name, port, "its HTTP request has a URL of http:// inside TLS")
        said.append((request.url_host, request.url_port))
    if any(canonical(host) != name or (number or usual) != port for host, number in said):
        raise EgressRefused(name, port, "its HTTP request names another host")


def check_request(connection: EgressConnection, request: HttpRequest, name: str, port: int) -> None:
    """Check the request against the rules for requests. Raises :class:`EgressRefused`."""
    what = request.method if request.method in _METHODS else "this method"
    if not connection.terms.requests.allows(name, port, request.method, request.path, request.fields):
        raise EgressRefused(name, port, f"no rule allows {what} there")


async def _exchange(
    connection: EgressConnection,
    request: HttpRequest,
    reading: RequestReader,
    name: str,
    port: int,
    server: TcpStream,
    *,
    is_tls: bool = False,
) -> bool:
    """Carry one request and its answer. Returns whether another may follow on the same connections."""
    asked = request.method, request.path, request.passed_on()
    fields = rewrite_fields(connection, name, port, *asked, is_tls=is_tls)
    rewrite, hide = connection.terms.rewrite, None
    if rewrite is not None:
        watch = rewrite.watch()
        reading.watch = lambda part: _note(connection, name, port, watch(part))
        hide = rewrite.hide(name) if is_tls and name in rewrite.hosts else None
    head = request.serialize(name if port == (HTTPS if is_tls else HTTP) else f"{name}:{port}", fields)
    following = AnswerReader(request, keeps_body=hide is not None)
    if request.length == 0:
        connection.count_out(len(head))
        await server.send(head)
        await _download(connection, following, server, hide)
        is_sent = True
    else:
        upload = _upload(connection, head, reading, server)
        is_sent = await _both_ways(upload, _download(connection, following, server, hide))
    if following.switches:
        await connection.tunnel(name, port, server, is_known=True)
    if not is_sent:
        await connection.farewell()
    return following.is_whole and is_sent and not following.closes and not request.closes


async def _both_ways(uploading: Coroutine[None, None, bool], downloading: Coroutine[None, None, None]) -> bool:
    """Send the request and receive the answer at once. Returns whether the request was sent before the answer ended."""
    try:
        async with asyncio.TaskGroup() as group:
            upload = group.create_task(uploading)
            await downloading
            is_sent = upload.done() and not upload.cancelled() and upload.exception() is None and upload.result()
            upload.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return is_sent


async def _upload(connection: EgressConnection, head: bytes, reading: RequestReader, server: TcpStream) -> bool:
    """Send a request's head and body. Returns False if the server stops reading; its answer then says why."""
    client, time_share = connection.client, connection.cell.time_share
    while True:
        data = client.take(reading.step(client.ahead))
        try:
            written, is_all, left = await time_share.run(reading.body, data)
        except BadRequest as error:
            raise OSError(str(error)) from None
        connection.count_out(len(head) + len(written))
        try:
            await server.send(head + written)
        except OSError:
            return False
        head = b""
        if is_all:
            client.ahead[:0] = left
            return True
        if not client.ahead and not await client.fill():
            raise ConnectionResetError("the request was cut off")


async def _download(
    connection: EgressConnection, following: AnswerReader, server: TcpStream, hide: BodyRedaction | None
) -> None:
    """Receive the answer, through ``hide`` if given. Raises ``OSError`` if it is cut off or invalid."""
    time_share = connection.cell.time_share
    while not (following.is_whole or following.switches):
        if not server.ahead and not await server.fill():
            raise ConnectionResetError("the answer was cut off")
        data = server.take()
        try:
            has_more = await time_share.run(following.feed, data)
            while has_more:
                has_more = await time_share.run(following.feed)
        except BadAnswer as error:
            raise OSError(str(error)) from None
        connection.count_in(len(data))
        await connection.client.send(data if hide is None else await time_share.run(redact_answer, following, hide))
        if following.plain or following.is_open:
            if hide is None:
                await _rest_of_body(connection, following, server)
            else:
                await _rest_hidden(connection, following, server, hide)
            break
    if hide is not None:
        await connection.client.send(hide.finish())


async def _rest_hidden(
    connection: EgressConnection, following: AnswerReader, server: TcpStream, hide: BodyRedaction
) -> None:
    left = following.plain
    while following.is_open or left:
        if not server.ahead and not await server.fill():
            break
        data = server.take(min(left or len(server.ahead), len(server.ahead)))
        left -= len(data) if left else 0
        connection.count_in(len(data))
        await connection.client.send(await connection.cell.time_share.run(hide.feed, data))
    if left:
        raise ConnectionResetError("the answer was cut off")
    following.is_whole = bool(following.plain)


async def _rest_of_body(connection: EgressConnection, following: AnswerReader, server: TcpStream) -> None:
    pump = connection.pump(server, connection.client, following.plain or None)
    try:
        moved = await pump.done
    finally:
        pump.stop()
    following.is_whole = bool(following.plain)
    if following.plain and moved < following.plain:
        raise ConnectionResetError("the answer was cut off")
