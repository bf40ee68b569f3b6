"""SOCKS5: CONNECT without credentials, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.egress import wire

NAMED = b"\5\1\0\3\x09good.test\x01\xbb"


def test_a_request_says_where() -> None:
    assert wire.read_socks_request(NAMED + b"more") == wire.SocksRequest("good.test", 443, False, len(NAMED))
    assert wire.read_socks_request(b"\5\1\0\1\xc6\x12\1\2\0\x50") == wire.SocksRequest("198.18.1.2", 80, True, 10)
    assert wire.read_socks_request(b"\5\1\0\4" + b"\0" * 15 + b"\1\0\x50") == wire.SocksRequest("::1", 80, True, 22)


def test_what_is_not_whole_needs_more() -> None:
    assert {wire.read_socks_request(NAMED[:count]) for count in range(len(NAMED))} == {None}
    assert {wire.read_socks_greeting(b"\5\2\2\0"[:count]) for count in range(4)} == {None}


@pytest.mark.parametrize("greeting", [b"\4\1\0\x50\x0a\0\0\1\0", b"\5\1\2", b"\5\0", b"GET /"])
def test_another_version_or_credentials_only_are_refused(greeting: bytes) -> None:
    with pytest.raises(wire.BadSocks):
        wire.read_socks_greeting(greeting)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"\5\2\0\1\x0a\0\0\1\0\x50", wire.COMMAND_NOT_SUPPORTED),
        (b"\5\3\0\1\x0a\0\0\1\0\x50", wire.COMMAND_NOT_SUPPORTED),
        (b"\5\1\0\2\x0a\0\0\1\0\x50", wire.ADDRESS_NOT_SUPPORTED),
        (b"\5\1\0\3\0\0\x50", wire.ADDRESS_NOT_SUPPORTED),
        (b"\4\1\0\1\x0a\0\0\1\0\x50", wire.FAILURE),
        (b"\5\1\1\1\x0a\0\0\1\0\x50", wire.FAILURE),
    ],
)
def test_other_requests_get_the_code_that_says_so(request_: bytes, code: int) -> None:
    with pytest.raises(wire.BadSocks) as caught:
        wire.read_socks_request(request_)
    assert caught.value.reply[:2] == bytes((5, code))


@given(st.binary(max_size=300), st.booleans())
def test_bytes_of_any_kind_are_understood_or_bad_or_too_few(data: bytes, is_request: bool) -> None:
    data = b"\5\1\0" + data if is_request else data
    try:
        wire.read_socks_greeting(data)
        wanted = wire.read_socks_request(data)
    except wire.BadSocks:
        return
    assert wanted is None or wanted.size <= len(data)
