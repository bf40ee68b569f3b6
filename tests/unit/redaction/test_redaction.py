"""Secrets in what comes out: every form, in whatever pieces, and nothing else."""

from __future__ import annotations

import base64
import html
import json
import random
import unicodedata
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casemate.redaction.forms import forms_of
from casemate.redaction.redaction import Redaction

SECRET = "tr0ub4dor&3 is <not> a/good+pass"
AWKWARD = 'a.*b$\\d"quoted"\'s\n[line] two\té'
MARKER = "[secret:TOKEN]"

ENCODERS: dict[str, Callable[[str], bytes]] = {
    "itself": lambda text: text.encode(),
    "base64": lambda text: base64.b64encode(text.encode()),
    "base64 after one byte": lambda text: base64.b64encode(b"x" + text.encode()),
    "base64 after two bytes": lambda text: base64.b64encode(b"xy" + text.encode() + b"z"),
    "base64 in lines": lambda text: base64.encodebytes(text.encode()),
    "base64 for urls": lambda text: base64.urlsafe_b64encode(text.encode()),
    "base64 for urls without padding": lambda text: base64.urlsafe_b64encode(b"??" + text.encode()).rstrip(b"="),
    "hex": lambda text: text.encode().hex().encode(),
    "hex in capitals": lambda text: text.encode().hex().upper().encode(),
    "percent": lambda text: urllib.parse.quote(text, safe="").encode(),
    "percent, slashes left": lambda text: urllib.parse.quote(text).encode(),
    "percent, small": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()).encode(),
    "form": lambda text: urllib.parse.quote_plus(text).encode(),
    "json": lambda text: json.dumps(text).encode(),
    "json as it is": lambda text: json.dumps(text, ensure_ascii=False).encode(),
    "json in json": lambda text: json.dumps(json.dumps(text)).encode(),
    "json, all escaped": lambda text: "".join(f"\\u{ord(one):04x}" for one in text).encode(),
    "json, all escaped in capitals": lambda text: "".join(f"\\u{ord(one):04X}" for one in text).encode(),
    "html": lambda text: html.escape(text).encode(),
    "html, quotes left": lambda text: html.escape(text, quote=False).encode(),
    "html, decimal": lambda text: "".join(f"&#{ord(one)};" for one in text).encode(),
    "html, hex": lambda text: "".join(f"&#x{ord(one):x};" for one in text).encode(),
    "utf-16 le": lambda text: text.encode("utf-16-le"),
    "utf-16 be": lambda text: text.encode("utf-16-be"),
    "utf-32 le": lambda text: text.encode("utf-32-le"),
    "utf-32 be": lambda text: text.encode("utf-32-be"),
    "repr": lambda text: repr(text).encode(),
    "repr of bytes": lambda text: repr(text.encode()).encode(),
    "ascii": lambda text: ascii(text).encode(),
    "NFC": lambda text: unicodedata.normalize("NFC", text).encode(),
    "NFD": lambda text: unicodedata.normalize("NFD", text).encode(),
    "other line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "as words of a shell": lambda text: " ".join(text.split()).encode(),
    "in a shell's apostrophes": lambda text: text.replace("'", "'\\''").encode(),
}


@pytest.mark.parametrize(
    "value", [SECRET, AWKWARD, "simple-token-0123456789", "x" * 100 + "é" + "y" * 99, "ß→Å-secret"]
)
@pytest.mark.parametrize("form", ENCODERS)
def test_va_05_a_secret_is_found_in_every_usual_form(form: str, value: str) -> None:
    encoded = ENCODERS[form](value)
    kept = Redaction({"TOKEN": value}).data(b"before " + encoded + b" after")
    assert kept.startswith(b"before ")
    assert kept.endswith(b" after")
    assert kept.count(MARKER.encode()) == 1
    assert len(kept) <= len(b"before  after") + len(MARKER) + 8  # quotes, and what base64 has of its neighbours


def test_va_08_a_secret_is_no_pattern() -> None:
    redaction = Redaction({"TOKEN": "a.*b$[c]+"})
    assert redaction.text("axxxb a.*b$ [c]+ a.*b$[c]+") == f"axxxb a.*b$ [c]+ {MARKER}"


def test_va_10_nothing_of_the_longer_of_two_secrets_is_left() -> None:
    redaction = Redaction({"SHORT": "password", "LONG": "password-and-more"})
    assert redaction.text("password-and-more password") == "[secret:LONG] [secret:SHORT]"
    assert redaction.text("password-and-mor") == "[secret:SHORT]-and-mor"


def test_va_05_a_key_that_is_shown_line_by_line_is_hidden() -> None:
    lines = [
        "-----BEGIN PRIVATE KEY-----",
        "MIIEvQIBADANBgkqhkiG9w0B",
        "AQEFAASCBKcwggSjAgEAAoIB",
        "-----END PRIVATE KEY-----",
    ]
    redaction = Redaction({"TOKEN": "\r\n".join(lines) + "\r\n"})
    shown = "".join(f"{number}:   {line} |\n" for number, line in enumerate(lines))
    kept = f"0:   {lines[0]} |\n1:   {MARKER} |\n2:   {MARKER} |\n3:   {lines[3]} |\n"
    assert redaction.text(shown) == kept
    assert redaction.text("\n".join(lines[1:3])) == f"{MARKER}\n{MARKER}"
    assert redaction.text("\r\n".join(lines)) == MARKER


def test_secrets_that_overlap_are_replaced_as_one() -> None:
    redaction = Redaction({"A": "begin-middle", "B": "middle-end"})
    assert redaction.text("<begin-middle-end>") == "<[secret:A]>"


def test_a_secret_that_repeats_itself_is_replaced_whole() -> None:
    redaction = Redaction({"A": "abababab"})
    assert redaction.text("x" + "ab" * 50 + "y") == "x[secret:A]y"


LONG = b"word-and-word-and-" + bytes(range(65, 91)) * 10
PIECES = st.lists(
    st.one_of(
        st.sampled_from([b"pass", b"word", b"password", b"-and", b"-more", b"\n", b"p", b"d-and-mo"]),
        st.sampled_from([b"...", b".", "…".encode(), b"'...", b" ", b"ord-and-more", LONG[:100], LONG[150:]]),
        st.binary(max_size=4),
    ),
    max_size=12,
)


@settings(max_examples=500, deadline=None)
@given(pieces=PIECES, sizes=st.lists(st.integers(1, 7), min_size=1))
def test_va_03_the_pieces_in_which_it_comes_make_no_difference(pieces: list[bytes], sizes: list[int]) -> None:
    values = {"SHORT": "password", "LONG": "password-and-more", "LAST": "word-and-word-and", "LONGER": LONG.decode()}
    redaction = Redaction(values)
    whole = b"".join(pieces)
    stream, kept, at, turn = redaction.stream(), [], 0, 0
    while at < len(whole):
        size = sizes[turn % len(sizes)]
        kept.append(stream.feed(whole[at : at + size]))
        at, turn = at + size, turn + 1
    kept.append(stream.finish())
    assert b"".join(kept) == redaction.data(whole)
    secret = {place for begin, end, _ in redaction.scan(whole).found for place in range(begin, end)}
    left = bytes(0 if place in secret else byte for place, byte in enumerate(whole))
    assert not any(value in left for value in (b"password", b"word-and-word-and"))
    assert redaction.data(whole).count(b"[secret:") >= bool(secret)


def test_va_03_only_what_may_be_a_beginning_is_held_back() -> None:
    stream = Redaction({"TOKEN": "hunter2hunter2"}).stream()
    assert stream.feed(b"hello hunt") == b"hello "
    assert stream.feed(b"ing") == b"hunting"
    assert stream.feed(b" hunter2hun") == b" "
    assert stream.feed(b"ter2 and on") == b"[secret:TOKEN] and on"
    assert stream.finish() == b""


@pytest.mark.parametrize("length", range(1, 14))
def test_va_04_of_a_secret_at_a_cut_three_bytes_are_left_at_most(length: int) -> None:
    kept = Redaction({"TOKEN": "hunter2hunter2"}).data(b"x hunter2hunter2"[: 2 + length], cut=True)
    assert kept == (b"x " + b"hunter2hunter2"[:length] if length < 4 else b"x [secret:TOKEN]")


def test_what_ends_by_itself_may_end_like_the_beginning_of_a_secret() -> None:
    assert Redaction({"TOKEN": "true-love-waits"}).text("true") == "true"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("'hunter2h…", f"'{MARKER}…"),
        ("'xx hunter2…2hunter2 yy'", f"'xx {MARKER}…{MARKER} yy'"),
        ("…er2 hun…", "…er2 hun…"),
        ("'hunter2h...'", f"'{MARKER}...'"),
        ("…ter2", f"…{MARKER}"),
        ("… hunter2hunter2 …", f"… {MARKER} …"),
    ],
)
def test_va_04_of_a_text_that_somebody_has_cut_nothing_is_left_at_the_cut(text: str, kept: str) -> None:
    assert Redaction({"TOKEN": "hunter2hunter2"}).text(text) == kept


TOKEN = "".join(chr(33 + 7 * n % 90) for n in range(69)) + "!"  # of 70 characters, each found once in 69


@pytest.mark.parametrize("size", [1, 50, 1 << 16])
@pytest.mark.parametrize("left", [4, 15, 16, 17, 46, 69])
@pytest.mark.parametrize(
    "form", ["{head}...", "{head}…", "'{head}'... 24 more", "'x{head}...{tail}'", "{head}… {tail} y", "...{tail}\n"]
)
def test_va_04_of_what_a_program_has_cut_nothing_is_left_however_much_it_says(size: int, left: int, form: str) -> None:
    row = f"0  {form.format(head=TOKEN[:left], tail=TOKEN[-left:])} \n"
    said = ("x" * 5000 + "\n" + row * max(2, size // 100)).encode()
    stream = Redaction({"TOKEN": TOKEN}).stream()
    kept = b"".join(stream.feed(said[at : at + size]) for at in range(0, len(said), size)) + stream.finish()
    assert kept.decode().removeprefix("x" * 5000 + "\n") == (
        f"0  {form.format(head=MARKER, tail=MARKER)} \n" * max(2, size // 100)
    )


CUT_VALUES = {"TOKEN": TOKEN, "WORDS": "état-civil-des-été", "LONG": LONG.decode()}


@pytest.fixture(scope="module")
def little_searched() -> Redaction:
    """One that looks at every ellipsis by itself, as it does in the first megabyte."""
    return Redaction(CUT_VALUES)


@pytest.fixture(scope="module")
def much_searched() -> Redaction:
    """One that has searched so much text with ellipses that it passes over most of them."""
    redaction = Redaction(CUT_VALUES)
    redaction.data("a line that is cut… and goes on...\n".encode() * 100_000)
    return redaction


CUTS = st.sampled_from([b"...", b"....", "…".encode(), "……".encode(), b"'...", "` …".encode(), b"... ", b"...e..."])
FORMS = st.sampled_from([form for value in (TOKEN, "état-civil-des-été") for form in sorted(forms_of(value))])
SIZES = st.sampled_from([3, 4, 5, 15, 16, 17, 40])
AROUND_CUTS = st.lists(
    st.one_of(
        CUTS,
        st.builds(lambda form, size, cut: form[:size] + cut, FORMS, SIZES, CUTS),
        st.builds(lambda form, size, cut: cut + form[-size:], FORMS, SIZES, CUTS),
        st.sampled_from([*(value.encode() for value in CUT_VALUES.values()), LONG[:80], LONG[-80:], LONG[-3:]]),
        st.sampled_from([b" ", b"\n", "日本語".encode(), "…".encode()[:2], b"text", b"\r\n", b"'", b".", b"\xc3"]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=500, deadline=None)
@given(pieces=AROUND_CUTS, sizes=st.lists(st.integers(1, 90), min_size=1))
def test_va_04_after_much_that_was_cut_the_same_is_found(
    much_searched: Redaction, little_searched: Redaction, pieces: list[bytes], sizes: list[int]
) -> None:
    whole = b"".join(pieces)
    assert much_searched.data(whole) == little_searched.data(whole)
    one, other = much_searched.stream(), little_searched.stream()
    at = turn = 0
    while at < len(whole):
        size = sizes[turn % len(sizes)]
        assert one.feed(whole[at : at + size]) == other.feed(whole[at : at + size])
        at, turn = at + size, turn + 1
    assert one.finish(cut=bool(turn % 2)) == other.finish(cut=bool(turn % 2))


@pytest.mark.parametrize(
    ("other", "shown", "kept"),
    [
        ("...starts-so", "hunter2h...starts-so", f"{MARKER}[secret:OTHER]"),
        ("hun...in-its-middle", "x hun...in-its-mid… y", "x [secret:OTHER]… y"),
        ("hun...in-its-middle", "x …n...in-its-middle y", "x …[secret:OTHER] y"),
        ("it-has-one-rather...late", "x it-has-one-rather...l… y", "x [secret:OTHER]… y"),
    ],
)
def test_va_04_secrets_with_ellipses_of_their_own_are_hidden_at_cuts(other: str, shown: str, kept: str) -> None:
    assert Redaction({"TOKEN": "hunter2hunter2", "OTHER": other}).text(shown) == kept


def test_va_04_the_cuts_of_usual_tools_leave_nothing_of_a_long_secret() -> None:
    import reprlib
    import textwrap

    redaction = Redaction({"TOKEN": TOKEN})
    for shown in (reprlib.repr(TOKEN), reprlib.repr([TOKEN]), TOKEN[:46] + "...", textwrap.shorten("x " + TOKEN, 20)):
        kept = redaction.text(shown)
        assert not any(TOKEN[at : at + 4] in kept for at in range(len(TOKEN) - 3)), kept


@pytest.mark.parametrize(
    "text",
    [
        "Loading... done\n", ">>> ...", "def f(*args): ...\n", "f(...args)", "100%|████| 5/5 ...\n", "...\n" * 100,
        "fin...", "see https://... and more", "a" * 70 + "...", "wait.. …", "\n".join(["tok...", "en.."] * 50),
    ],
)  # fmt: skip
def test_ordinary_output_with_ellipses_is_handed_on_at_once_and_as_it_is(text: str) -> None:
    stream = Redaction({"TOKEN": TOKEN, "OTHER": "final-token-0815"}).stream()
    assert b"".join(stream.feed(bytes([byte])) for byte in text.encode()) + stream.finish() == text.encode()
    assert stream.feed(text.encode()) == text.encode()


def pem(number: int) -> str:
    """A key as OpenSSL writes it, of bytes at random."""
    body = base64.b64encode(b"\x30\x82\x04\xbd\x02\x01\x00" + random.Random(number).randbytes(1200)).decode()
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""])


def test_what_all_keys_begin_with_makes_nobody_compare_each_of_them() -> None:
    keys = {f"KEY_{number}": pem(number) for number in range(8)}
    redaction = Redaction(keys)
    assert redaction._forms.look(b"-----BEGIN PRIVATE KEY-----\n" * 1000).heads == []
    assert max(len(group) for group in redaction._forms._headed) < 10
    for name, key in keys.items():
        for shown in (key, key.strip(), key.replace("\n", "\r\n"), json.dumps(key)[1:-1], repr(key)[1:-1]):
            assert redaction.text(f"x {shown}") == f"x [secret:{name}]"
        stream = redaction.stream()
        kept = b"".join(stream.feed(bytes([byte])) for byte in key.encode())
        assert kept + stream.finish() == f"[secret:{name}]".encode()
        assert redaction.data(key[:200].encode(), cut=True) == f"[secret:{name}]".encode()


def test_every_text_key_and_number_of_a_json_value_is_looked_at() -> None:
    redaction = Redaction({"TOKEN": "hunter2hunter2", "PIN": "1234567890"})
    value = {"a": ["hunter2hunter2", {"hunter2hunter2": None}], "n": 1234567890, "m": [True, 12, 1.5], "t": ("x",)}
    assert redaction.value(value) == {
        "a": [MARKER, {MARKER: None}], "n": "[secret:PIN]", "m": [True, 12, 1.5], "t": ("x",),
    }  # fmt: skip


def test_much_output_is_searched_as_well_as_little() -> None:
    redaction = Redaction({f"TOKEN_{n}": f"value-{n:02}-of-many" for n in range(20)})
    stream = redaction.stream()
    innocent = b"line of text that says value-\n" * 2000
    kept = (
        b"".join(stream.feed(innocent + f"value-{n % 20:02}-of-many\n".encode()) for n in range(40)) + stream.finish()
    )
    assert kept == b"".join(innocent + f"[secret:TOKEN_{n % 20}]\n".encode() for n in range(40))


def test_no_form_is_so_short_that_innocent_text_would_hold_it() -> None:
    assert all(len(form) >= 8 for form in forms_of("8 bytes!"))
    assert len(forms_of("8 bytes!")) > 15


def test_a_redaction_shows_no_value() -> None:
    assert "hunter2" not in repr(Redaction({"TOKEN": "hunter2hunter2"}))
