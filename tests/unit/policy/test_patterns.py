"""Wildcards mean what a regular expression would say, and cost one pass over a value that a hostile cell chose."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from casemate.policy.patterns import Like, PathLike, pattern

MOST = 65_536  # characters of a value that a wildcard is compared with
OF_A_WORD = r"(?:[A-Za-z0-9_-]|(?<!\.)\.(?!\.))+"
texts = st.text("ab.-* /\n", max_size=12)
values = st.text("ab.- /\n", max_size=14)
parts = st.text("ab*", min_size=1, max_size=8).filter(lambda part: "**" not in part)


def is_like(star: str, text: str, value: str) -> bool:
    return re.fullmatch(star.join(re.escape(piece) for piece in text.split("*")), value) is not None


@given(texts, values)
@example("*a.*", "xa.ya..z")
@example("a.*", "a..")
@example("*.a", "b..a")
@example("*a b*c", "xa ba bxc")
@example("a*a", "a")
@settings(max_examples=1500, deadline=None)
def test_a_wildcard_of_like_means_a_word_where_a_rule_allows_and_anything_elsewhere(text: str, value: str) -> None:
    assert Like(text).covers(value, narrowly=True) == is_like(OF_A_WORD, text, value)
    assert Like(text).covers(value, narrowly=False) == is_like("(?s:.*)", text, value)


@pytest.mark.full
@given(texts, st.lists(st.text("ab.- /\n", max_size=4), min_size=12, max_size=12))
@settings(max_examples=1500, deadline=None)
def test_a_text_made_from_a_pattern_is_like_it_as_the_expression_says(text: str, fillings: list[str]) -> None:
    pieces = text.split("*")
    value = pieces[0] + "".join(filling + piece for filling, piece in zip(fillings, pieces[1:], strict=False))
    assert Like(text).covers(value, narrowly=True) == is_like(OF_A_WORD, text, value)
    assert Like(text).covers(value, narrowly=False)


@given(parts, st.text("ab", min_size=1, max_size=10))
@settings(max_examples=500, deadline=None)
def test_a_wildcard_within_a_component_means_any_part_of_it(part: str, name: str) -> None:
    for narrowly in (True, False):
        covered = PathLike(("p", part)).covers(f"p/{name}", narrowly=narrowly)
        assert covered == is_like("[^/]*", part, name)


@pytest.mark.parametrize("size", [MOST - 10, 1 << 20])
@pytest.mark.parametrize(
    ("given_pattern", "head", "unit", "tail"),
    [
        ({"like": "*rm*-rf*"}, "", "rm", ""),
        ({"like": "git-*-x*-x*-x*-y"}, "git-", "-x", "!"),
        ({"like": "git-*a.*a.*a.*-y"}, "git-", "a..", "!"),
        ({"path": "/project/a*a*a*b"}, "/project/", "a", "c"),
        ({"path": "/project/**/a/**/b"}, "/project", "/a", "/c"),
    ],
)
def test_a_long_value_made_to_be_tried_at_every_place_is_decided_in_one_pass(
    given_pattern: dict[str, str], head: str, unit: str, tail: str, size: int
) -> None:
    value = head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail
    assert pattern(given_pattern, narrowly=True).covers(value, narrowly=True) is False
    assert pattern(given_pattern, narrowly=False).covers(value, narrowly=False) is (size > MOST)


@pytest.mark.parametrize(("form", "head"), [("like", "issue-"), ("path", "/project/")])
def test_a_value_that_is_too_long_is_not_allowed_and_counts_as_denied(form: str, head: str) -> None:
    longest = head.ljust(MOST, "a")
    for text, fits in ((f"{head}*", True), (f"{head}b*", False)):
        for narrowly in (True, False):
            read = pattern({form: text}, narrowly=narrowly)
            assert read.covers(longest, narrowly=narrowly) is fits
            assert read.covers(longest + "a", narrowly=narrowly) is not narrowly


@pytest.mark.parametrize("mark", list("*?[]{}~$`;|&<>%"))
@pytest.mark.parametrize("text", ["/project/*", "/project/**", "/project/a*"])
def test_a_wildcard_of_a_path_that_is_allowed_stands_for_nothing_that_a_shell_acts_on(mark: str, text: str) -> None:
    read = pattern({"path": text}, narrowly=True)
    assert read.covers("/project/ab", narrowly=True)
    assert not read.covers(f"/project/a{mark}b", narrowly=True)
    assert read.covers(f"/project/a{mark}b", narrowly=False)


@pytest.mark.parametrize(
    "text", ["/project/*", "/project/**", "/project/.*", "/project/*.", "/project/**/a", "/project/a*"]
)
@pytest.mark.parametrize("name", [".", "..", "a/..", "a/./a", "../a", "a/../a"])
def test_no_wildcard_of_a_path_stands_for_a_way_up_or_for_the_same_folder(text: str, name: str) -> None:
    assert not pattern({"path": text}, narrowly=True).covers(f"/project/{name}", narrowly=True)
    assert pattern({"path": text}, narrowly=False).covers(f"/project/{name}", narrowly=False)  # it counts as denied


@pytest.mark.parametrize("name", ["a b", "it's", 'the "end"', "(1)", "a!", "#1", "a#b", "a=b", "a,b", "é"])
def test_a_wildcard_of_a_path_that_is_allowed_stands_for_what_is_usual_in_names(name: str) -> None:
    for text in ("/project/*", "/project/**"):
        assert pattern({"path": text}, narrowly=True).covers(f"/project/{name}", narrowly=True)


@pytest.mark.parametrize("name", ["a /etc/b", " a", "a ", "a\u00a0", "a/ /b"])
def test_a_wildcard_of_a_path_that_is_allowed_stands_for_no_name_with_a_space_at_its_ends(name: str) -> None:
    read = pattern({"path": "/project/**"}, narrowly=True)
    assert not read.covers(f"/project/{name}", narrowly=True)
    assert read.covers(f"/project/{name}", narrowly=False)
    assert pattern({"path": f"/project/{name}"}, narrowly=True).covers(f"/project/{name}", narrowly=True)
