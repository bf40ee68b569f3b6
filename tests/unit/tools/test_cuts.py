"""Texts of strangers that are cut: nothing of a secret is left before the cut."""

from __future__ import annotations

import pytest

from casemate.redaction.redaction import Redaction
from casemate.tools.connections.reports import OutputTail, clean_text
from casemate.visible import shorten

TOKEN = "tok-0123456789-abcdefghijklmnop"


@pytest.mark.parametrize("before", range(1970, 2001, 3))
def test_a_message_that_is_cut_within_a_secret_shows_nothing_of_it(before: int) -> None:
    said = clean_text("." * before + TOKEN + "." * 100, Redaction({"TOKEN": TOKEN}))
    assert len(said) <= 2000
    assert TOKEN[:5] not in said


@pytest.mark.parametrize("before", [480, 490, 495])
def test_last_words_that_are_cut_within_a_secret_show_nothing_of_it(before: int) -> None:
    words = OutputTail()
    words.add(b"." * before + TOKEN.encode() + b"." * 100 + b"\n")
    assert TOKEN[:5] not in Redaction({"TOKEN": TOKEN}).text(words.text())


def test_last_words_whose_beginning_is_lost_within_a_secret_show_nothing_of_it() -> None:
    words = OutputTail()
    words.add(TOKEN.encode() + b"\n" + b"x" * ((8 << 10) - 11) + b"\n" * 1)
    words.add(b"end\n")
    assert TOKEN[-9:] not in Redaction({"TOKEN": TOKEN}).text(words.text())


def test_a_text_that_is_short_enough_stays_as_it_is() -> None:
    assert shorten("text", 4) == "text"
    assert shorten("texts", 4) == "tex…"


@pytest.mark.parametrize("hidden", ["\x1b", "\u202e", "\u2060", "\U000e0041"])
def test_what_a_server_said_last_holds_nothing_that_a_screen_acts_upon_or_hides(hidden: str) -> None:
    words = OutputTail()
    words.add(f"a{hidden}b".encode())
    assert hidden not in words.text()
    assert ascii(hidden).strip("'") in words.text()
