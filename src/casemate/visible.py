r"""Strangers' texts for people: what a screen acts upon or hides is shown as an escape (``\x1b``, ``\u202e``). Pure.

This is the one definition of what does not show: control characters, C1 included; everything that Unicode lets a screen
ignore (bidirectional and other formats, variation selectors, tags, fillers); line and paragraph separators; blank
letters; lone surrogates. In output, a joiner or selector stays inside an emoji sequence, and a joiner between letters
of the scripts that are written with it. What is shown for a decision keeps none of it (:func:`is_plain`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Parts of regular expressions; the service's page has the same ones (static/ui.js). Tab and newline are not in it.
_UNSEEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f"
    r"\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_EMOJI = r"\xa9\xae\u203c\u2049\u2122-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_JOINED = r"\u0620-\u0dff"  # from Arabic to Sinhala
# The set comes first: few texts have any of it, and what follows looks at its neighbors only then.
SPECIAL = (
    rf"[{_UNSEEN}](?<![{_EMOJI}]\ufe0f)(?!(?<=[0-9#*]\ufe0f)\u20e3)(?!(?<=[{_EMOJI}\ufe0f]\u200d)[{_EMOJI}])"
    rf"(?!(?<=[{_JOINED}][\u200c\u200d])[{_JOINED}])"
)
# For texts that come in pieces: an end on which the next piece depends, and what may be kept only after an end.
UNDECIDED = r"[\u200c\u200d\ufe0f]"
BEFORE = rf"[{_EMOJI}]\ufe0f?|[{_JOINED}0-9#*]"
# Compiled when they are first needed: most texts are ASCII.
_ANY = rf"[{_UNSEEN}]"
_UNPRINTABLE = rf"[\t\n]|{SPECIAL}"
_SPACES = r"[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]"


def visible(text: str) -> str:
    """``text`` on one line, with everything shown that a terminal would act upon or hide."""
    return text if _is_simple(text) else re.sub(_UNPRINTABLE, lambda found: escape(found[0]), text)


def inert(text: str) -> str:
    """``text`` with its lines, and nothing in it that a terminal would act upon."""
    return "\n".join(visible(line) for line in text.split("\n"))


def hidden_in(text: str) -> str:
    """The first character that :func:`visible` would escape, or ""."""
    found = None if _is_simple(text) else re.search(_UNPRINTABLE, text)
    return found[0] if found else ""


def without_unseen(text: str) -> str:
    """``text`` as it looks: without the characters that do not show."""
    return text if _is_simple(text) else re.sub(_ANY, "", text)


def is_plain(text: str, *, spaces: bool = False) -> bool:
    """Whether every character shows as what it is, in any font and context. ``spaces``: other spaces pass, too."""
    if _is_simple(text):
        return True
    return (re.sub(_SPACES, " ", text) if spaces else text).isprintable() and not re.search(_ANY, text)


def plain(text: str, keep: str = "", by: Callable[[str], str] | None = None) -> str:
    """``text`` with everything but ``keep`` replaced that is not plain, ``by`` an escape or something else."""
    if is_plain(text):
        return text
    return "".join(one if one in keep or is_plain(one) else (by or escape)(one) for one in text)


def brief(value: object, most: int = 100) -> str:
    """A wrong value, in a message that can be read."""
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
