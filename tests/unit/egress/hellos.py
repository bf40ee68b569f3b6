"""ClientHellos, well made and not."""

from __future__ import annotations

import ssl


def real(name: str | None, context: ssl.SSLContext | None = None) -> bytes:
    """The first flight of OpenSSL."""
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server")


def vector(width: int, content: bytes) -> bytes:
    return len(content).to_bytes(width) + content


def names(*said: bytes, kind: int = 0) -> bytes:
    """The content of a server_name extension."""
    return vector(2, b"".join(bytes([kind]) + vector(2, name) for name in said))


def message(*extensions: tuple[int, bytes], tail: bytes = b"") -> bytes:
    """A ClientHello as a handshake message."""
    listed = b"".join(kind.to_bytes(2) + vector(2, content) for kind, content in extensions)
    body = b"\3\3" + b"r" * 32 + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\0") + vector(2, listed) + tail
    return b"\1" + vector(3, body)


def records(handshake: bytes, size: int = 1 << 14) -> bytes:
    """The message in records of ``size`` bytes."""
    parts = [handshake[at : at + size] for at in range(0, len(handshake), size)]
    return b"".join(b"\x16\3\1" + vector(2, part) for part in parts)
