"""Strangers' texts inside generated source: as literals and documentation that are nothing else. Pure."""

from __future__ import annotations

import re

from casemate.visible import escape

_QUOTE = re.compile(r'"(?="|\Z)')  # one that could be of three, with the end's own
LONGEST_DESCRIPTION = 8_000
LONGEST_LINE = 600
_CUT = " [...]"


def shown(text: str, longest: int = LONGEST_DESCRIPTION) -> str:
    """``text`` for people and models: cut, control characters and what changes the direction of text as escapes."""
    cut = text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT
    lines = cut.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join("".join(map(_visible, line)).rstrip() for line in lines).strip()


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """``text`` on a single line."""
    return shown(" ".join(text[: 4 * longest].split()), longest)


def python_docstring(text: str, indent: str = "") -> str:
    """A docstring that reads as ``text``, in which nothing can end it, and no escape is one."""
    safe = _QUOTE.sub('\\\\"', text.replace("\\", "\\\\"))
    lines = safe.split("\n")
    body = "\n".join([lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:])])
    return f'"""{body}"""' if len(lines) == 1 else f'"""{body}\n{indent}"""'


def script_comment(text: str, indent: str = "") -> str:
    """A documentation comment of JavaScript that reads as ``text``, in which nothing can end it."""
    safe = text.replace("*/", "*\\/")
    return "\n".join([f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in safe.split("\n")), f"{indent} */"])


def _visible(character: str) -> str:
    return character if character.isprintable() or character == " " else escape(character)
