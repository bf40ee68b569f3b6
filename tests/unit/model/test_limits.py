"""Sizes and limits: what people write, what is refused, and that narrowing only narrows."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate import InvalidArgument, Limits
from casemate.model.limits import LIMIT_BOUNDS, format_size, parse_size

MIB = 2**20
limits = st.builds(
    Limits,
    memory=st.integers(16 * MIB, 2**44),
    cpus=st.floats(0.01, 4096),
    cpu_time=st.none() | st.floats(0.01, 600000),
    processes=st.integers(1, 32768),
    wall=st.floats(0.01, 600000),
    output=st.integers(256, 2**30),
    full_output=st.integers(256, 2**36),
    disk=st.integers(2**16, 2**42),
    inodes=st.integers(32, 10**8),
    open_files=st.integers(16, 2**20),
)


@pytest.mark.parametrize(("text", "size"), [
    (4096, 4096), ("4096", 4096), ("64k", 65536), ("64K", 65536), ("64 KiB", 65536), ("64kb", 64000),
    ("512MiB", 512 * MIB),
    ("1.5 GB", 1_500_000_000), ("1.5GiB", 3 * 2**29), ("1g", 2**30), (" 2 TiB ", 2**41), ("1_000", 1000), ("0", 0),
    ("7b", 7)])  # fmt: skip
def test_a_size_means_what_people_mean_by_it(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", " ", "k", "lots", "1 2 x", "0x10", "1e9", "5 parsecs", "MiB", ".", "1..5k", "∞",
                                  "1.5.5", 1.5, None, True, [], b"5"])  # fmt: skip
def test_what_is_no_size_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(ValueError, match="'512MiB'"):
        parse_size(text)


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        assert isinstance(parse_size(text), int)
    except ValueError:
        return


@given(st.integers(0, 2**50))
def test_a_size_that_is_shown_is_read_as_about_the_same(size: int) -> None:
    shown = format_size(size)
    assert abs(parse_size(shown.replace("bytes", "")) - size) <= size * 0.001


@given(limits, limits, st.sets(st.sampled_from([*LIMIT_BOUNDS])))
def test_narrowing_gives_the_tighter_of_two_for_each_limit_that_was_given(
    one: Limits, other: Limits, names: set[str]
) -> None:
    part = Limits(**{name: getattr(other, name) for name in names})
    narrowed = one.narrowed(part)
    for name in LIMIT_BOUNDS:
        known = [value for value in (getattr(one, name), getattr(part, name)) if value is not None]
        assert getattr(narrowed, name) == (min(known, default=None) if name in names else getattr(one, name))


@given(limits, limits)
def test_narrowing_is_the_same_whichever_comes_first(one: Limits, other: Limits) -> None:
    assert one.narrowed(other) == other.narrowed(one)


@given(limits)
def test_narrowing_by_nothing_or_itself_changes_nothing(one: Limits) -> None:
    assert one.narrowed(None) == one.narrowed(one) == one


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_narrows_as_the_original_does(copied: Callable[[Limits], Limits]) -> None:
    part = Limits(cpus=0.5)
    assert copied(part) == part
    assert Limits(memory="1GiB").narrowed(copied(part)) == Limits(memory="1GiB", cpus=0.5)


def test_the_defaults_are_the_documented_ones() -> None:
    assert dataclasses.astuple(Limits()) == (512 * MIB, 1.0, None, 64, 60.0, MIB, 64 * MIB, 256 * MIB, 20000, 1024)


def test_limits_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().memory = 5  # type: ignore[misc]


@given(
    st.sampled_from([field.name for field in dataclasses.fields(Limits)]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
)
def test_any_value_of_a_limit_is_taken_or_refused_by_its_name(name: str, value: Any) -> None:
    try:
        Limits(**{name: value})
    except InvalidArgument as error:
        refused = error.argument
    else:
        refused = f"limits.{name}"
    assert refused == f"limits.{name}"


@pytest.mark.parametrize(("given", "example"), [("1", ""), ("64", ", such as 64MiB")])
def test_a_size_without_its_unit_is_answered_with_one_that_is_in_range(given: str, example: str) -> None:
    with pytest.raises(InvalidArgument, match=f"give 16 MiB to 16 TiB{example}$"):
        Limits(memory=given)
