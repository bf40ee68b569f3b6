"""Which texts fit a few words best. Pure."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST_QUERY = 1_000
_MOST_WORDS = 32  # of a query
_SHORTEST_STEM = 3
_IN_NAME = 3.0  # a word of a name tells more than one of a description


def ranked(query: str, rows: Sequence[tuple[str, ...]]) -> list[int]:
    """The numbers of the ``rows`` that have any word of ``query`` (or begin with it), best first.

    The last text of a row is its description, those before are its names. A word that few rows have counts more; of a
    query with very many words the first ones count.
    """
    wanted = list(dict.fromkeys(_words(query[:_LONGEST_QUERY])))[:_MOST_WORDS]
    places: dict[str, list[tuple[int, float]]] = {}
    for n, row in enumerate(rows):
        for words, weight in ((_words(" ".join(row[:-1])), _IN_NAME), (_words(row[-1]), 1.0)):
            for word in set(words):
                places.setdefault(word, []).append((n, weight))
    known = sorted(places)
    scores = [0.0] * len(rows)
    for word in wanted:
        hits: dict[int, float] = {}
        for other, fit in _alike(word, known, places):
            for n, weight in places[other]:
                hits[n] = max(hits.get(n, 0.0), fit * weight)
        rare = math.log(1 + len(rows) / (1 + len(hits)))
        for n, hit in hits.items():
            scores[n] += hit * rare
    return [n for n in sorted(range(len(rows)), key=lambda n: (-scores[n], n)) if scores[n] > 0]


def _alike(word: str, known: Sequence[str], places: Container[str]) -> Iterator[tuple[str, float]]:
    """Those of the ``known`` words, which are in order, that ``word`` fits, and how well."""
    if word in places:
        yield word, 1.0
    stem = word[:-1] if word.endswith("s") and len(word) > 3 else word
    if len(stem) < _SHORTEST_STEM:
        return
    for n in range(bisect_left(known, stem), len(known)):
        if not known[n].startswith(stem):
            break
        yield known[n], 0.5
    for length in range(_SHORTEST_STEM, len(stem)):
        if stem[:length] in places:
            yield stem[:length], 0.5


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_HUMP.sub(" ", text))]
