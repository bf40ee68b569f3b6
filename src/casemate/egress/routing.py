"""How a connection reaches the egress proxy, and how it is carried: in a tunnel, read as HTTP, or intercepted.

A client connects to the address of a name, or to the explicit proxy. Interception ends the cell's TLS here with a
certificate of the sandbox's own authority, verifies the server's certificate, and reads each HTTP request.
"""

from __future__ import annotations

import asyncio
import ssl

from casemate.egress import wire
from casemate.egress.accounting import EgressRefused, Unreachable
from casemate.egress.connection import EgressConnection
from casemate.egress.http1 import HttpRequest, RequestReader
from casemate.egress.http1_relay import host_name, in_clear, read_request, relay, relay_any
from casemate.egress.stream import TcpStream, TlsStream
from casemate.egress.terms import Interception
from casemate.policy.hosts import HTTP, HTTPS, canonical

# Alerts (RFC 8446, section 6.2) of clients that reject the certificate, by OpenSSL's names.
_DISTRUST = frozenset(
    f"{version}_ALERT_{alert}"
    for version in ("TLSV1", "SSLV3", "TLSV13")
    for alert in ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED")
)
_NOT_ACCEPTED = "the client rejected the certificate of casemate's authority: it uses other certificates, or pins them"
_GONE = (
    "the client closed the connection right after the handshake: perhaps it rejected the certificate of "
    "casemate's authority"
)
_NOT_HTTP_1_1 = "the client does not offer HTTP/1.1, the only protocol for intercepted hosts"
_NOT_INTERCEPTED = "To use HTTP/2 or gRPC, do not list the host as intercept."


async def intercept(
    connection: EgressConnection, name: str, port: int, how: Interception, server: TcpStream | None = None
) -> None:
    """Carry a permitted connection to ``name`` at ``port`` in HTTP/1.1. ``server`` is an existing connection to it.
    Connects to the server first, so that the cell gets the reason of a failure. Raises :class:`EgressRefused`."""
    async with asyncio.timeout(connection.terms.limits.head_seconds):
        is_tls = await connection.starts_with_tls()
    if not is_tls:
        if connection.client.ahead:
            raise EgressRefused(name, port, "plain text where TLS is expected")
        return
    hello = await connection.check_hello(name, port, is_intercepted=True)
    if hello.protocols and wire.HTTP_1_1 not in hello.protocols:
        connection.refuse = lambda _: wire.NO_APPLICATION_PROTOCOL
        raise EgressRefused(name, port, _NOT_HTTP_1_1, _NOT_INTERCEPTED)
    secured: TlsStream | None = None
    problem: EgressRefused | None = None
    try:
        secured = await _server(connection, name, port, how.servers, server)
    except EgressRefused as refused:
        problem = refused
    await _client(connection, name, port, how.authority.context(name))
    connection.refuse = in_clear
    if problem is not None or secured is None:
        raise problem or Unreachable(name, port, "it does not answer")
    if not await _has_begun(connection):
        raise EgressRefused(name, port, _GONE)
    await relay(connection, name, port, secured, is_tls=True)


async def _server(
    connection: EgressConnection, name: str, port: int, context: ssl.SSLContext, server: TcpStream | None
) -> TlsStream:
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
    """Start TLS with the cell and set ``connection.client`` to it. Raises :class:`EgressRefused`."""
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
    try:
        return await connection.client.fill()
    except OSError:
        return False


_SOCKS = (4, 5)  # the first byte of each version
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def by_name(connection: EgressConnection, name: str, port: int) -> None:
    """Serve a client that connected to the address of ``name``."""
    if (service := connection.terms.service(name, port)) is not None:
        await connection.serve(service)
        return
    if _is_seen(connection, name, port):
        connection.refuse = in_clear
    await connection.permit(name, port)
    await _carry(connection, name, port)


async def by_proxy(connection: EgressConnection) -> None:
    """Serve a client of the explicit proxy: CONNECT, or a request with a whole URL."""
    async with asyncio.timeout(connection.terms.limits.head_seconds):
        if not await connection.client.fill():
            return
    connection.refuse = in_clear
    if connection.client.ahead[0] in _SOCKS:
        raise EgressRefused("proxy", 0, "it speaks HTTP, not SOCKS")
    reading = RequestReader()
    request = await read_request(connection, reading, "proxy", 0)
    if request is None or request.method != "CONNECT":
        await relay_any(connection, reading, request)
        return
    await _by_connect(connection, request)


async def _carry(connection: EgressConnection, name: str, port: int, server: TcpStream | None = None) -> None:
    """Carry a permitted connection: HTTP in clear is read, everything else goes through a tunnel."""
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
    """Whether requests in clear to it are read."""
    if connection.terms.intercepts(name, port) is not None:
        return False
    return port == HTTP or (port != HTTPS and connection.terms.requests.names(name, port))


async def _by_connect(connection: EgressConnection, request: HttpRequest) -> None:
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
