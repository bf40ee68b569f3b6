"""Differences between two versions of a file, as text for people, bounded in length and time for any content."""

from __future__ import annotations

import time
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

MOST_BYTES = 256 * 1024  # of a content that is compared by lines
_MOST_OF_FILE = 64 * 1024  # characters of one file's diff
_MOST_OF_ALL = 256 * 1024  # characters of all diffs together
_SECONDS = 1.0  # cpu time for all diffs: content can be made so that a comparison takes forever
_MOST_LINES = 1000  # of a text that is compared line by line; longer texts are shown whole, before and after
_CONTEXT = 3


class TextDiff(NamedTuple):
    text: str = ""
    is_binary: bool = False  # why the text is missing or incomplete
    left_out: str = ""


class TextDiffs:
    def __init__(self) -> None:
        self._left = _MOST_OF_ALL
        self._seconds = _SECONDS

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or self._seconds <= 0

    def compare(self, before: bytes, after: bytes) -> TextDiff:
        """The lines that differ. Each content has at most ``MOST_BYTES``."""
        old, new = _lines(before), _lines(after)
        if old is None or new is None:
            return TextDiff(is_binary=True)
        if self.is_over:
            return TextDiff(left_out="all differences together are too long to show")
        began = time.thread_time()
        text, left_out = _cut(unified_lines(old, new), min(_MOST_OF_FILE, self._left))
        self._seconds -= time.thread_time() - began
        self._left = 0 if left_out and self._left < _MOST_OF_FILE else self._left - len(text)
        return TextDiff(text, left_out=f"{left_out} more lines are not shown" if left_out else "")


def _lines(content: bytes) -> list[str] | None:
    """The lines without line ends; a missing last one is marked. None for binary content."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    *lines, last = text.split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


def _cut(lines: Iterator[str], most: int) -> tuple[str, int]:
    """As many whole lines as fit in ``most`` characters, and the number left out."""
    kept, rest = [], 0
    for line in lines:
        most -= len(line) + 1
        if most < 0:
            rest += 1
        else:
            kept.append(f"{line}\n")
    return "".join(kept), rest


def unified_lines(old: list[str], new: list[str]) -> Iterator[str]:
    """The lines of a unified diff, without the two header lines."""
    most = min(len(old), len(new))
    first = next((at for at in range(most) if old[at] != new[at]), most)
    last = next((at for at in range(most - first) if old[-1 - at] != new[-1 - at]), most - first)
    start, rest = max(0, first - _CONTEXT), max(0, last - _CONTEXT)
    old, new = old[start : len(old) - rest], new[start : len(new) - rest]
    if max(len(old), len(new)) > _MOST_LINES:
        groups = [[("replace", 0, len(old), 0, len(new))]]
    else:
        groups = list(SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT))
    for group in groups:
        (_, old_from, _, new_from, _), (_, _, old_to, _, new_to) = group[0], group[-1]
        yield f"@@ -{_range(start, old_from, old_to)} +{_range(start, new_from, new_to)} @@"
        for tag, *places in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[places[0] : places[1]])
                continue
            yield from (f"-{line}" for line in old[places[0] : places[1]])
            yield from (f"+{line}" for line in new[places[2] : places[3]])


def _range(start: int, first: int, end: int) -> str:
    """A line range of a unified diff: counted from 1; an empty range is at the line before it."""
    number, count = start + first + 1, end - first
    return f"{number}" if count == 1 else f"{number if count else number - 1},{count}"
