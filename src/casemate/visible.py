"""Strangers' texts for people: what a screen acts upon or hides is shown as an escape (``\\x1b``, ``\\u202e``). Pure.

That is: control characters, C1 included; bidirectional and invisible formatting characters but the two joiners that
scripts and emoji need; line and paragraph separators; lone surrogates.
"""

from __future__ import annotations

import re

# A part of a regular expression: one of them, but for tab and newline.
SPECIAL = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNPRINTABLE = re.compile(rf"[\t\n]|{SPECIAL}")


def visible(text: str) -> str:
    """``text`` on one line, with everything shown that a terminal would act upon or hide."""
    return _UNPRINTABLE.sub(lambda found: escape(found[0]), text)


def inert(text: str) -> str:
    """``text`` with its lines, and nothing in it that a terminal would act upon."""
    return "\n".join(visible(line) for line in text.split("\n"))


def escape(character: str) -> str:
    """A character as Python writes it: ``\\x1b``, ``\\u202e``, ``\\U000e0001``."""
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
