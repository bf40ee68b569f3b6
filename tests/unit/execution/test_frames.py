"""Frames of a program: what is understood, and that nothing hostile raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.execution.frames import ErrorFrame, parse
from casemate.model.execution import Result

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(["type", "bundle", "name", "value", "traceback", "errno"])
messages = st.dictionaries(keys, json_values | st.sampled_from(["display", "error"]), max_size=6)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_nothing(data: bytes) -> None:
    assert parse(data) is None or isinstance(parse(data), Result | ErrorFrame)


@given(messages)
def test_any_message_is_understood_or_nothing(message: dict[str, Any]) -> None:
    found = parse(json.dumps(message).encode())
    if isinstance(found, ErrorFrame):
        assert message["type"] == "error"
        assert (found.error.name + found.error.value + found.error.traceback).encode()
        assert found.errno is None or isinstance(found.errno, int)
    elif isinstance(found, Result):
        assert message["type"] == "display"
        assert len(found) > 0


def test_a_display_is_a_result() -> None:
    found = parse(b'{"type": "display", "bundle": {"text/plain": "x", "application/json": [1]}}')
    assert isinstance(found, Result)
    assert dict(found) == {"text/plain": "x", "application/json": [1]}


def test_an_error_is_bounded_and_keeps_the_end_of_its_traceback() -> None:
    said = {"type": "error", "name": "N" * 1000, "value": "v", "traceback": "a" * (1 << 20) + "end", "errno": 28}
    found = parse(json.dumps(said).encode())
    assert isinstance(found, ErrorFrame)
    assert (len(found.error.name), found.error.traceback[-3:], found.errno) == (256, "end", 28)


TOO_MANY = json.dumps({"type": "display", "bundle": {f"a/{n}": "" for n in range(99)}}).encode()


@pytest.mark.parametrize("frame", [b"", b"{", b"[]", b"1" * 100_000, b"[" * 100_000, b"{}", b'{"type": "unknown"}',
                                   b'{"type": NaN}', b'{"type": "error"}', b"\xff", b'{"type": ["display"]}',
                                   TOO_MANY],
                         ids=lambda frame: repr(frame[:20]))  # fmt: skip
def test_what_is_not_understood_is_dropped(frame: bytes) -> None:
    assert parse(frame) is None
