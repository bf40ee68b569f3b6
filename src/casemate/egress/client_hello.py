"""The server's name in a TLS ClientHello (RFC 8446, section 4.1.2; RFC 6066, section 3). Pure, sans-io.

Whatever a server and this parser might read differently is refused: two names, an extension twice, bytes left over.
With Encrypted ClientHello the name seen is the outer one, which is the one of the provider.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_HELLO = 1 << 15  # bytes: post-quantum key shares and long lists of tickets fit several times
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME, _ALPN = 22, 1, 0, 0, 16
_RECORD_HEADER, _MESSAGE_HEADER, _MOST_RECORD = 5, 4, 1 << 14
_MOST_RECORDS = 64  # that it may be spread over: each is looked at whenever more has come


class BadHello(ValueError):
    """Not a ClientHello, or one that could be read in two ways."""


@dataclass(frozen=True, slots=True)
class Hello:
    """``name`` is the server's, as written; None where there is none. ``protocols``: what the client would speak (ALPN,
    RFC 7301)."""

    name: str | None
    protocols: tuple[bytes, ...] = ()


def looks_like_tls(data: bytes) -> bool | None:
    """Whether a connection that begins with ``data`` begins with a TLS handshake; None if two bytes are not there."""
    if data[:1] and data[0] != _HANDSHAKE:
        return False
    return data[1] == 3 if len(data) > 1 else None


def read_hello(data: bytes) -> Hello | None:
    """The ClientHello at the beginning of ``data``; None if there has to come more. Raises :class:`BadHello`.

    The message may be spread over 64 records, and these over any number of segments.
    """
    message = _message(data)
    if message is None:
        return None
    body = _HelloReader(message)
    body.skip(2 + 32)  # version, random
    body.vector(1)  # session
    body.vector(2)  # cipher suites
    body.vector(1)  # compression methods
    if not body.bytes_left():
        return Hello(None)
    extensions = _HelloReader(body.vector(2))
    body.finish()
    name: str | None = None
    protocols: tuple[bytes, ...] = ()
    seen: set[int] = set()
    while extensions.bytes_left():
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind in seen:
            raise BadHello("an extension comes twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(content)
        elif kind == _ALPN:
            protocols = _protocols(content)
    return Hello(name, protocols)


def _message(data: bytes) -> bytes | None:
    """The body of the handshake message that the records at the beginning of ``data`` hold; None if it is not whole."""
    message = bytearray()
    at = 0
    for _ in range(_MOST_RECORDS):
        header = data[at : at + _RECORD_HEADER]
        if (header[:1] and header[0] != _HANDSHAKE) or (len(header) > 1 and header[1] != 3):
            raise BadHello("not a record of a TLS handshake")
        if len(header) < _RECORD_HEADER:
            return None
        length = int.from_bytes(header[3:])
        if not 0 < length <= _MOST_RECORD:
            raise BadHello(f"a record of {length} bytes")
        at += _RECORD_HEADER
        message += data[at : at + length]
        at += length
        if message[0:1] and message[0] != _CLIENT_HELLO:
            raise BadHello("the first message is no ClientHello")
        whole = _MESSAGE_HEADER + int.from_bytes(message[1:4]) if len(message) >= _MESSAGE_HEADER else 0
        if whole > MOST_HELLO:
            raise BadHello(f"a ClientHello of {whole} bytes")
        if whole and len(message) >= whole:
            if len(message) > whole or at > len(data):
                raise BadHello("something follows the ClientHello in its record")
            return bytes(message[_MESSAGE_HEADER:])
        if at > len(data):
            return None
    raise BadHello(f"it is spread over more than {_MOST_RECORDS} records")


def _server_name(content: bytes) -> str:
    extension = _HelloReader(content)
    names = _HelloReader(extension.vector(2))
    extension.finish()
    if names.number(1) != _HOST_NAME:
        raise BadHello("a server name of an unknown kind")
    name = names.vector(2)
    names.finish()
    if not name or any(not 0x21 <= byte <= 0x7E for byte in name):
        raise BadHello("a server name that is none")
    return name.decode("ascii")


def _protocols(content: bytes) -> tuple[bytes, ...]:
    extension = _HelloReader(content)
    names = _HelloReader(extension.vector(2))
    extension.finish()
    found = []
    while names.bytes_left():
        found.append(names.vector(1))
    return tuple(found)


class _HelloReader:
    """Bytes taken from the front; asking for more than there are is a :class:`BadHello`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes_left(self) -> int:
        return len(self._data) - self._at

    def skip(self, count: int) -> bytes:
        if count > self.bytes_left():
            raise BadHello("a length goes beyond the end")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.skip(width))

    def vector(self, width: int) -> bytes:
        """As many bytes as the number of ``width`` bytes before them says."""
        return self.skip(self.number(width))

    def finish(self) -> None:
        if self.bytes_left():
            raise BadHello("bytes are left over")
