"""What a cell without mounts is answered about names of its own."""

from __future__ import annotations

import struct

import pytest

from casemate.egress import wire
from casemate.supervisor.plain import names

A, AAAA, PTR, ANY = 1, 28, 12, 255
LOOPBACK, LOCALHOST = b"\x7f\0\0\1", b"\x09localhost\0"
SIX = ".".join(("1", *("0" * 31), "ip6", "arpa"))


def question(name: str, kind: int = A, flags: int = 0x0100, more: bytes = b"") -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    counts = (1, 0, 0, int(bool(more)))
    return struct.pack("!HHHHHH", 4711, flags, *counts) + labels + b"\0" + struct.pack("!HH", kind, 1) + more


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        ("localhost", A, LOOPBACK),
        ("LocalHost", A, LOOPBACK),
        ("localhost.corp.example", A, LOOPBACK),
        ("Machine", A, LOOPBACK),
        ("localhost", AAAA, b""),
        ("localhost", ANY, b""),
        ("1.0.0.127.in-addr.arpa", PTR, LOCALHOST),
        ("7.3.77.127.in-addr.arpa", PTR, LOCALHOST),
        (SIX, PTR, LOCALHOST),
        ("1.0.0.127.in-addr.arpa", A, b""),
    ],
)
@pytest.mark.parametrize("more", [b"", b"\0\0\x29\x10\0\0\0\0\0\0\0"], ids=["plain", "EDNS"])
def test_a_name_of_the_cells_own_leads_to_its_loopback(name: str, kind: int, data: bytes, more: bytes) -> None:
    asked = question(name, kind, more=more)
    answer = names.answer(asked, "machine")
    assert answer is not None
    number, flags, *counts = struct.unpack_from("!HHHHHH", answer)
    assert (number, flags, counts) == (4711, 0x8180, [1, int(bool(data)), 0, 0])
    repeated = wire.parse_query(asked).question
    record = struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(data)) + data if data else b""
    assert answer[12:] == repeated + record


@pytest.mark.parametrize(
    "message",
    [
        question("good.test"),
        question("localhosts"),
        question("notlocalhost"),
        question("a.localhost"),
        question("machine.corp.example"),
        question("1.0.0.128.in-addr.arpa", PTR),
        question("localhost", flags=0x8100),
        question("localhost", flags=0x2900),
        question("localhost")[:-1],
        question("localhost")[:4] + b"\0\2" + question("localhost")[6:],
        b"",
        b"\0" * 12,
        b"\0" * 17,
        b"\x09localhost\0",
    ],
)
def test_whatever_else_is_asked_is_nothing_of_the_cells_own(message: bytes) -> None:
    assert names.answer(message, "machine") is None


def test_where_no_server_answers_names_no_name_exists() -> None:
    asked = question("good.test")
    refused = names.refuse(asked)
    assert struct.unpack_from("!HHHHHH", refused) == (4711, 0x8100 | 0x80 | wire.NO_SUCH_NAME, 1, 0, 0, 0)
    assert refused[12:] == asked[12:]
    assert names.refuse(b"short") == b""
