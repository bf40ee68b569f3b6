"""What a row says: canonical, bound_detail, and data whatever it holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from casemate.audit.chain import LARGEST, bound_detail

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES))
def test_any_detail_becomes_bounded_printable_json(detail: dict[str, object]) -> None:
    """AU-01."""
    text = bound_detail(detail)
    assert len(text) <= LARGEST
    assert text.isascii()
    assert text.isprintable()
    assert isinstance(json.loads(text), dict)


def test_the_same_detail_has_the_same_text_in_any_order() -> None:
    assert bound_detail({"b": {"y": 1, "x": 2}, "a": 1}) == bound_detail({"a": 1, "b": {"x": 2, "y": 1}})


def test_control_characters_in_names_are_escaped() -> None:
    """AU-01."""
    hostile = "name\n2026-01-01 INFO approved\r\x1b[2K\x1b]0;x\x07\u2028\x00\u202e"
    text = bound_detail({"code": hostile})
    assert text.isprintable()
    assert json.loads(text) == {"code": hostile}


def test_quotes_and_statements_are_stored_as_they_are() -> None:
    """AU-02."""
    hostile = '","action":"approve","x":"\'); DROP TABLE record;--'
    assert json.loads(bound_detail({"code": hostile})) == {"code": hostile}


def test_large_text_is_cut_with_its_length_and_hash() -> None:
    """AU-08."""
    code = "é" * 1_000_000
    stored = json.loads(bound_detail({"code": code}))["code"]
    data = code.encode()
    assert stored["bytes"] == len(data)
    assert stored["sha256"] == hashlib.sha256(data).hexdigest()
    assert code.startswith(stored["begins"])
    assert stored["begins"]


def test_large_bytes_are_cut_with_their_length_and_hash() -> None:
    """AU-08."""
    output = b"\xff\x00" * 1_000_000
    stored = json.loads(bound_detail({"stdout": output}))["stdout"]
    assert (stored["bytes"], stored["sha256"]) == (len(output), hashlib.sha256(output).hexdigest())


def test_many_and_deep_values_fit_too() -> None:
    """AU-08."""
    deep: object = "end"
    for _ in range(5000):
        deep = [deep]
    detail = {"deep": deep, "many": ["x" * 5000] * 5000, **{f"key {number}": "y" * 9000 for number in range(300)}}
    text = bound_detail(detail)
    assert len(text) <= LARGEST
    assert json.loads(text)


def test_what_json_does_not_know_is_said_in_words() -> None:
    detail = {"path": Path("/x"), "nan": float("nan"), "set": {2, 1}, "lone": "\udcff", 3: "key", "big": 10**400}
    stored = json.loads(bound_detail(detail))  # type: ignore[arg-type]
    assert (stored["path"], stored["nan"], stored["set"], stored["lone"], stored["3"]) == (
        "/x",
        "nan",
        [1, 2],
        "\udcff",
        "key",
    )
    assert stored["big"].startswith("0x")
