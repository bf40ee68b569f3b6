"""The name in a ClientHello: found however it comes, and refused where it could be read in two ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.egress.hellos import message, names, real, records, vector

from casemate.egress.wire import BadHello, Hello, looks_like_tls, read_hello

GOOD = message((0, names(b"good.test")))


def test_the_name_in_the_hello_of_a_real_client_is_found() -> None:
    assert read_hello(real("good.test")) == Hello("good.test")


def test_what_a_client_would_speak_is_found_in_order() -> None:
    offered = (16, vector(2, vector(1, b"h2") + vector(1, b"http/1.1")))
    assert read_hello(records(message((0, names(b"good.test")), offered))) == Hello("good.test", (b"h2", b"http/1.1"))
    with pytest.raises(BadHello):
        read_hello(records(message((0, names(b"good.test")), (16, vector(2, b"\5h2")))))


def test_a_real_client_that_names_nobody_is_understood() -> None:
    assert read_hello(real(None)) == Hello(None)


@pytest.mark.parametrize("size", [2, 3, 5, 40, 1 << 14])
def test_a_hello_may_be_spread_over_records(size: int) -> None:
    assert read_hello(records(GOOD, size)) == Hello("good.test")


def test_a_hello_in_more_records_than_any_client_makes_is_refused_before_it_is_whole() -> None:
    assert read_hello(records(GOOD, 1)[: 64 * 6 - 1]) is None
    with pytest.raises(BadHello, match="more than 64 records"):
        read_hello(records(GOOD, 1)[: 64 * 6])


def test_a_hello_that_is_not_whole_needs_more() -> None:
    whole = records(GOOD, 50)
    assert {read_hello(whole[:count]) for count in range(len(whole))} == {None}


def test_what_follows_in_other_records_is_left_alone() -> None:
    assert read_hello(records(GOOD) + b"\x17\3\3\0\5early") == Hello("good.test")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x2e\x01\0\2",
        b"\x16\2\0\0\5hello",
        b"\x16\3\1\0\0",
        b"\x16\3\1\x40\1",
        records(b"\2" + GOOD[1:]),
        b"\x16\3\1\0\4\1\xff\xff\xff",
        records(GOOD + b"\1"),
        records(message((0, names(b"good.test")), tail=b"x")),
        records(message((0, names(b"good.test", b"evil.test")))),
        records(message((0, names(b"good.test")), (0, names(b"evil.test")))),
        records(message((16, b""), (16, b""))),
        records(message((0, names(b"")))),
        records(message((0, b""))),
        records(message((0, names(b"good.test") + b"x"))),
        records(message((0, names(b"good.test", kind=1)))),
        records(message((0, names(b"good.test\0.evil.test")))),
        records(message((0, names("g\u043eod.test".encode())))),
        records(b"\1" + vector(3, b"\3\3" + b"r" * 32 + b"\xff")),
        records(GOOD, 60)[:65] + b"\x17\3\1\0\1x",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(BadHello):
        read_hello(data)


@pytest.mark.parametrize(
    ("data", "is_tls"),
    [(b"", None), (b"\x16", None), (b"\x16\3", True), (b"\x16\x02", False), (b"S", False), (b"\x80\x2e", False)],
)
def test_two_bytes_tell_a_tls_handshake(data: bytes, is_tls: bool | None) -> None:
    assert looks_like_tls(data) is is_tls


@given(
    st.binary(max_size=400)
    | st.builds(
        lambda at, byte: GOOD[:at] + byte + GOOD[at + 1 :], st.integers(4, 80), st.binary(min_size=1, max_size=1)
    ).map(records)
)
def test_bytes_of_any_kind_are_a_hello_or_bad_or_too_few(data: bytes) -> None:
    try:
        hello = read_hello(data)
    except BadHello:
        return
    assert hello is None or hello.name is None or hello.name.isascii()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_records_of_any_sizes_hold_the_same_hello(sizes: list[int]) -> None:
    data, rest = b"", GOOD
    for size in sizes:
        data, rest = data + (records(rest[:size]) if rest else b""), rest[size:]
    assert read_hello(data + (records(rest) if rest else b"")) == Hello("good.test")
