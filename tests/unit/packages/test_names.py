"""Requirements: what is one, and how it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.errors import InvalidArgument
from casemate.packages.names import project, requirement


@pytest.mark.parametrize(("text", "name", "written"), [
    ("requests", "requests", "requests"), ("Zope.Interface", "zope-interface", "Zope.Interface"),
    ("requests[socks,security] >= 2, < 3", "requests", "requests[security,socks]<3,>=2"), ("a~=1.4.2", "a", "a~=1.4.2"),
    ("six==1.*", "six", "six==1.*"), ("x!=1!2.0rc1", "x", "x!=1!2.0rc1"),
])  # fmt: skip
def test_a_plain_requirement_is_taken(text: str, name: str, written: str) -> None:
    found = requirement(text)
    assert (found.name, found.text) == (name, written)


@given(st.text(max_size=60))
def test_whatever_is_taken_cannot_be_read_as_an_option_an_address_or_a_path(text: str) -> None:
    try:
        found = requirement(text).text
    except InvalidArgument:
        return
    assert found[0].isalnum()
    assert not set(found) & set("/\\:@;$`\"'&|\n\0")
    assert " " not in found


@pytest.mark.parametrize(("text", "why"), [
    ("x.whl", "a file name"), ("x-1.0-py3-none-any.whl", "a file name"),
    ("X.ZIP>=1", "a file name"), ("x-1.0.tar.gz", "a file name"),
    ("x; python_version>'3'", "has a marker"), ("--pre", "has an option"),
    ("x @ file:///y", "an address or a path"), ("./x", "an address or a path"), ("x --hash=md5:00", "has an option"),
    ("x===1", "plain"), ("x" + f" --hash=sha256:{0:064}" * 2 + " --pre", "has an option"),
])  # fmt: skip
def test_what_is_refused_is_told_why(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        requirement(text)


def test_hashes_are_taken_apart_from_what_the_installer_is_told() -> None:
    found = requirement(f"x>=1 --hash=sha256:{'A' * 64}  --hash=sha256:{'0' * 64}")
    assert (found.text, found.hashes) == ("x>=1", frozenset(("a" * 64, "0" * 64)))
    with pytest.raises(InvalidArgument, match="501 hashes"):
        requirement("x" + "".join(f" --hash=sha256:{n:064x}" for n in range(501)))


@pytest.mark.parametrize(
    "text", [f"x{' ' * 1_000_000}y", f"x{' ' * 1_000_000}--hash=y", f"x{f' --hash=sha256:{0:064}' * 20_000} y"]
)
def test_what_a_cell_writes_at_length_is_refused_as_fast_as_it_is_read(text: str) -> None:
    """Where time grew with the square of the length, these would take hours."""
    with pytest.raises(InvalidArgument):
        requirement(text)


@pytest.mark.parametrize("text", ["Alpha", "al_pha", "", ".", "..", "../x", "a/b", "a" * 200, "a\n", "-a", "é"])
def test_a_path_that_is_no_name_of_a_project_is_none(text: str) -> None:
    assert project(text) is None
    assert project("alpha-2") == "alpha-2"
