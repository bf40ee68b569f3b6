"""Messages of the DNS (RFC 1035), as much of them as a resolver needs that knows A records only. Pure, sans-io.

A query is parsed strictly: one question, class IN, no compression, nothing behind the question but additional records
(EDNS, RFC 6891), which are not read. An answer repeats the question byte for byte, as resolvers that mix the case of
letters expect.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

A, AAAA, ANY = 1, 28, 255
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED, REFUSED = range(6)
MOST_MESSAGE = 1232  # bytes: more than any query needs
_HEADER = struct.Struct("!HHHHHH")
_IN = 1
_MOST_LABEL, _MOST_NAME = 63, 255  # bytes (RFC 1035, section 2.3.4)
_RESPONSE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080


class MalformedQuery(ValueError):
    """Not a query that can be answered. ``answer`` is what to send instead, None for nothing at all."""

    def __init__(self, message: str, answer: bytes | None = None) -> None:
        super().__init__(message)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Query:
    """``name`` as it was asked for, its labels joined by dots, with ``?`` for each byte that no host name has."""

    id: int
    flags: int
    name: str
    kind: int
    question: bytes


def parse_query(message: bytes) -> Query:
    """The one question in ``message``. Raises :class:`MalformedQuery`."""
    if not _HEADER.size <= len(message) <= MOST_MESSAGE:
        raise MalformedQuery(f"{len(message)} bytes are no query")
    number, flags, questions, answers, authorities, _ = _HEADER.unpack_from(message)
    if flags & _RESPONSE:
        raise MalformedQuery("it is an answer")
    if flags >> 11 & 0xF:
        raise MalformedQuery("not a standard query", _bare(number, flags, NOT_IMPLEMENTED))
    wrong = _bare(number, flags, FORMAT_ERROR)
    if (questions, answers, authorities) != (1, 0, 0):
        raise MalformedQuery("not one question", wrong)
    labels: list[bytes] = []
    at = _HEADER.size
    while True:
        length = message[at] if at < len(message) else _MOST_LABEL + 1
        if length > _MOST_LABEL or at + 1 + length > len(message) or at - _HEADER.size + 1 + length > _MOST_NAME:
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
    return Query(number, flags, ".".join(_plain(label) for label in labels), kind, message[_HEADER.size : at + 4])


def answer(query: Query, code: int = NO_ERROR, address: str | None = None, ttl: int = 0) -> bytes:
    """The message that answers ``query`` with a response ``code``, and with ``address`` (IPv4) for ``ttl`` seconds."""
    records = b""
    if address is not None:
        # The name is the question's, which begins right behind the header.
        owner = 0xC000 | _HEADER.size
        records = struct.pack("!HHHIH", owner, A, _IN, ttl, 4) + ipaddress.IPv4Address(address).packed
    header = _HEADER.pack(query.id, _flags(query.flags, code), 1, int(bool(records)), 0, 0)
    return header + query.question + records


def _bare(number: int, flags: int, code: int) -> bytes:
    return _HEADER.pack(number, _flags(flags, code), 0, 0, 0, 0)


def _flags(asked: int, code: int) -> int:
    return _RESPONSE | asked & (0x7800 | _RECURSION_DESIRED) | _RECURSION_AVAILABLE | code


def _plain(label: bytes) -> str:
    """A label as text: a dot inside one, or any byte outside printable ASCII, must not pass for something else."""
    return "".join(chr(byte) if 0x21 <= byte <= 0x7E and byte != ord(".") else "?" for byte in label)
