"""What could make a program of a text that is none: slips of whoever copied it, and of models. Pure.

Nothing here knows whether it helps: the text that comes out is parsed again, and fixes that do not help are not told.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from casemate.model.overview import Fix, Issue

LONGEST_REPAIRED = 1 << 18  # characters

_FENCE = re.compile(r"\s*(?:```|~~~)[^\n`]{0,40}\n(.*?)\n?(?:```|~~~)\s*\Z", re.DOTALL)
_OPEN_FENCE = re.compile(r"\s*```[^\n`]{0,40}\n")
_TYPOGRAPHIC: dict[str, str | int | None] = {
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2013": "-",
    "\u2014": "-", "\u2212": "-", "\u00a0": " ", "\u202f": " ", "\u200b": "", "\ufeff": "", "\u2026": "...",
}  # fmt: skip
_COLON = re.compile(r"expected ':'")


def repair(text: str, language: str, issues: Sequence[Issue]) -> tuple[str, tuple[Fix, ...]]:
    """``text`` with whatever may help, and what that was; nothing for a text that is too long."""
    if len(text) > LONGEST_REPAIRED:
        return text, ()
    fixes: list[Fix] = []
    if (plain := _without_fences(text)) != text:
        text = plain
        fixes.append(Fix("Take away the Markdown fence around the program", 1, "fence"))
    if (plain := text.translate(str.maketrans(_TYPOGRAPHIC))) != text:
        fixes.append(Fix("Write plain quotes, dashes and spaces", _first_difference(text, plain), "typography"))
        text = plain
    if language == "shell" and "\r\n" in text:
        text = text.replace("\r\n", "\n")
        fixes.append(Fix("End lines with a line feed alone", 0, "line-ends"))
    if language == "python":
        text, more = _repaired_python(text, issues, has_moved=bool(fixes))
        fixes += more
    return text, tuple(fixes)


def _without_fences(text: str) -> str:
    if told := _FENCE.match(text):
        return f"{told[1]}\n"
    return _OPEN_FENCE.sub("", text, count=1) if _OPEN_FENCE.match(text) else text


def _first_difference(text: str, plain: str) -> int:
    pairs = zip(text.split("\n"), plain.split("\n"), strict=False)
    return next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 0)


def _repaired_python(text: str, issues: Sequence[Issue], *, has_moved: bool) -> tuple[str, list[Fix]]:
    """Indentation of the whole, tabs among spaces, and a colon that is missing where the parser says so."""
    fixes = []
    if (plain := textwrap.dedent(text)) != text and text[:1] in (" ", "\t", "\n"):
        text = plain
        fixes.append(Fix("Take away the indentation of the whole", 1, "indentation"))
    if any("inconsistent use of tabs" in issue.message for issue in issues):
        text = text.expandtabs(8)
        fixes.append(Fix("Write spaces for tabs", 0, "tabs"))
    colon = next((issue for issue in issues if _COLON.match(issue.message)), None)
    if colon is not None and not has_moved and not fixes:
        lines = text.split("\n")
        if 0 < colon.line <= len(lines) and colon.column > 0:
            line = lines[colon.line - 1]
            lines[colon.line - 1] = f"{line[: colon.column - 1].rstrip()}:{line[colon.column - 1 :]}"
            text = "\n".join(lines)
            fixes.append(Fix("Write a colon at the end of what begins a block", colon.line, "colon"))
    return text, fixes
