"""What a person is shown: nothing that passes for something else, and never a part that is hidden silently."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.policy.shown import escape_text, excerpts, shown_value

TEXTS = st.text(st.characters(), max_size=40)


@pytest.mark.parametrize(("text", "expected"), [
    ("rm -rf \u202etxt.exe", r"rm -rf \u202etxt.exe"), ("\x1b[2K\rsafe", r"\u001b[2K\rsafe"), ("a\nb\tc", r"a\nb\tc"),
    ("a\u200bb\u2060\ufeff", r"a\u200bb\u2060\ufeff"), ("\u200d", r"\u200d"), ("\x7f\x9b", r"\u007f\u009b"),
    ("n\n\u0301", r"n\n\u0301"), (r"\u202e", r"\\u202e"), ('"', r"\""),
    ("\u2028", r"\u2028"), ("\ud800", r"\ud800"), ("\U000e0041", r"\udb40\udc41"),
    ("a\u00a0b\u3000c", r"a\u00a0b\u3000c"), ("\ufe0f", r"\ufe0f"), ("\u3164", r"\u3164"), ("\ue000", r"\ue000"),
    ("Grüße, 世界", "Grüße, 世界"), ("", ""), ("e\u0301", "e\u0301"),
    ("a" + "\u0301" * 9, "a\u0301\u0301" + r"\u0301" * 7),
    ("\u0301", r"\u0301")])  # fmt: skip
def test_ap_11_what_a_screen_obeys_or_hides_is_shown_as_an_escape(text: str, expected: str) -> None:
    assert escape_text(text) == expected


@given(TEXTS)
def test_ap_11_what_is_shown_is_one_line_and_reads_back_as_what_it_is(text: str) -> None:
    visible = escape_text(text)
    assert json.loads(f'"{visible}"') == text
    assert not {unicodedata.category(character) for character in visible} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(
    st.recursive(
        st.none() | st.integers() | TEXTS, lambda one: st.lists(one) | st.dictionaries(TEXTS, one), max_leaves=8
    )
)
def test_a_value_is_shown_as_json_that_reads_back_as_it(value: Any) -> None:
    assert json.loads(shown_value(value)) == value


def test_ap_13_of_a_long_argument_size_head_and_tail_are_shown_and_how_much_is_not() -> None:
    (long,) = excerpts({"code": "x" * 5000 + "; rm -rf /"})
    assert long.size == 5012
    assert (long.head[:3], long.tail[-12:]) == ('"xx', 'x; rm -rf /"')
    assert len(long.head) + len(long.tail) + long.hidden == long.size
    assert long.hidden == 3012
    assert "3012 characters are not shown" in str(long)
    assert "5012 characters" in str(long)


def test_ap_13_no_argument_can_pretend_that_something_is_hidden_or_that_nothing_is() -> None:
    (lying,) = excerpts({"a": "x\n    [5 characters are not shown]\n    y"})
    assert lying.hidden == 0
    assert "\n" not in str(lying)
    (name,) = excerpts({"a: 1\nb": 2})
    assert str(name) == r"a: 1\nb: 2"


def test_each_argument_has_a_view_of_its_own_in_the_order_of_names() -> None:
    views = excerpts({"b": [1, {"y": 2, "x": None}], "a": "short"}, most=100)
    assert [str(view) for view in views] == ['a: "short"', 'b: [1, {"x": null, "y": 2}]']


def test_an_argument_that_is_all_escapes_stays_bounded() -> None:
    (view,) = excerpts({"a": "\U000e0041" * 100_000}, most=1000)
    assert len(str(view)) < 1000 * 12 + 200
