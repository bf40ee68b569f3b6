"""JSON from a cell: read once and strictly, one form, one hash."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy.asked import question

from casemate.errors import InvalidArgument
from casemate.model.approval import Question
from casemate.policy.canonical import canonical, digest, fingerprint, parse

# A double between these is written as an integer, of the digits that tell it apart from other doubles.
NUMBERS = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda number: abs(number) < 2**53 or abs(number) >= 1e21
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@given(VALUES)
def test_the_canonical_text_reads_back_as_the_same_value_and_is_its_own_canonical_text(value: Any) -> None:
    text = canonical(value)
    read = parse(text)
    assert read == value
    assert canonical(read) == text


@given(VALUES)
def test_however_a_value_is_spelled_its_hash_is_the_same(value: Any) -> None:
    spelled = json.dumps(value, ensure_ascii=True, indent=3)
    assert digest(parse(spelled)) == digest(parse(canonical(value))) == digest(value)


@pytest.mark.parametrize(("value", "text"), [  # RFC 8785, sections 3.2.2 and 3.2.3
    ([333333333.33333329, 1e30, 4.50, 2e-3, 1e-27], "[333333333.3333333,1e+30,4.5,0.002,1e-27]"),
    ({"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\u00f6": 7},
     '{"\\r":2,"1":4,"\x80":6,"\u00f6":7,"\u20ac":1,"\U0001f600":5,"\ufb33":3}'),
    ("\u20ac$\u000f\nA'B\"\\\\\"/", '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'), (-0.0, "0"), (1.0, "1")])  # fmt: skip
def test_the_canonical_form_is_that_of_rfc_8785(value: Any, text: str) -> None:
    assert canonical(value).decode() == text


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53) - 1, 10**21, 10**398 + 1])
def test_an_integer_of_any_size_stays_exactly_what_it_is(number: int) -> None:
    value = {"a": [number, {"b": number, str(number): f"{number}"}], "c": 0.5}
    assert parse(canonical(value)) == value
    assert canonical(value).decode() == json.dumps(value, separators=(",", ":"), sort_keys=True)
    assert type(parse(str(number))) is int


def test_a_large_double_stays_the_same_double() -> None:
    number = 1.2345678901234567e20
    assert float(parse(canonical(number))) == number
    assert canonical(parse(canonical(number))) == canonical(number)


@pytest.mark.parametrize("text", [
    '{"path":"safe","path":"/etc/passwd"}', '{"a":{"b":1,"b":1}}', '{"a":1,"\\u0061":2}', '[{"":1,"":2}]'])  # fmt: skip
def test_ap_10_an_object_with_a_name_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="twice"):
        parse(text)


@pytest.mark.parametrize("text", [
    "NaN", "[Infinity]", '{"a":-Infinity}', "1e999", "-1e999", "[1e400]",
    "9" * 500, "1." + "0" * 500, '"\\ud800"', '"\\udc00\\ud800"', '{"\\udfff":1}', '"\ud800"', b'"\xff"',
    b'"\xed\xa0\x80"',
    "", " ", "{", "[1,]", "{'a':1}", "[1] 2", "\ufeff[]", b"\xff\xfe[\0]\0", '"\n"', '"\0"', "01", "+1", ".5", "0x1",
    "[1 2]",
    '"abc', '"abc\\', "tru", "// a\n1"])  # fmt: skip
def test_ap_12_what_readers_of_json_disagree_about_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse(text)


@pytest.mark.parametrize("text", [
    pytest.param("[" * 10_000 + "]" * 10_000, id="levels"),
    pytest.param('{"a":' * 101 + "1" + "}" * 101, id="just too many levels"),
    pytest.param("{" + ",".join(f'"{n}":1' for n in range(100_000)) + "}", id="keys"),
    pytest.param("[" + "{}," * 300_000 + "{}]", id="elements"),
    pytest.param("[" + "0," * 500_000 + "0]", id="numbers"),
    pytest.param('"' + "x" * (1 << 20) + '"', id="size"),
    pytest.param('"' + "\u20ac" * 400_000 + '"', id="size in bytes"),
    pytest.param("[" * (1 << 20), id="only beginnings"),
    pytest.param('"' + '\\"' * 500_000, id="a text without an end"),
    pytest.param("\\" * 1_000_000, id="backslashes"),
    pytest.param("[" + "9" * 1_000_000 + "]", id="digits")])  # fmt: skip
def test_ap_12_what_is_too_large_is_refused_before_anything_is_made_of_it(text: str) -> None:
    tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(InvalidArgument):
            parse(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20
    assert time.thread_time() - began < 20  # linear takes a second even where everything is traced; quadratic, hours


def test_ap_12_sixty_megabytes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="60 MiB"):
        parse(b'"' + b"x" * (60 << 20) + b'"')


def test_what_is_within_the_bounds_is_read() -> None:
    deep = "[" * 100 + "]" * 100
    wide = {str(n): n for n in range(9_999)}
    assert parse(deep)
    assert parse(json.dumps(wide)) == wide
    assert parse('"[{,:' + '\\"' * 1000 + '"') == "[{,:" + '"' * 1000
    assert parse('"' + "9" * 500 + '"') == "9" * 500
    assert parse('"\\ud83d\\ude00"') == "\U0001f600"


@given(st.text(st.sampled_from('{}[]",:\\u0019de. \n'), max_size=40) | st.binary(max_size=40))
def test_whatever_comes_is_read_as_json_reads_it_or_refused(text: str | bytes) -> None:
    try:
        value = parse(text)
    except InvalidArgument:
        return
    assert value == json.loads(text)


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {"a": {1, 2}}, object(), b"x", {"a": "\ud800"}, {"\ud800": 1}, [2**60, float("nan")], float("nan")],
)
def test_what_is_no_json_value_has_no_hash(value: Any) -> None:
    with pytest.raises(InvalidArgument):
        digest(value)


def test_ap_07_an_answer_binds_to_everything_that_was_shown_and_to_nobody() -> None:
    plain = question(path="a")
    assert fingerprint(plain) == fingerprint(question(path="a", session="s9", run="r9", namespace="n", line=3))
    others = [
        question(path="b"), question(path="a", more=None), question(path="a", tool="write"),
        question(path="a", server="other"), question(path="a", schema=""), question("files", path="a"),
        question(path="a", beyond=("a.test",)), question(path="a", beyond=("",)), question(path="a", beyond=("", "")),
    ]  # fmt: skip
    assert len({fingerprint(one) for one in [plain, *others]}) == 10


@pytest.mark.parametrize("arguments", [{}, {"path": "a"}, {"z": [1.5, {"b": None, "a": "\u00e4\n"}], "": True}])
def test_the_hash_is_that_of_one_object_in_its_one_form(arguments: dict[str, Any]) -> None:
    asked = Question("tool", "s", arguments, server='a"b', tool="t\u2028", schema="0" * 64)
    whole = {"kind": "tool", "server": 'a"b', "tool": "t\u2028", "schema": "0" * 64, "arguments": arguments}
    assert fingerprint(asked) == fingerprint(asked, canonical(arguments)) == digest(whole)
    beyond = replace(asked, beyond=('a.test "b', ""))
    assert fingerprint(beyond) == digest({**whole, "beyond": ['a.test "b', ""]})
