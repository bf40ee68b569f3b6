"""Queries are parsed strictly; answers say what they should."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.egress import wire


def query(
    name: bytes = b"\4good\4test\0", kind: int = 1, class_: int = 1, flags: int = 0x100, counts: str = "1000"
) -> bytes:
    return struct.pack("!HHHHHH", 7, flags, *map(int, counts)) + name + struct.pack("!HH", kind, class_)


def test_a_query_says_its_name_as_it_was_written() -> None:
    asked = wire.parse_query(query(b"\4gOOd\4tESt\0", kind=28))
    assert (asked.name, asked.kind, asked.id) == ("gOOd.tESt", 28, 7)


def test_an_answer_repeats_the_question_and_holds_the_address() -> None:
    asked = query(b"\4gOOd\4tESt\0")
    said = wire.answer_query(wire.parse_query(asked), address="198.18.1.2", ttl=5)
    assert said[12 : len(asked)] == asked[12:]
    assert struct.unpack_from("!HHHHHH", said) == (7, 0x8180, 1, 1, 0, 0)
    assert struct.unpack_from("!HHHIH", said, len(asked)) == (0xC00C, 1, 1, 5, 4)
    assert socket.inet_ntoa(said[-4:]) == "198.18.1.2"


def test_an_answer_without_an_address_has_no_record() -> None:
    said = wire.answer_query(wire.parse_query(query()), wire.NO_SUCH_NAME)
    assert struct.unpack_from("!HHHHHH", said) == (7, 0x8183, 1, 0, 0, 0)


def test_additional_records_are_not_read() -> None:
    assert wire.parse_query(query(counts="1001") + b"\0\0\x29\x04\xd0\0\0\0\0\0\0").name == "good.test"


@pytest.mark.parametrize(
    ("label", "name"), [(b"\x09good.test\0", "good?test"), (b"\4go\0d\0", "go?d"), (b"\3\xc3\xa9x\0", "??x")]
)
def test_a_byte_that_no_host_name_has_passes_for_nothing_else(label: bytes, name: str) -> None:
    assert wire.parse_query(query(label)).name == name


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", None),
        (b"\0" * 11, None),
        (query(flags=0x8100), None),
        (b"\0" * 1300, None),
        (query(flags=0x2800), wire.NOT_IMPLEMENTED),
        (query(counts="2000"), wire.FORMAT_ERROR),
        (query(counts="0000"), wire.FORMAT_ERROR),
        (query(counts="1100"), wire.FORMAT_ERROR),
        (query(b"\xc0\x0c"), wire.FORMAT_ERROR),
        (query(b"\x40" + b"a" * 64 + b"\0"), wire.FORMAT_ERROR),
        (query((b"\x3f" + b"a" * 63) * 4 + b"\0"), wire.FORMAT_ERROR),
        (query()[:-1], wire.FORMAT_ERROR),
        (query()[:-6], wire.FORMAT_ERROR),
        (query(class_=3), wire.REFUSED),
    ],
)
def test_what_is_no_query_gets_an_error_or_nothing(message: bytes, code: int | None) -> None:
    with pytest.raises(wire.MalformedQuery) as caught:
        wire.parse_query(message)
    answer = caught.value.answer
    assert (None if answer is None else answer[3] & 0xF) == code


@given(st.binary(max_size=1300) | st.builds(lambda tail: query()[:12] + tail, st.binary(max_size=300)))
def test_bytes_of_any_kind_are_a_query_or_malformed(message: bytes) -> None:
    try:
        asked = wire.parse_query(message)
    except wire.MalformedQuery:
        return
    assert len(asked.question) <= 255 + 4
    assert asked.name.isascii()
    assert len(wire.answer_query(asked, address="198.18.1.2")) <= len(message) + 16
