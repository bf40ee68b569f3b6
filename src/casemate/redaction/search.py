"""Finds forms of secrets in bytes, and parts of them at ellipses and at the end. Pure; imports its library on use."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

SHORTEST_PIECE = 4  # bytes of a secret that are worth hiding
_ELLIPSES = (b"...", "…".encode())  # programs put them where they cut a text
_QUOTES = b"'\"`"  # one may stand before an ellipsis: Node cuts texts within their quotes
_ROW = re.compile("(?:[.]+|(?:…)+) ?".encode())  # an ellipsis may be longer, and end with a space
_HEAD = 16  # bytes of a form's beginning that are searched for; the rest is compared
_HEADS = (_HEAD, 64, 256)  # longer ones distinguish forms that share a beginning, as all keys of one kind do
_WORTH_A_TABLE = 1 << 20  # searched bytes after which building a faster search pays off
_LARGEST_TABLE = 1 << 16  # bytes of all heads; their table takes about five hundred times as much memory
_LARGEST_BESIDE = 1 << 14  # the same for the search at ellipses, which has forty times as many bytes
_BLOCK = 1 << 12  # bytes of one search for the first ellipsis


@dataclass(frozen=True, slots=True)
class Matches:
    heads: list[tuple[int, int]]  # where a form may begin, and its number
    cuts: list[tuple[int, int]]  # begin and end of each ellipsis; may be empty if no part of a form is beside one


_NOTHING = Matches([], [])


class Forms:
    """Forms of secrets by number, and the marker of each. Usable from any thread."""

    def __init__(self, markers: Mapping[bytes, bytes]) -> None:
        """``markers``: by form."""
        self.forms = tuple(sorted(markers))
        self.markers = tuple(markers[form] for form in self.forms)
        by_head = _by_head(self.forms)
        self.heads, self._headed = tuple(by_head), tuple(by_head.values())
        self._longest_head = max(map(len, self.heads), default=0)
        self._longest = max(map(len, self.forms), default=0)
        self._beginnings = {form[:length] for form in self.forms for length in range(1, _HEAD + 1)}
        self._search = _search_for(self.heads)
        self._beside: Beside | None = None
        wanted = sum(map(len, self.heads))
        self._slow_for = _WORTH_A_TABLE if wanted <= _LARGEST_TABLE else 0
        self._slow_at_cuts_for = _WORTH_A_TABLE if wanted <= _LARGEST_BESIDE else 0

    def look(self, data: bytes) -> Matches:
        """Search ``data`` for heads and for ellipses."""
        heads = self.heads_in(data)
        if not _is_cut(data):
            return Matches(heads, []) if heads else _NOTHING
        if self._slow_at_cuts_for > 0:
            self._slow_at_cuts_for -= len(data)
            if self._slow_at_cuts_for <= 0:
                self._beside = Beside(self, self.mirror)
        if not heads and self._beside is not None and not self._beside.may_be_in(data):
            return _NOTHING
        return Matches(heads, _cuts_in(data))

    def heads_in(self, data: bytes) -> list[tuple[int, int]]:
        """Return where a form may begin in ``data``, and its number."""
        if self._slow_for > 0:
            self._slow_for -= len(data)
            if self._slow_for <= 0:
                self._search = _search_for(self.heads, table=True)
        if not (matches := self._search.find_matches_as_indexes(data)):
            return []
        first = matches[0][1]
        found = self._search_all.find_matches_as_indexes(data[first:], overlapping=True)
        return [(first + at, number) for what, at, _ in found for number in self._headed[what]]

    def find_prefix(self, data: bytes, end: int, shortest: int = 1, first: int = 0) -> tuple[int, int] | None:
        """Find the longest beginning of a form that ends at ``end``: its start and its form's number. It has at least
        ``shortest`` bytes and starts at ``first`` or later. Longer ones have a whole head, which :meth:`look` finds."""
        for begin in self._begins(data, max(first, end - self._longest_head + 1), end, shortest):
            if data[begin : min(begin + _HEAD, end)] in self._beginnings:
                piece = data[begin:end]
                number = bisect_right(self.forms, piece)  # a form that begins with it comes next in order
                if number < len(self.forms) and self.forms[number].startswith(piece):
                    return begin, number
        return None

    def _begins(self, data: bytes, first: int, end: int, shortest: int) -> Iterator[int]:
        """Yield where a form may begin, in order. More than ``_HEAD`` bytes before ``end``, it searches for heads."""
        near = max(first, end - _HEAD)
        if first < near:
            found = self._search_longer.find_matches_as_indexes(data[first:end], overlapping=True)
            yield from (first + at for _, at, _ in found if first + at < near)
        yield from range(near, end - shortest + 1)

    def pieces(
        self, data: bytes, heads: Sequence[tuple[int, int]], cuts: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield beginnings of forms that end where one of ``cuts`` begins: begin, end and number. ``cuts`` are sorted
        (begin, end) pairs. Only a form that contains an ellipsis goes on beyond one."""
        ends = [begin for begin, _ in cuts]
        for begin, number in heads:
            place = bisect_right(ends, begin)
            while place < len(ends) and self.goes_on(data, begin, ends[place], number):
                yield begin, ends[place], number
                place = place + 1 if self._have_ellipses else len(ends)
        known, size = self.parts_of_heads, SHORTEST_PIECE
        firsts = [0] * len(ends) if self._have_ellipses else [0, *(end for _, end in cuts[:-1])]
        for first, end in [both for both in zip(firsts, ends, strict=True) if data[both[1] - size : both[1]] in known]:
            if begun := self.find_prefix(data, end, size, first):
                yield begun[0], end, begun[1]

    def goes_on(self, data: bytes, begin: int, end: int, number: int) -> bool:
        """Whether form ``number`` begins with ``data[begin:end]`` and is longer."""
        form = self.forms[number]
        return len(form) > end - begin and form.startswith(data[begin:end])

    def part(self, data: bytes) -> int | None:
        """Return the number of a form that contains ``data``."""
        if not 0 < len(data) <= self._longest or data not in self._all:
            return None
        return next((number for number, form in enumerate(self.forms) if data in form), None)

    def behind_cut(self, data: bytes) -> int:
        """Return where the last ellipsis of ``data`` ends, if a part of a form can follow it; else the length."""
        first = max(0, len(data) - self._longest - len(" ") - max(map(len, _ELLIPSES)))
        found = max((at + len(mark) for mark in _ELLIPSES if (at := data.rfind(mark, first)) >= 0), default=len(data))
        return found + data.startswith(b" ", found)

    @cached_property
    def mirror(self) -> Forms:
        """The same forms reversed: the end of a form is a beginning here."""
        return Forms({form[::-1]: marker for form, marker in zip(self.forms, self.markers, strict=True)})

    @cached_property
    def parts_of_heads(self) -> frozenset[bytes]:
        """The possible last bytes of a beginning that is shorter than its head."""
        size = SHORTEST_PIECE
        return frozenset(head[at : at + size] for head in self.heads for at in range(len(head) - size + 1))

    @cached_property
    def _all(self) -> bytes:
        """All forms in a row, which contain every part of a form, and more."""
        return b"".join(self.forms)

    @cached_property
    def _have_ellipses(self) -> bool:
        return any(mark in form for form in self.forms for mark in (*_ELLIPSES, *(mark[::-1] for mark in _ELLIPSES)))

    @cached_property
    def _search_longer(self) -> BytesAhoCorasick:
        return _search_for(list({head[:_HEAD] for head in self.heads if len(head) > _HEAD}), kind="Standard")

    @cached_property
    def _search_all(self) -> BytesAhoCorasick:
        return _search_for(self.heads, kind="Standard")


class Beside:
    """Searches for parts of forms beside ellipses: the last bytes of a beginning, the first of a short end, the last of
    a long one. Most data has none, and its ellipses need not be checked one by one."""

    def __init__(self, forms: Forms, mirror: Forms) -> None:
        before, behind = forms.parts_of_heads, [part[::-1] for part in mirror.parts_of_heads]
        next_to = [part + mark for mark in _ELLIPSES for part in before]
        next_to += [mark + space + part for mark in _ELLIPSES for space in (b"", b" ") for part in behind]
        quoted = [bytes([quote]) + mark for mark in _ELLIPSES for quote in _QUOTES]
        # The search skips to the rarest byte of its first pattern if all other patterns have it, too: here a dot.
        common = [mark + b"e" + mark for mark in _ELLIPSES]
        self._next_to = _search_for(common + quoted + next_to)
        self._ends = _search_for([head[::-1] for head in mirror.heads], table=True)

    def may_be_in(self, data: bytes) -> bool:
        """Whether ``data`` may have such a part. False is certain."""
        return bool(self._next_to.find_matches_as_indexes(data) or self._ends.find_matches_as_indexes(data))


def _search_for(wanted: Sequence[bytes], kind: str = "LeftmostLongest", *, table: bool = False) -> BytesAhoCorasick:
    """Build Aho and Corasick's search (Communications of the ACM 18, 1975), which takes linear time. ``table``: several
    times faster if many forms share a beginning, and ten times slower to build."""
    from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

    how = Implementation.DFA if table else Implementation.ContiguousNFA
    return BytesAhoCorasick(wanted, matchkind=getattr(MatchKind, kind), implementation=how)


@cache
def _search_for_ellipses() -> BytesAhoCorasick:
    return _search_for(_ELLIPSES)


def _is_cut(data: bytes) -> bool:
    """Whether ``data`` has an ellipsis. Stops at the first block that has one."""
    search, more = _search_for_ellipses(), max(map(len, _ELLIPSES)) - 1
    view = memoryview(data)
    return any(search.find_matches_as_indexes(view[at : at + _BLOCK + more]) for at in range(0, len(data), _BLOCK))


def _by_head(forms: Sequence[bytes]) -> dict[bytes, list[int]]:
    """Group the numbers of forms by their heads, few for each head: a cell that keeps printing a common beginning of
    keys must not cause a comparison with every key each time."""
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


def _cuts_in(data: bytes) -> list[tuple[int, int]]:
    """Return begin and end of each cut, with a quote before and a space after it; dots in a row are one cut."""
    cuts: list[tuple[int, int]] = []
    over = 0
    for _, begin, end in _search_for_ellipses().find_matches_as_indexes(data):
        if begin >= over:
            row = _ROW.match(data, begin)
            over = row.end() if row else end
            cuts.append((begin - 1 if begin and data[begin - 1] in _QUOTES else begin, over))
    return cuts
