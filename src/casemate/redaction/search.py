"""Finds forms of secrets in bytes, and what is left of them where bytes end or somebody has cut a text. Pure; loads its
search when it is made.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

SHORTEST_PIECE = 4  # bytes of a secret that are worth hiding
_ELLIPSES = (b"...", "…".encode())  # where programs have cut a text for people to read
_QUOTES = frozenset(b"'\"`")  # one may stand before an ellipsis: Node cuts texts within their quotes
_ROW = re.compile("(?:[.]+|(?:…)+) ?".encode())  # it may be longer, and end with a space
_HEAD = 16  # bytes at the beginning of a form by which it is looked for; the rest is compared
_HEADS = (_HEAD, 64, 256)  # the same where so many are needed to tell it from others: all keys of one kind begin alike
_WORTH_A_TABLE = 1 << 20  # bytes searched, after which the time to make a faster search is soon won back
_LARGEST_TABLE = 1 << 16  # bytes of what is looked for: its table takes about five hundred times as much memory


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen in some bytes. ``heads``: where a form may begin, and its number; ``cuts``: begin and end of each
    ellipsis, in order."""

    heads: list[tuple[int, int]]
    cuts: list[tuple[int, int]]


_NOTHING = Seen([], [])


class Forms:
    """Forms of secrets by number, and the marker of each. Usable from any thread."""

    def __init__(self, markers: Mapping[bytes, bytes], *, cuts: bool = True) -> None:
        """``markers``: by form; ``cuts``: whether ellipses are looked for, too."""
        self._marks = _ELLIPSES if cuts else ()
        self.forms = tuple(sorted(markers))
        self.markers = tuple(markers[form] for form in self.forms)
        by_head = _by_head(self.forms)
        self._heads, self._headed = tuple(by_head), tuple(by_head.values())
        self._longest_head = max(map(len, self._heads), default=0)
        self._longest = max(map(len, self.forms), default=0)
        self._beginnings = {form[:length] for form in self.forms for length in range(1, _HEAD + 1)}
        self._search = self._search_for("LeftmostLongest")
        self._slow_for = _WORTH_A_TABLE if sum(map(len, self._heads)) <= _LARGEST_TABLE else 0

    def look(self, data: bytes) -> Seen:
        """Search ``data``."""
        if self._slow_for > 0:
            self._slow_for -= len(data)
            if self._slow_for <= 0:
                self._search = self._search_for("LeftmostLongest", table=True)
        if not (matches := self._search.find_matches_as_indexes(data)):
            return _NOTHING
        ellipses = [match for match in matches if match[0] < len(self._marks)]
        heads = list(self._heads_in(data, matches[0][1])) if len(ellipses) < len(matches) else []
        return Seen(heads, _cuts_at(data, ellipses))

    def _heads_in(self, data: bytes, first: int) -> Iterator[tuple[int, int]]:
        """Where heads are, of which none begins before ``first``."""
        for what, at, _ in self._search_all.find_matches_as_indexes(data[first:], overlapping=True):
            if what >= len(self._marks):
                for number in self._headed[what - len(self._marks)]:
                    yield first + at, number

    def beginning(self, data: bytes, first: int, end: int, shortest: int = 1) -> tuple[int, int] | None:
        """Where the longest beginning of a form begins that ends at ``end``, not before ``first``, and its number,
        unless :meth:`look` sees its head. It has ``shortest`` bytes at least."""
        for begin in range(max(first, end - self._longest_head + 1), end - shortest + 1):
            if data[begin : min(begin + _HEAD, end)] in self._beginnings:
                piece = data[begin:end]
                number = bisect_right(self.forms, piece)  # a form that begins with it comes next in order
                if number < len(self.forms) and self.forms[number].startswith(piece):
                    return begin, number
        return None

    def pieces(
        self, data: bytes, heads: Sequence[tuple[int, int]], firsts: Sequence[int], ends: Sequence[int]
    ) -> Iterator[tuple[int, int, int]]:
        """Beginnings of forms that end at one of ``ends``, where something was cut: begin, end and number of each.

        ``firsts``: where the cut before each of them was over. Both are in order.
        """
        for begin, number in heads:
            place = bisect_right(ends, begin)
            if place < len(ends) and self.goes_on(data, begin, ends[place], number):
                yield begin, ends[place], number
        known, size = self._parts_of_heads, SHORTEST_PIECE
        for first, end in [both for both in zip(firsts, ends, strict=True) if data[both[1] - size : both[1]] in known]:
            if begun := self.beginning(data, first, end, size):
                yield begun[0], end, begun[1]

    def goes_on(self, data: bytes, begin: int, end: int, number: int) -> bool:
        """Whether form ``number`` begins with ``data[begin:end]`` and is longer."""
        form = self.forms[number]
        return len(form) > end - begin and form.startswith(data[begin:end])

    def part(self, data: bytes) -> int | None:
        """The number of a form that ``data`` is a part of."""
        if not 0 < len(data) <= self._longest:
            return None
        return next((number for number, form in enumerate(self.forms) if data in form), None)

    @cached_property
    def mirror(self) -> Forms:
        """The same forms from their ends: what ends one begins another here."""
        return Forms({form[::-1]: marker for form, marker in zip(self.forms, self.markers, strict=True)}, cuts=False)

    def _search_for(self, kind: str, *, table: bool = False) -> BytesAhoCorasick:
        """Aho and Corasick's search (Communications of the ACM 18, 1975): its time grows with the data and no worse.

        ``table``: several times faster where many forms begin alike, and ten times slower to make.
        """
        from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

        wanted, how = [*self._marks, *self._heads], Implementation.DFA if table else Implementation.ContiguousNFA
        return BytesAhoCorasick(wanted, matchkind=getattr(MatchKind, kind), implementation=how)

    @cached_property
    def _search_all(self) -> BytesAhoCorasick:
        return self._search_for("Standard")

    @cached_property
    def _parts_of_heads(self) -> frozenset[bytes]:
        """What a beginning that is shorter than its head may end with."""
        size = SHORTEST_PIECE
        return frozenset(head[at : at + size] for head in self._heads for at in range(len(head) - size + 1))


def _by_head(forms: Sequence[bytes]) -> dict[bytes, list[int]]:
    """Numbers of forms by the bytes at their beginning that are looked for: few for each, however alike they begin. A
    cell that prints for ever how all keys begin must not make each of them be compared each time."""
    found: dict[bytes, list[int]] = {}
    left: Sequence[int] = range(len(forms))
    for length in _HEADS:
        groups: dict[bytes, list[int]] = {}
        for number in left:
            groups.setdefault(forms[number][:length], []).append(number)
        alone = {head: group for head, group in groups.items() if len(group) == 1 or length == _HEADS[-1]}
        found |= alone
        left = [number for head, group in groups.items() if head not in alone for number in group]
    return found


def _cuts_at(data: bytes, ellipses: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Begin and end of each cut, with the quote before it and the space behind it; dots in a row are one."""
    cuts: list[tuple[int, int]] = []
    over = 0
    for _, begin, end in ellipses:
        if begin >= over:
            row = _ROW.match(data, begin)
            over = row.end() if row else end
            cuts.append((begin - 1 if begin and data[begin - 1] in _QUOTES else begin, over))
    return cuts
