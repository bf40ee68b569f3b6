"""How a program is looked at without being run: what every language's checker has, and what all share. Pure.

A hint is for a reader alone: it is not looked for well, and nothing depends on it. A repair is what could make a
program of a text that is none: slips of whoever copied it, and of models. Nothing here knows whether it helps: the text
that comes out is parsed again, and fixes that do not help are not told.
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


def no_repair(text: str, issues: Sequence[Issue], *, has_moved: bool) -> tuple[str, list[Fix]]:  # noqa: ARG001
    """A language without slips of its own."""
    return text, []


class Harm(NamedTuple):
    """What may do harm. ``calls`` names it for readers, ``pattern`` finds it in a line. Python is searched by its
    syntax tree instead: there ``calls`` is a list of calls, of ``.attributes``, and of modules as ``import name``."""

    calls: str
    code: str
    why: str
    pattern: str = ""


@dataclass(frozen=True)
class Checker:
    """``program`` reads a program in a cell. ``hints``: what may do harm. ``repair`` mends slips of this language: the
    text, what is wrong with it, and whether other repairs have moved its lines. ``read_lines`` reads what a ``program``
    says that does not answer in JSON."""

    program: str
    hints: tuple[Harm, ...] = ()
    repair: Callable[..., tuple[str, list[Fix]]] = no_repair
    read_lines: Callable[[Iterable[str]], Iterable[Issue]] | None = None

    def hints_of(self, text: str) -> tuple[Issue, ...]:
        """At most a hundred, in order: from its lines alone, comments and texts included."""
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
        text, more = self.repair(text, issues, has_moved=bool(fixes))
        return text, (*fixes, *more)


def _without_fences(text: str) -> str:
    if match := _FENCE.match(text):
        return f"{match[1]}\n"
    return _OPEN_FENCE.sub("", text, count=1) if _OPEN_FENCE.match(text) else text


def _first_difference(text: str, plain: str) -> int:
    pairs = zip(text.split("\n"), plain.split("\n"), strict=False)
    return next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 0)
