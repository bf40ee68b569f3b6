"""Checks a program without running it: the checker of each language, and what all share.

Hints are for readers only: they are not thorough, and nothing depends on them. Repairs undo slips of copying and of
models that keep a text from being a program. Nothing here knows whether a repair helps: the result is parsed again, and
repairs that do not help are not reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from casemate.model.overview import Fix, Issue

LONGEST_REPAIRED = 1 << 18  # characters
_LONGEST_HINTED = 1 << 18  # characters
_LONGEST_LINE = 1000
_MOST = 100
_FENCE = re.compile(r"\s*(?:```|~~~)[^\n`]{0,40}\n(.*?)\n?(?:```|~~~)\s*\Z", re.DOTALL)
_OPEN_FENCE = re.compile(r"\s*```[^\n`]{0,40}\n")
_TYPOGRAPHIC: dict[str, str | int | None] = {
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2013": "-",
    "\u2014": "-", "\u2212": "-", "\u00a0": " ", "\u202f": " ", "\u200b": "", "\ufeff": "", "\u2026": "...",
}  # fmt: skip


class Harm(NamedTuple):
    """A kind of harmful code."""

    # For readers; for Python, the calls, ``.attributes`` and modules (``import name``) to find in the syntax tree
    calls: str
    code: str
    why: str
    pattern: str = ""  # finds it in a line of any other language


@dataclass(frozen=True)
class Checker:
    """The checker of a language."""

    program: str  # reads a program in a cell
    hints: tuple[Harm, ...] = ()  # what may do harm
    # Mends slips of this language. Gets the text, its issues, and whether earlier repairs moved its lines.
    repair: Callable[..., tuple[str, list[Fix]]] | None = None
    # Parses the output of a ``program`` that does not answer in JSON
    read_lines: Callable[[Iterable[str]], Iterable[Issue]] | None = None

    def hints_of(self, text: str) -> tuple[Issue, ...]:
        """At most a hundred hints, in order, from the lines alone, including comments and strings."""
        found: list[Issue] = []
        known = [(re.compile(hint.pattern, re.ASCII), hint.code, hint.why) for hint in self.hints if hint.pattern]
        for number, line in enumerate(text[:_LONGEST_HINTED].split("\n") if known else (), 1):
            for pattern, code, why in known:
                if match := pattern.search(line[:_LONGEST_LINE]):
                    found.append(Issue(number, match.start() + 1, f"Hint: {why}.", "hint", code))
            if len(found) >= _MOST:
                break
        return tuple(found[:_MOST])

    def repair_text(self, text: str, issues: Sequence[Issue]) -> tuple[str, tuple[Fix, ...]]:
        """Apply repairs that may help. Returns the text and the repairs; none if the text is too long."""
        if len(text) > LONGEST_REPAIRED:
            return text, ()
        fixes: list[Fix] = []
        if (plain := _without_fences(text)) != text:
            text = plain
            fixes.append(Fix("Remove the Markdown fence around the program", 1, "fence"))
        if (plain := text.translate(str.maketrans(_TYPOGRAPHIC))) != text:
            fixes.append(Fix("Write plain quotes, dashes and spaces", _first_difference(text, plain), "typography"))
            text = plain
        text, more = self.repair(text, issues, has_moved=bool(fixes)) if self.repair else (text, [])
        return text, (*fixes, *more)


def _without_fences(text: str) -> str:
    if match := _FENCE.match(text):
        return f"{match[1]}\n"
    return _OPEN_FENCE.sub("", text, count=1) if _OPEN_FENCE.match(text) else text


def _first_difference(text: str, plain: str) -> int:
    pairs = zip(text.split("\n"), plain.split("\n"), strict=False)
    return next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 0)
