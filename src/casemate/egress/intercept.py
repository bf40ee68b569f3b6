"""TLS that ends at the door: the cell's with a certificate of the sandbox's own authority, the server's verified by the
door. What is said in between is HTTP, read request by request."""

from __future__ import annotations

import asyncio
import ssl

from casemate.egress.connection import Connection
from casemate.egress.refusal import Refused, Unreachable
from casemate.egress.relay import in_clear, relay
from casemate.egress.secured import Secured
from casemate.egress.stream import Stream
from casemate.egress.terms import Interception

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
    connection: Connection, name: str, port: int, how: Interception, server: Stream | None = None
) -> None:
    """Carry a permitted connection to ``name`` at ``port``. ``server`` where there is a connection to it already.
    Raises :class:`Refused`.

    The server is spoken to first, so that the cell is offered what the server chose, and hears why it is not there.
    """
    async with asyncio.timeout(connection.terms.limits.head_seconds):
        is_tls = await connection.starts_with_tls()
    if not is_tls:
        if connection.client.ahead:
            raise Refused(name, port, "plain text where TLS is expected")
        return
    hello = await connection.check_hello(name, port, is_intercepted=True)
    secured: Secured | None = None
    problem: Refused | None = None
    try:
        secured = await _server(connection, name, port, how.servers[_H2.encode() in hello.protocols], server)
    except Refused as refused:
        problem = refused
    protocol = _H2 if secured is not None and secured.protocol == _H2 else _HTTP
    await _client(connection, name, port, how.authority.context(name, protocol))
    connection.refuse = in_clear
    if problem is not None or secured is None:
        raise problem or Unreachable(name, port, "it does not answer")
    if not await _has_begun(connection):
        raise Refused(name, port, _GONE)
    if protocol == _H2:
        from casemate.egress.relay_h2 import relay_h2  # loads h2, which not every sandbox needs

        connection.refuse = None
        await relay_h2(connection, name, port, secured)
    else:
        await relay(connection, name, port, secured, is_tls=True)


async def _server(
    connection: Connection, name: str, port: int, context: ssl.SSLContext, server: Stream | None
) -> Secured:
    """TLS with the server. Raises :class:`Refused`, :class:`Unreachable`."""
    secured = Secured(server or await connection.dial(name, port), context, name)
    try:
        async with asyncio.timeout(connection.terms.limits.connect_seconds):
            await secured.handshake(connection.opening.turns)
    except TimeoutError:
        raise Unreachable(name, port, "its TLS handshake does not end") from None
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(name, port, f"its certificate is not accepted: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise Unreachable(name, port, f"its TLS handshake failed: {error.reason or 'it ended'}") from None
    except OSError:
        raise Unreachable(name, port, "its TLS handshake failed: it ended the connection") from None
    return secured


async def _client(connection: Connection, name: str, port: int, context: ssl.SSLContext) -> None:
    """TLS with the cell, which ``connection.client`` is then. Raises :class:`Refused`."""
    client = Secured(connection.client, context, None)
    try:
        async with asyncio.timeout(connection.terms.limits.head_seconds):
            await client.handshake(connection.opening.turns)
    except TimeoutError:
        raise Refused(name, port, "its TLS handshake does not end") from None
    except ssl.SSLError as error:
        does_not_trust = error.reason in _DISTRUST or isinstance(error, ssl.SSLEOFError)
        reason = _NOT_ACCEPTED if does_not_trust else f"its TLS handshake failed: {error.reason}"
        raise Refused(name, port, reason) from None
    except OSError:
        raise Refused(name, port, _NOT_ACCEPTED) from None
    connection.client = client


async def _has_begun(connection: Connection) -> bool:
    """Whether the client says something after the handshake."""
    try:
        return await connection.client.fill()
    except OSError:
        return False
