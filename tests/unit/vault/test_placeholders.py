"""Placeholders look like what they stand for, and say nothing of it."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.vault.placeholders import placeholder_for

_JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ("sk-abcdefghijklmnopqrstuvwxyz123456", r"sk-[a-z0-9]{32}"),
        ("sk-proj-" + "aB3" * 20, r"sk-proj-[A-Za-z0-9]{60}"),
        ("sk-ant-api03-" + "aB3_" * 20 + "AA", r"sk-ant-api03-[A-Za-z0-9]{82}"),
        ("ghp_" + "aB3" * 12, r"ghp_[A-Za-z0-9]{36}"),
        ("github_pat_" + "aB3" * 20, r"github_pat_[A-Za-z0-9]{60}"),
        ("xoxb-123456789012-1234567890123-" + "aB3" * 8, r"xoxb-\d{12}-\d{13}-[A-Za-z0-9]{24}"),
        ("AKIA" + "ABCDEFGH23456723", r"AKIA[A-Z0-9]{16}"),
        ("glpat-" + "aB3-" * 5, r"glpat-[A-Za-z0-9]{20}"),
        ("npm_" + "aB3" * 12, r"npm_[A-Za-z0-9]{36}"),
        ("hf_" + "aBc" * 12, r"hf_[A-Za-z]{36}"),
        ("SG." + "aB3-" * 5 + "ab" + "." + "aB3_" * 10 + "abc", r"SG\.[A-Za-z0-9]{22}\.[A-Za-z0-9]{43}"),
        ("1234567890:" + "aB3" * 12, r"\d{10}:[A-Za-z0-9]{36}"),
        (_JWT, r"eyJ[A-Za-z0-9]{17}\.eyJ[A-Za-z0-9]{24}\.[A-Za-z0-9]{43}"),
        ("123e4567-e89b-12d3-a456-426614174000", r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        ("0123456789abcdef" * 2, r"[0-9a-f]{32}"),
        ("0123456789ABCDEF" * 2, r"[0-9A-F]{32}"),
        ("12345678901234567890", r"\d{20}"),
        ("correct horse battery", r"[a-z]{21}"),
        ("hunter2!", r"[a-z0-9]{16}"),
        ("!!!!!!!!", r"\d{16}"),
        ("sk-short1", r"sk-[a-z0-9]{16}"),
    ],
)
def test_it_has_the_shape_of_the_value(value: str, shape: str) -> None:
    made = {placeholder_for(value) for _ in range(20)}
    assert len(made) == 20
    assert [one for one in made if not re.fullmatch(shape, one)] == []


@given(st.text(alphabet=string.printable[:95], min_size=8, max_size=200))
def test_it_is_at_least_16_random_characters_and_as_long_as_the_value_where_that_has_so_many(value: str) -> None:
    one, other = placeholder_for(value), placeholder_for(value)
    assert one != other
    assert len(one) == len(other) >= max(16, len(value))
    assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2
    assert re.fullmatch(r"[A-Za-z0-9._:-]+", one)


@given(
    st.text(alphabet=string.ascii_letters + string.digits, min_size=24, max_size=60).filter(
        lambda tail: len(set(tail)) > 12
    )
)
def test_what_is_random_of_it_has_no_run_of_the_value(tail: str) -> None:
    made = placeholder_for(f"ghp_{tail}")
    assert not any(tail[at : at + 12] in made for at in range(len(tail) - 11))
