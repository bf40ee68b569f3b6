"""The display of a request for approval: text that cannot pass for other text, and never entirely hidden. Pure.

Everything is JSON on one line. Characters that control a screen, are invisible or change the order of text become JSON
escapes (``\\u202e``, ``\\n``), so that the display can be read back exactly.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casemate.visible import is_plain

_MOST_MARKS = 2  # combining marks on one character; more of them run into the lines above and below
_MOST_SHOWN = 2000  # characters of one argument, about a screen
_TAIL = 0.4  # of the displayed characters: the end is as likely to matter


@dataclass(frozen=True, slots=True)
class Excerpt:
    """One displayed argument: ``head``, then a note of ``hidden`` characters, then ``tail``."""

    name: str
    size: int  # characters in all, as canonical JSON
    head: str
    hidden: int = 0
    tail: str = ""

    def __str__(self) -> str:
        """Lines that no argument can imitate: data from a cell never contains a line break."""
        if not self.hidden:
            return f"{self.name}: {self.head}"
        return "\n".join(
            (
                f"{self.name} ({self.size} characters, {self.hidden} of them not shown): {self.head}",
                f"    [{self.hidden} characters are not shown]",
                f"    {self.tail}",
            )
        )


def escape_text(text: str) -> str:
    """Return ``text`` on one line, escaped as in JSON, including backslashes, without the quotes."""
    return _escape_json(json.dumps(text, ensure_ascii=False)[1:-1])


def shown_value(value: Any) -> str:
    """Return a JSON value on one line, with sorted names. It reads back as the same value."""
    return _escape_json(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(", ", ": ")))


def excerpts(arguments: Mapping[str, Any], most: int = _MOST_SHOWN) -> tuple[Excerpt, ...]:
    """Return an excerpt of each argument, with about ``most`` characters at most."""
    return tuple(_excerpt(name, arguments[name], most) for name in sorted(arguments))


def request_text(who: str, *, kind: str, server: str, tool: str, summary: str, arguments: Mapping[str, Any]) -> str:
    """Describe an approval request in lines whose start no program can forge. ``who`` is the subject of the first."""
    named = {
        "tool": f"call {shown_value(tool)} of the server {shown_value(server)}",
        "server": f"add the MCP server {shown_value(server)}",
    }
    first = f"{who} wants to {named[kind]}" if kind in named else f"casemate: {kind}: {escape_text(summary)}"
    more = (f"    {line}" for one in excerpts(arguments) for line in str(one).split("\n"))
    return "\n".join((first, *more))


def _excerpt(name: str, value: Any, most: int) -> Excerpt:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(", ", ": "))
    title = _escape_json(json.dumps(name, ensure_ascii=False)[1:-1])
    if len(text) <= most:
        return Excerpt(title, len(text), _escape_json(text))
    last = int(most * _TAIL)
    head, tail = _escape_json(text[: most - last]), _escape_json(text[len(text) - last :])
    return Excerpt(title, len(text), head, len(text) - most, tail)


def _escape_json(text: str) -> str:
    """Escape JSON ``text`` further. A letter keeps at most two combining marks."""
    if text.isascii() and is_plain(text):
        return text
    pieces: list[str] = []
    marks = 0
    for place, character in enumerate(text):
        if " " <= character <= "~":
            pieces.append(character)
            marks = 0
            continue
        if unicodedata.category(character) in ("Mn", "Me"):
            marks += 1
            on_letter = place > 0 and text[place - marks].isalpha() and text[max(place - marks - 1, 0)] != "\\"
            plain = on_letter and marks <= _MOST_MARKS
        else:
            marks = 0
            plain = True
        pieces.append(character if plain and is_plain(character) else json.dumps(character)[1:-1])
    return "".join(pieces)
