"""What a person is shown before they decide: text that cannot pass for other text, and never all of it hidden. Pure.

Everything comes as JSON on one line. What a screen acts upon, does not show, or shows in another order is written as
JSON's own escape (``\\u202e``, ``\\n``), so that what is shown can be read back as exactly what it is.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casemate.visible import is_plain

_MOST_MARKS = 2  # combining marks on one character; more of them run into the lines above and below
_MOST_SHOWN = 2000  # characters of one argument: about a screen
_TAIL = 0.4  # of what is shown: what comes last is as likely to matter


@dataclass(frozen=True, slots=True)
class Excerpt:
    """One argument as it is shown: ``head``, then ``hidden`` characters that are not shown, then ``tail``.

    ``size``: characters in all, as canonical JSON.
    """

    name: str
    size: int
    head: str
    hidden: int = 0
    tail: str = ""

    def __str__(self) -> str:
        """Lines that no argument can imitate: what comes from a cell never holds a line's end."""
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
    """``text`` on one line, unambiguous: escaped as in JSON, a backslash too, without the quotes around it."""
    return _escape_json(json.dumps(text, ensure_ascii=False)[1:-1])


def shown_value(value: Any) -> str:
    """A JSON value on one line: JSON that reads back as the same value, names in order."""
    return _escape_json(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(", ", ": ")))


def excerpts(arguments: Mapping[str, Any], most: int = _MOST_SHOWN) -> tuple[Excerpt, ...]:
    """Each argument with about ``most`` characters of it at the most: its size, head and tail, and what is hidden."""
    return tuple(_excerpt(name, arguments[name], most) for name in sorted(arguments))


def request_text(who: str, *, kind: str, server: str, tool: str, summary: str, arguments: Mapping[str, Any]) -> str:
    """What a request for approval wants, in lines that nothing of a program's can begin. ``who``: "the program", where
    the kind says what that wants."""
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
    """JSON ``text`` with further escapes; a combining mark stays only where it is one of few on a letter."""
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
