"""Replaces the secrets of a run in everything that comes out of it. Pure.

What is found is `[secret:NAME]` afterwards. Overlapping occurrences are replaced as one, so nothing of the longer of
two secrets is left over, and an occurrence that comes in pieces is found. Where an ellipsis (`...` or `…`) says that a
text was cut, what is left of a secret on either side of it is an occurrence as well, from four bytes on.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from casemate.redaction.forms import forms_of, lines_of
from casemate.redaction.search import SHORTEST_PIECE, Forms, Matches

_BINARY = re.compile(
    r"(image/(?!svg)|audio/|video/|font/|application/(pdf|zip|gzip|octet-stream|vnd\.))"
)  # media types
_MAYBE_ELLIPSIS = re.compile(b"['\"`]?(?:[.]{1,2}|\xe2\x80?)?\\Z")  # at the end of a piece
_CONTEXT = 4  # bytes that were handed on and are looked at again: an ellipsis, and a space
_FEW_DIGITS = 10_000_000  # a number below has fewer digits than any secret has bytes
Found = tuple[int, int, bytes]  # begin, end and marker of what is to be replaced


@dataclass(frozen=True, slots=True)
class Scan:
    """What is in some bytes. ``found``: of secrets and of what is left of them, the first and longest first; ``upto``:
    where at the end something begins that may go on as one, and ``begun`` its marker; else their length."""

    found: list[Found]
    upto: int
    begun: bytes


class Redaction:
    """Knows all forms of the secrets ``values``, which are given by name. Usable from any thread."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._given = tuple(values.items())

    @cached_property
    def _forms(self) -> Forms:
        given = self._given
        lines = tuple((name, line) for name, value in given for line in lines_of(value))
        markers = {
            form: f"[secret:{name}]".encode() for name, value in reversed(given + lines) for form in forms_of(value)
        }
        return Forms(markers)

    def prepare(self) -> None:
        """Make the search now and not when it is used first. It takes a tenth of a second for large keys."""
        self._forms  # noqa: B018 - it is made when it is asked for

    @property
    def forms(self) -> tuple[bytes, ...]:
        return self._forms.forms

    def __repr__(self) -> str:
        return f"Redaction({len(self.forms)} forms)"

    def stream(self) -> RedactedStream:
        """A stream of bytes of its own, that comes in pieces."""
        return RedactedStream(self)

    def data(self, data: bytes, *, cut: bool = False) -> bytes:
        """``data`` without the secrets. ``cut``: it may end within one; its beginning is then replaced, too."""
        stream = RedactedStream(self)
        return stream.feed(data) + stream.finish(cut=cut)

    def text(self, text: str) -> str:
        """``text`` without the secrets."""
        kept = self.data(text.encode("utf-8", "surrogatepass"))
        try:
            return kept.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # a secret in UTF-16 ended within a character of UTF-8
            return kept.decode("utf-8", "replace")

    def value(self, value: Any) -> Any:
        """The same JSON value, in which every text, every key and every number that holds a secret is without it."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.value(key): self._item(key, item) for key, item in value.items()}
            case list():
                return [self.value(item) for item in value]
            case tuple():
                return tuple(self.value(item) for item in value)
            case bool():
                return value
            case float() | int() if not -_FEW_DIGITS < value < _FEW_DIGITS:
                text = repr(value)
                return value if (kept := self.text(text)) == text else kept
        return value

    def _item(self, key: Any, item: Any) -> Any:
        """``item`` without secrets; where ``key`` says that it is base64 of bytes, also without those in the bytes."""
        if isinstance(key, str) and isinstance(item, str) and _BINARY.match(key):
            with contextlib.suppress(ValueError):
                if found := self.scan(base64.b64decode(item)).found:
                    return found[0][2].decode()
        return self.value(item)

    def scan(self, data: bytes) -> Scan:
        """Look for secrets in ``data``, for what is left of them at ellipses, and for a beginning at its end."""
        forms, seen = self._forms, self._forms.look(data)
        found = [
            (at, at + len(forms.forms[number]), forms.markers[number])
            for at, number in seen.heads
            if data.startswith(forms.forms[number], at)
        ]
        if seen.cuts:
            found += self._pieces(data, seen)
        found.sort(key=_first_longest)
        begun = min(self._find_beginnings(data, seen), default=None)
        return Scan(found, len(data), b"") if begun is None else Scan(found, begun[0], forms.markers[begun[1]])

    def _pieces(self, data: bytes, seen: Matches) -> Iterator[Found]:
        """What is left of secrets before and behind ellipses. The end of one is a beginning, seen in a mirror."""
        forms, mirror, size = self._forms, self._forms.mirror, len(data)
        for begin, end, number in forms.pieces(data, seen.heads, seen.cuts):
            yield begin, end, forms.markers[number]
        mirrored, cuts = data[::-1], [(size - end, size - begin) for begin, end in reversed(seen.cuts)]
        for begin, end, number in mirror.pieces(mirrored, mirror.heads_in(mirrored), cuts):
            if not _is_new_line(data, size - end):
                yield size - end, size - begin, mirror.markers[number]

    def _find_beginnings(self, data: bytes, seen: Matches) -> Iterator[tuple[int, int]]:
        """Where something begins that may go on as a secret, or as what is left of one at an ellipsis; and which."""
        forms, size = self._forms, len(data)
        maybe = _MAYBE_ELLIPSIS.search(data, max(0, size - _CONTEXT))
        end = maybe.start() if maybe else size
        yield from ((at, number) for at, number in seen.heads if forms.goes_on(data, at, end, number))
        if known := forms.find_prefix(data, size):
            yield known
        if end < size and (known := forms.find_prefix(data, end, SHORTEST_PIECE)):
            yield known
        begin = forms.behind_cut(data)
        if not _is_new_line(data, begin) and (part := forms.part(data[begin:])) is not None:
            yield begin, part


class RedactedStream:
    """Bytes in, bytes without secrets out. What may be the beginning of one is held back until more has come."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._kept = b""  # what was looked at and is looked at again: it is held back, or comes just before
        self._done = 0  # bytes of it that were handed on, or that a marker has taken the place of
        self.has_found = False  # whether there was any secret so far

    def feed(self, data: bytes) -> bytes:
        """What can be handed on now."""
        if self._kept:
            data = self._kept + data
        scan = self._redaction.scan(data)
        return self._handed_on(data, scan.upto, scan.found)

    def finish(self, *, cut: bool = False) -> bytes:
        """The rest: nothing more will come. ``cut``: something would have, so what may be the beginning of a secret,
        and is longer than three bytes, is replaced as well."""
        data, scan = self._kept, self._redaction.scan(self._kept)
        is_begun = cut and len(data) - scan.upto >= SHORTEST_PIECE
        rest = self._handed_on(data, scan.upto if is_begun else len(data), scan.found)
        if is_begun and self._kept[self._done :] == data[scan.upto :]:  # no marker has taken its place already
            rest += scan.begun
            self.has_found = True
        self._kept, self._done = b"", 0
        return rest

    def _handed_on(self, data: bytes, upto: int, found: list[Found]) -> bytes:
        """``data[:upto]`` with markers. Whatever ends before ``upto`` is final: nothing that begins there can go on."""
        parts: list[bytes] = []
        at = self._done
        for begin, end, marker in found:
            if begin >= upto:
                break
            if begin >= at:
                parts += (data[at:begin], marker)
                self.has_found = True
            at = max(at, end)
        if at < upto:
            parts.append(data[at:upto])
            at = upto
        first = max(0, upto - _CONTEXT)
        self._kept, self._done = data[first:], at - first
        return b"".join(parts)


def _is_new_line(data: bytes, at: int) -> bool:
    """Whether a line ends there: of a text that was cut in its middle the rest follows in the same line."""
    return data[at : at + 1] in (b"\n", b"\r")


def _first_longest(found: Found) -> tuple[int, int]:
    return found[0], -found[1]
