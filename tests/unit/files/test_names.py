"""Names from a cell are data: refused when they are not safe, and always printable when shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.files.names import display_path, path_problem, problem

HOSTILE = [
    b"",
    b".",
    b"..",
    b"a/b",
    b"..\\x",
    b"C:\\x",
    b"nul\x00",
    b"line\nbreak",
    b"\x1b[2Kansi",
    b"\x7f",
    "c1\x9b".encode(),
    "rtl\u202egnp.exe".encode(),
    "isolate\u2066".encode(),
    "separator\u2028".encode(),
    "mark\ufeff".encode(),
    "tag\U000e0041".encode(),
    b"latin-\xe9",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"x" * 256,
]
HONEST = [
    "-rf",
    "con",
    "C:x",
    "a b",
    "ü.txt",
    "u\u0308.txt",
    "数据.csv",
    "~",
    "می\u200cخواهم",  # noqa: RUF001 - Persian, with the joiner it is written with
    "👩\u200d🚀",
    "'\"`$(x);",
    "x" * 255,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_and_shown_escaped(name: bytes) -> None:
    """AR-06."""
    assert problem(name)
    assert display_path((b"folder", name)).isprintable()


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_name_is_kept_and_shown_as_it_is(name: str) -> None:
    """AR-06."""
    assert problem(name.encode()) is None
    assert display_path((name.encode(),)) == name


@given(st.lists(st.binary(max_size=300), max_size=40))
def test_any_path_is_shown_in_bounded_printable_text(path: list[bytes]) -> None:
    text = display_path(tuple(path))
    assert len(text) <= 300
    assert all(character.isprintable() or character in "\u200c\u200d" or not character.isascii() for character in text)
    assert not any(character < " " or "\u202a" <= character <= "\u202e" for character in text)
    assert text.encode("utf-8")


@given(st.text(max_size=80).filter(bool))
def test_a_safe_name_is_one_component_of_a_path(name: str) -> None:
    raw = name.encode("utf-8", "surrogatepass")
    if problem(raw) is None:
        assert "/" not in name
        assert "\\" not in name
        assert name not in (".", "..")
        assert len(raw) <= 255
        assert not any(character < " " for character in name)


def test_a_path_longer_than_the_system_takes_is_refused() -> None:
    """AR-05."""
    assert path_problem((b"x" * 250,) * 17)
    assert path_problem((b"x" * 250,) * 16) is None
