"""How a connection reaches the egress proxy, and how it is carried: in a tunnel, read as HTTP, or intercepted.

A client connects to the address that stands for a name, or to the explicit proxy. Where TLS is intercepted, the cell's
ends here with a certificate of the sandbox's own authority, and the server's is verified here. What is said in between
is HTTP, read request by request.
"""

from __future__ import annotations

import asyncio
import ssl

from casemate.egress import wire
from casemate.egress.accounting import EgressRefused, Unreachable
from casemate.egress.connection import EgressConnection
from casemate.egress.http1 import RequestReader
from casemate.egress.http1_relay import host_name, in_clear, read_request, relay, relay_any
from casemate.egress.stream import TcpStream, TlsStream
from casemate.egress.terms import Interception
from casemate.policy.hosts import HTTP, HTTPS, canonical

_H2, _HTTP = "h2", "http/1.1"
# Alerts (RFC 8446, section 6.2) of clients that do not want the certificate, as OpenSSL calls them.
_DISTRUST = frozenset(
    f"{version}_ALERT_{alert}"
    for version in ("TLSV1", "SSLV3", "TLSV13")
    for alert in ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED")
)
_NOT_ACCEPTED = (
    "the client did not accept the certificate of casemate's authority: it has certificates of its own, or pins them"
)
_GONE = (
    "the client ended the connection right after the handshake: perhaps it did not accept the certificate of "
    "casemate's authority"
)


async def intercept(
    connection: EgressConnection, name: str, port: int, how: Interception, server: TcpStream | None = None
) -> None:
    """Carry a permitted connection to ``name`` at ``port``. ``server`` where there is a connection to it already.
    Raises :class:`EgressRefused`.

    The server is spoken to first, so that the cell is offered what the server chose, and hears why it is not there.
    """
    async with asyncio.timeout(connection.terms.limits.head_seconds):
        is_tls = await connection.starts_with_tls()
    if not is_tls:
        if connection.client.ahead:
            raise EgressRefused(name, port, "plain text where TLS is expected")
        return
    hello = await connection.check_hello(name, port, is_intercepted=True)
    secured: TlsStream | None = None
    problem: EgressRefused | None = None
    try:
        secured = await _server(connection, name, port, how.servers[_H2.encode() in hello.protocols], server)
    except EgressRefused as refused:
        problem = refused
    protocol = _H2 if secured is not None and secured.protocol == _H2 else _HTTP
    await _client(connection, name, port, how.authority.context(name, protocol))
    connection.refuse = in_clear
    if problem is not None or secured is None:
        raise problem or Unreachable(name, port, "it does not answer")
    if not await _has_begun(connection):
        raise EgressRefused(name, port, _GONE)
    if protocol == _H2:
        from casemate.egress.http2_relay import relay_h2  # loads h2, which not every sandbox needs

        connection.refuse = None
        await relay_h2(connection, name, port, secured)
    else:
        await relay(connection, name, port, secured, is_tls=True)


async def _server(
    connection: EgressConnection, name: str, port: int, context: ssl.SSLContext, server: TcpStream | None
) -> TlsStream:
    """TLS with the server. Raises :class:`EgressRefused`, :class:`Unreachable`."""
    secured = TlsStream(server or await connection.dial(name, port), context, name)
    try:
        async with asyncio.timeout(connection.terms.limits.connect_seconds):
            await secured.handshake(connection.cell.time_share)
    except TimeoutError:
        raise Unreachable(name, port, "its TLS handshake does not end") from None
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(name, port, f"its certificate is not accepted: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise Unreachable(name, port, f"its TLS handshake failed: {error.reason or 'it ended'}") from None
    except OSError:
        raise Unreachable(name, port, "its TLS handshake failed: it ended the connection") from None
    return secured


async def _client(connection: EgressConnection, name: str, port: int, context: ssl.SSLContext) -> None:
    """TLS with the cell, which ``connection.client`` is then. Raises :class:`EgressRefused`."""
    client = TlsStream(connection.client, context, None)
    try:
        async with asyncio.timeout(connection.terms.limits.head_seconds):
            await client.handshake(connection.cell.time_share)
    except TimeoutError:
        raise EgressRefused(name, port, "its TLS handshake does not end") from None
    except ssl.SSLError as error:
        does_not_trust = error.reason in _DISTRUST or isinstance(error, ssl.SSLEOFError)
        reason = _NOT_ACCEPTED if does_not_trust else f"its TLS handshake failed: {error.reason}"
        raise EgressRefused(name, port, reason) from None
    except OSError:
        raise EgressRefused(name, port, _NOT_ACCEPTED) from None
    connection.client = client


async def _has_begun(connection: EgressConnection) -> bool:
    """Whether the client says something after the handshake."""
    try:
        return await connection.client.fill()
    except OSError:
        return False


_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_MOST_PIECES = 16  # that a message of SOCKS may come in


async def by_name(connection: EgressConnection, name: str, port: int) -> None:
    """A client that connected to the address of ``name``."""
    if (service := connection.terms.service(name, port)) is not None:
        await connection.serve(service)
        return
    if _is_seen(connection, name, port):
        connection.refuse = in_clear
    await connection.permit(name, port)
    await _carry(connection, name, port)


async def by_proxy(connection: EgressConnection) -> None:
    """A client of the proxy: SOCKS5, CONNECT, or a request with a whole URL, told apart by the first byte."""
    async with asyncio.timeout(connection.terms.limits.head_seconds):
        if not await connection.client.fill():
            return
    if connection.client.ahead[0] == wire.SOCKS_VERSION:
        await _by_socks(connection)
    else:
        await _by_http(connection)


async def _carry(connection: EgressConnection, name: str, port: int, server: TcpStream | None = None) -> None:
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


def _is_seen(connection: EgressConnection, name: str, port: int) -> bool:
    """Whether requests to it, if they come in clear, are read."""
    if connection.terms.intercepts(name, port) is not None:
        return False
    return port == HTTP or (port != HTTPS and connection.terms.requests.names(name, port))


async def _by_http(connection: EgressConnection) -> None:
    connection.refuse = in_clear
    reading = RequestReader()
    request = await read_request(connection, reading, "proxy", 0)
    if request is None or request.method != "CONNECT":
        await relay_any(connection, reading, request)
        return
    if request.url_host is None or request.url_port is None or request.length:
        raise EgressRefused(request.url_host or "proxy", 0, "CONNECT needs a host and a port, and nothing else")
    port = request.url_port
    name = host_name(request.url_host, port)
    if canonical(request.host) != name or request.port not in (None, port):
        raise EgressRefused(name, port, "CONNECT and Host name different hosts")
    await connection.permit(name, port)
    server = await connection.dial(name, port)
    await connection.client.send(_ESTABLISHED)
    await _carry(connection, name, port, server)


async def _by_socks(connection: EgressConnection) -> None:
    try:
        async with asyncio.timeout(connection.terms.limits.head_seconds):
            wanted = await _read_socks_request(connection)
    except wire.BadSocks as error:
        last_words = error.reply
        connection.refuse = lambda _: last_words
        raise EgressRefused("proxy", 0, f"its SOCKS request is not accepted: {error}") from None
    connection.refuse = _in_socks
    port = wanted.port
    if not port:
        raise EgressRefused(wanted.host, 0, "there is no port 0")
    known = connection.cell.name_at(wanted.host) if wanted.is_address else None
    name = known or host_name(wanted.host, port)
    await connection.permit(name, port)
    server = await connection.dial(name, port)
    await connection.client.send(wire.socks_reply(wire.SUCCEEDED))
    await _carry(connection, name, port, server)


async def _read_socks_request(connection: EgressConnection) -> wire.SocksRequest:
    """What a client of SOCKS5 wants, once it has said so. Raises :class:`wire.BadSocks`."""
    client = connection.client
    is_greeted = False
    for _ in range(_MOST_PIECES):
        if not is_greeted and (size := wire.read_socks_greeting(bytes(client.ahead))) is not None:
            client.take(size)
            is_greeted = True
            await client.send(wire.SOCKS_ACCEPTED)
        if is_greeted and (wanted := wire.read_socks_request(bytes(client.ahead[:512]))) is not None:
            client.take(wanted.size)
            return wanted
        if not await client.fill():
            break
    raise wire.BadSocks("it is cut off, or in too many pieces")


def _in_socks(refused: EgressRefused) -> bytes:
    return wire.socks_reply(wire.HOST_UNREACHABLE if isinstance(refused, Unreachable) else wire.NOT_ALLOWED)
