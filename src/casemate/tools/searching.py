"""Which texts fit a few words best. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST_QUERY = 1_000
_IN_NAME = 3.0  # a word of a name tells more than one of a description


def ranked(query: str, rows: Sequence[tuple[str, ...]]) -> list[int]:
    """The numbers of the ``rows`` that have any word of ``query`` (or begin with it), best first.

    The last text of a row is its description, those before are its names. A word that few rows have counts more.
    """
    wanted = list(dict.fromkeys(_words(query[:_LONGEST_QUERY])))
    texts = [(set(_words(" ".join(row[:-1]))), Counter(_words(row[-1]))) for row in rows]
    scores = [0.0] * len(rows)
    for word in wanted:
        hits = [max(_score(word, names) * _IN_NAME, _score(word, set(about))) for names, about in texts]
        rare = math.log(1 + len(rows) / (1 + sum(hit > 0 for hit in hits)))
        scores = [score + hit * rare for score, hit in zip(scores, hits, strict=True)]
    return [n for n in sorted(range(len(rows)), key=lambda n: (-scores[n], n)) if scores[n] > 0]


def _score(word: str, words: set[str]) -> float:
    if word in words:
        return 1.0
    stem = word[:-1] if word.endswith("s") and len(word) > 3 else word
    if len(stem) >= 3 and any(
        other.startswith(stem) or (len(other) >= 3 and stem.startswith(other)) for other in words
    ):
        return 0.5
    return 0.0


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_HUMP.sub(" ", text))]
