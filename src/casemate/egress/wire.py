"""The first bytes of clients, parsed strictly: DNS queries and TLS's ClientHello. Pure, sans-io.

DNS (RFC 1035), as far as a resolver for A records needs it. A query has one question of class IN without compression;
only additional records (EDNS, RFC 6891) may follow, and are ignored. An answer repeats the question byte for byte, as
resolvers that randomize the case of letters require.

ClientHello (RFC 8446, section 4.1.2) with the server's name (RFC 6066, section 3). The parser refuses everything that a
server might parse differently: two names, a repeated extension, trailing bytes. With Encrypted ClientHello it sees the
outer name, which names the provider.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

HTTP_1_1 = b"http/1.1"  # in ALPN
NO_APPLICATION_PROTOCOL = b"\x15\3\3\0\2\2\x78"  # a fatal alert, as a record (RFC 7301, section 3.2)
MOST_HELLO = 1 << 15  # bytes; several times what post-quantum key shares and long ticket lists need
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME, _ALPN = 22, 1, 0, 0, 16
_RECORD_HEADER, _MESSAGE_HEADER, _MOST_RECORD = 5, 4, 1 << 14
_MOST_RECORDS = 64  # records of one ClientHello; all are parsed again when more bytes come


class BadHello(ValueError):
    """The ClientHello is invalid or ambiguous."""


@dataclass(frozen=True, slots=True)
class Hello:
    name: str | None  # of the server, as written
    protocols: tuple[bytes, ...] = ()  # offered by ALPN (RFC 7301)


def looks_like_tls(data: bytes) -> bool | None:
    """Whether ``data`` starts a TLS handshake; None with less than two bytes."""
    if data[:1] and data[0] != _HANDSHAKE:
        return False
    return data[1] == 3 if len(data) > 1 else None


def read_hello(data: bytes) -> Hello | None:
    """Parse the ClientHello at the start of ``data``; None if it is incomplete. Raises :class:`BadHello`.
    The ClientHello may span up to 64 records, and the records may span any number of TCP segments."""
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
    """Return the body of the handshake message in the records of ``data``; None if it is incomplete."""
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
            raise BadHello("the first message is not a ClientHello")
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
        raise BadHello("an invalid server name")
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
    """Takes bytes from the front. Taking more than are left raises :class:`BadHello`."""

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
        """Take a field with a length prefix of ``width`` bytes."""
        return self.skip(self.number(width))

    def finish(self) -> None:
        if self.bytes_left():
            raise BadHello("bytes are left over")


A, AAAA, ANY = 1, 28, 255
DNS_OK, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED, REFUSED = range(6)
MOST_MESSAGE = 1232  # bytes: more than any query needs
_DNS_HEADER = struct.Struct("!HHHHHH")
_IN = 1
_MOST_LABEL, _MOST_NAME = 63, 255  # bytes (RFC 1035, section 2.3.4)
_RESPONSE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080


class MalformedQuery(ValueError):
    """The query cannot be answered. ``answer`` is the message to send instead, or None."""

    def __init__(self, message: str, answer: bytes | None = None) -> None:
        super().__init__(message)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Query:
    id: int
    flags: int
    name: str  # labels joined by dots, with ``?`` for each byte that no host name contains
    kind: int
    question: bytes


def parse_query(message: bytes) -> Query:
    """Parse the one question in ``message``. Raises :class:`MalformedQuery`."""
    if not _DNS_HEADER.size <= len(message) <= MOST_MESSAGE:
        raise MalformedQuery(f"{len(message)} bytes are not a query")
    number, flags, questions, answers, authorities, _ = _DNS_HEADER.unpack_from(message)
    if flags & _RESPONSE:
        raise MalformedQuery("it is an answer")
    if flags >> 11 & 0xF:
        raise MalformedQuery("not a standard query", _bare(number, flags, NOT_IMPLEMENTED))
    wrong = _bare(number, flags, FORMAT_ERROR)
    if (questions, answers, authorities) != (1, 0, 0):
        raise MalformedQuery("not one question", wrong)
    labels: list[bytes] = []
    at = _DNS_HEADER.size
    while True:
        length = message[at] if at < len(message) else _MOST_LABEL + 1
        if length > _MOST_LABEL or at + 1 + length > len(message) or at - _DNS_HEADER.size + 1 + length > _MOST_NAME:
            raise MalformedQuery("the name is cut off, compressed or too long", wrong)
        at += 1 + length
        if not length:
            break
        labels.append(message[at - length : at])
    if at + 4 > len(message):
        raise MalformedQuery("the question is cut off", wrong)
    kind, class_ = struct.unpack_from("!HH", message, at)
    if class_ != _IN:
        raise MalformedQuery("not of the internet class", _bare(number, flags, REFUSED))
    return Query(
        number, flags, ".".join(_label_text(label) for label in labels), kind, message[_DNS_HEADER.size : at + 4]
    )


def answer_query(query: Query, code: int = DNS_OK, address: str | None = None, ttl: int = 0) -> bytes:
    """Return an answer to ``query`` with a response ``code``, and with ``address`` (IPv4) for ``ttl`` seconds."""
    records = b""
    if address is not None:
        # A pointer to the question's name, right after the header.
        owner = 0xC000 | _DNS_HEADER.size
        records = struct.pack("!HHHIH", owner, A, _IN, ttl, 4) + ipaddress.IPv4Address(address).packed
    header = _DNS_HEADER.pack(query.id, _flags(query.flags, code), 1, int(bool(records)), 0, 0)
    return header + query.question + records


def _bare(number: int, flags: int, code: int) -> bytes:
    return _DNS_HEADER.pack(number, _flags(flags, code), 0, 0, 0, 0)


def _flags(asked: int, code: int) -> int:
    return _RESPONSE | asked & (0x7800 | _RECURSION_DESIRED) | _RECURSION_AVAILABLE | code


def _label_text(label: bytes) -> str:
    """A label as text. Dots inside it and bytes outside printable ASCII become ``?``: no label can mimic another."""
    return "".join(chr(byte) if 0x21 <= byte <= 0x7E and byte != ord(".") else "?" for byte in label)
