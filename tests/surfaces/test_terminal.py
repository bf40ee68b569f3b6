"""What is shown on a terminal is inert, however the output was cut into pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from casemate.surfaces.cli.inert import Inert, inert, visible
from casemate.visible import without_unseen

SGR = rb"\x1b\[[0-9;:]*m"
# Pieces that terminals act upon, besides any bytes at all.
CHARGED = st.sampled_from(
    [
        b"\x1b",
        b"\x1b[",
        b"\x1b]52;c;aGk=\x07",
        b"\x1b[31m",
        b"\x1b[0m",
        b"\x1b[8m",
        b"\x1b[2J",
        b"\x1bP",
        b"\x1b\\",
        b"\x9b31m",
        b"\xc2\x9b",
        b"[31",
        b"m",
        b"\r",
        b"\n",
        b"\xe2\x80\xae",
        b"\xe2\x80",
        b"\xf3\xa0\x81\xa1",
        b"\x08",
        b"text",
    ]
)
PIECES = st.lists(st.one_of(CHARGED, st.binary(max_size=6)), max_size=30)


def shown(*pieces: bytes) -> bytes:
    """What a terminal gets for ``pieces``, to the end."""
    screen = Inert()
    return b"".join(map(screen.feed, pieces)) + screen.end()


@given(PIECES)
@example([b"\x1b[3", b"1m\x1b", b"[2J"])
@example([b"\x1b\x1b[m"])
def test_an_escape_character_is_shown_only_as_the_beginning_of_a_colour(pieces: list[bytes]) -> None:
    assert b"\x1b" not in re.sub(SGR, b"", shown(*pieces))


def is_as_it_looks(text: str) -> bool:
    return without_unseen(text) == text


@given(PIECES)
def test_no_control_character_is_shown_but_newline_and_tab(pieces: list[bytes]) -> None:
    text = re.sub(SGR, b"", shown(*pieces)).decode()
    assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", text) == []


@given(PIECES, st.data())
def test_the_same_is_shown_however_the_output_is_cut(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    ends = [*places, len(whole)]
    cut = [whole[start:end] for start, end in zip([0, *places], ends, strict=True)]
    assert shown(*cut) == shown(whole)


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])).filter(is_as_it_looks))
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text.encode()).decode() == text


@given(PIECES)
def test_what_is_held_back_is_bounded(pieces: list[bytes]) -> None:
    screen = Inert()
    for piece in pieces:
        screen.feed(piece)
    assert len(screen.end()) < 120


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"\x1b]0;title\x07", rb"\x1b]0;title\x07"),
        (b"\x1b]52;c;aGk=\x1b\\", rb"\x1b]52;c;aGk=\x1b" + b"\\"),
        (b"\x1bP+q544e\x1b\\", rb"\x1bP+q544e\x1b" + b"\\"),
        (b"\x1b[2J\x1b[H", rb"\x1b[2J\x1b[H"),
        (b"\x1b[?1049h", rb"\x1b[?1049h"),
        (b"\x1b[1A\x1b[2K", rb"\x1b[1A\x1b[2K"),
        (b"\x1b[6n\x05", rb"\x1b[6n\x05"),
        ("\x9b31m \x90 \x9d".encode(), rb"\x9b31m \x90 \x9d"),
        (b"secret\b\b\bgood", rb"secret\x08\x08\x08good"),
        (b"\a\v\f\0\x7f", rb"\x07\x0b\x0c\x00\x7f"),
        ("if x: \u202e\u2066} // \u2069".encode(), rb"if x: \u202e\u2066} // \u2069"),
        ("\u200bpay\u00adpal\U000e0041".encode(), rb"\u200bpay\xadpal\U000e0041"),
        (b"\xff\xfe", "\ufffd\ufffd".encode()),
    ],
)
def test_what_a_terminal_would_obey_or_hide_is_shown_as_an_escape(output: bytes, expected: bytes) -> None:
    assert shown(output) == expected


@pytest.mark.parametrize(
    "sequence",
    [b"\x1b[1;31m", b"\x1b[38;5;8m", b"\x1b[48;2;8;5;6m", b"\x1b[38:2::255:0:0m", b"\x1b[4:3m", b"\x1b[1;38;5;196;4m"],
)
def test_colours_and_styles_pass_and_end_with_the_output(sequence: bytes) -> None:
    assert shown(sequence + b"red") == sequence + b"red\x1b[0m"


@pytest.mark.parametrize(
    "sequence", [b"\x1b[8m", b"\x1b[5m", b"\x1b[1;8m", b"\x1b[38;5m", b"\x1b[38;2;1;2m", b"\x1b[58m"]
)
def test_a_style_that_hides_text_is_not_obeyed(sequence: bytes) -> None:
    assert shown(sequence + b"hidden") == rb"\x1b" + sequence[1:] + b"hidden"


def test_a_colour_that_was_ended_is_not_ended_again() -> None:
    assert shown(b"\x1b[31mred\x1b[0m") == b"\x1b[31mred\x1b[0m"


@pytest.mark.parametrize("pieces", [[b"one\rtwo\r\nthree\r"], [b"one\r", b"two\r", b"\nthree", b"\r"]])
def test_a_carriage_return_begins_a_new_line_so_that_nothing_is_written_over(pieces: list[bytes]) -> None:
    assert shown(*pieces) == b"one\ntwo\nthree\n"


def test_text_is_shown_as_soon_as_it_is_written() -> None:
    screen = Inert()
    assert screen.feed(b"loading") == b"loading"
    assert screen.feed(b"\r") == b"\n"
    assert screen.feed(b"\n\x1b[3") == b""
    assert screen.feed(b"2m") == b"\x1b[32m"


def test_a_name_stays_on_one_line_and_shows_what_is_in_it() -> None:
    assert visible("a\nb\t\x1b[31mc\u202e.png") == r"a\x0ab\x09\x1b[31mc\u202e.png"


def test_a_message_keeps_its_lines_and_obeys_nothing() -> None:
    assert inert("one\ntwo\x1b[31m\r") == "one\ntwo\\x1b[31m\\x0d"
