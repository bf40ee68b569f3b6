"""The two ways into the door: at the address that stands for a name, and through the explicit proxy."""

from __future__ import annotations

import asyncio

from casemate.egress import socks
from casemate.egress.connection import Connection
from casemate.egress.http import Reading
from casemate.egress.intercept import intercept
from casemate.egress.refusal import Refused, Unreachable
from casemate.egress.relay import host_name, in_clear, read_request, relay, relay_any
from casemate.egress.stream import Stream
from casemate.policy.hosts import HTTP, HTTPS, canonical

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_MOST_PIECES = 16  # that a message of SOCKS may come in


async def by_name(connection: Connection, name: str, port: int) -> None:
    """A client that connected to the address of ``name``."""
    if (service := connection.terms.service(name, port)) is not None:
        await connection.serve(service)
        return
    if _is_seen(connection, name, port):
        connection.refuse = in_clear
    await connection.permit(name, port)
    await _carry(connection, name, port)


async def by_proxy(connection: Connection) -> None:
    """A client of the proxy: SOCKS5, CONNECT, or a request with a whole URL, told apart by the first byte."""
    async with asyncio.timeout(connection.terms.limits.head_seconds):
        if not await connection.client.fill():
            return
    if connection.client.ahead[0] == socks.VERSION:
        await _by_socks(connection)
    else:
        await _by_http(connection)


async def _carry(connection: Connection, name: str, port: int, server: Stream | None = None) -> None:
    """What was permitted: HTTP in clear is read, everything else goes through a tunnel."""
    connection.refuse = None
    how = connection.terms.intercepts(name, port)
    if how is not None:
        await intercept(connection, name, port, how, server)
        return
    if _is_seen(connection, name, port):
        async with asyncio.timeout(connection.terms.limits.head_seconds):
            is_tls = await connection.starts_with_tls()
        if not is_tls:
            await relay(connection, name, port, server)
            return
    await connection.tunnel(name, port, server or await connection.dial(name, port))


def _is_seen(connection: Connection, name: str, port: int) -> bool:
    """Whether requests to it, if they come in clear, are read."""
    if connection.terms.intercepts(name, port) is not None:
        return False
    return port == HTTP or (port != HTTPS and connection.terms.requests.names(name, port))


async def _by_http(connection: Connection) -> None:
    connection.refuse = in_clear
    reading = Reading()
    request = await read_request(connection, reading, "proxy", 0)
    if request is None or request.method != "CONNECT":
        await relay_any(connection, reading, request)
        return
    if request.url_host is None or request.url_port is None or request.length:
        raise Refused(request.url_host or "proxy", 0, "CONNECT needs a host and a port, and nothing else")
    port = request.url_port
    name = host_name(request.url_host, port)
    if canonical(request.host) != name or request.port not in (None, port):
        raise Refused(name, port, "CONNECT and Host name different hosts")
    await connection.permit(name, port)
    server = await connection.dial(name, port)
    await connection.client.send(_ESTABLISHED)
    await _carry(connection, name, port, server)


async def _by_socks(connection: Connection) -> None:
    try:
        async with asyncio.timeout(connection.terms.limits.head_seconds):
            wanted = await _wanted(connection)
    except socks.BadSocks as error:
        last_words = error.reply
        connection.refuse = lambda _: last_words
        raise Refused("proxy", 0, f"its SOCKS request is not accepted: {error}") from None
    connection.refuse = _in_socks
    port = wanted.port
    if not port:
        raise Refused(wanted.host, 0, "there is no port 0")
    known = connection.opening.name_at(wanted.host) if wanted.is_address else None
    name = known or host_name(wanted.host, port)
    await connection.permit(name, port)
    server = await connection.dial(name, port)
    await connection.client.send(socks.reply(socks.SUCCEEDED))
    await _carry(connection, name, port, server)


async def _wanted(connection: Connection) -> socks.Wanted:
    """What a client of SOCKS5 wants, once it has said so. Raises :class:`socks.BadSocks`."""
    client = connection.client
    is_greeted = False
    for _ in range(_MOST_PIECES):
        if not is_greeted and (size := socks.read_greeting(bytes(client.ahead))) is not None:
            client.taken(size)
            is_greeted = True
            await client.send(socks.ACCEPTED)
        if is_greeted and (wanted := socks.read_request(bytes(client.ahead[:512]))) is not None:
            client.taken(wanted.size)
            return wanted
        if not await client.fill():
            break
    raise socks.BadSocks("it is cut off, or in too many pieces")


def _in_socks(refused: Refused) -> bytes:
    return socks.reply(socks.HOST_UNREACHABLE if isinstance(refused, Unreachable) else socks.NOT_ALLOWED)
