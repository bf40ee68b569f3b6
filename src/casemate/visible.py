r"""Untrusted text for people: characters that a screen acts on or hides become escapes (``\x1b``, ``\u202e``).

This is the only definition of invisible characters: control characters, including C1; everything that Unicode lets a
screen ignore (bidirectional and other formats, variation selectors, tags, fillers); line and paragraph separators;
blank letters; lone surrogates. In output, a joiner or selector stays in an emoji sequence, and a joiner between letters
of scripts that need it. Text that is shown for a decision keeps none of them (:func:`is_plain`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Parts of regular expressions. Keep in sync with the service's page (static/ui.js). Tab and newline are not included.
_UNSEEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f"
    r"\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_EMOJI = r"\xa9\xae\u203c\u2049\u2122-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_JOINED = r"\u0620-\u0dff"  # from Arabic to Sinhala
# The set comes first: few texts have any of these characters, and only then are their neighbors checked.
SPECIAL = (
    rf"[{_UNSEEN}](?<![{_EMOJI}]\ufe0f)(?!(?<=[0-9#*]\ufe0f)\u20e3)(?!(?<=[{_EMOJI}\ufe0f]\u200d)[{_EMOJI}])"
    rf"(?!(?<=[{_JOINED}][\u200c\u200d])[{_JOINED}])"
)
# For text that comes in pieces: an end that needs the next piece, and what may come before such an end.
UNDECIDED = r"[\u200c\u200d\ufe0f]"
BEFORE = rf"[{_EMOJI}]\ufe0f?|[{_JOINED}0-9#*]"
# Compiled on first use: most texts are ASCII.
_ANY = rf"[{_UNSEEN}]"
_UNPRINTABLE = rf"[\t\n]|{SPECIAL}"
_SPACES = r"[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]"


def visible(text: str) -> str:
    """``text`` on one line, with everything escaped that a terminal would act on or hide."""
    return text if _is_simple(text) else re.sub(_UNPRINTABLE, lambda found: escape(found[0]), text)


def inert(text: str) -> str:
    """``text`` with its lines, and with everything else escaped that a terminal would act on or hide."""
    return "\n".join(visible(line) for line in text.split("\n"))


def hidden_in(text: str) -> str:
    """The first character that :func:`visible` would escape, or ""."""
    found = None if _is_simple(text) else re.search(_UNPRINTABLE, text)
    return found[0] if found else ""


def without_unseen(text: str) -> str:
    """``text`` without invisible characters."""
    return text if _is_simple(text) else re.sub(_ANY, "", text)


def is_plain(text: str, *, spaces: bool = False) -> bool:
    """Whether every character is visible as itself, in any font and context. ``spaces``: allow all spaces."""
    if _is_simple(text):
        return True
    return (re.sub(_SPACES, " ", text) if spaces else text).isprintable() and not re.search(_ANY, text)


def plain(text: str, keep: str = "", by: Callable[[str], str] | None = None) -> str:
    """``text`` with everything that is not plain, except ``keep``, replaced ``by`` a function, else by escapes."""
    if is_plain(text):
        return text
    return "".join(one if one in keep or is_plain(one) else (by or escape)(one) for one in text)


def shorten(text: str, most: int) -> str:
    """At most ``most`` characters of ``text``. Redaction looks for cut secrets before the ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def begin(text: str, most: int, more: str = "") -> str:
    """The first ``most`` characters of ``text``; if it is cut, also its length and ``more``."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters{more})"


def brief(value: object, most: int = 100) -> str:
    """A wrong value, short enough for a message."""
    text = f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 2**64 else repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def _is_simple(text: str) -> bool:
    return text.isascii() and text.isprintable()


def escape(character: str) -> str:
    """A character as Python writes it: ``\\x1b``, ``\\u202e``, ``\\U000e0001``."""
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
