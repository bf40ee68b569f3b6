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


@pytest.mark.parametrize("text", ["Alpha", "al_pha", "", ".", "..", "../x", "a/b", "a" * 200, "a\n", "-a", "é"])
def test_a_path_that_is_no_name_of_a_project_is_none(text: str) -> None:
    assert project(text) is None
    assert project("alpha-2") == "alpha-2"
