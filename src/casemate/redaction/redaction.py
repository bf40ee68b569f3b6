"""Replaces a run's secrets in all its output by `[secret:NAME]`. Pure.

Overlapping occurrences are replaced as one, so nothing of the longer secret remains. Occurrences that come in pieces
are found. An ellipsis (`...` or `…`) marks a cut text; four or more bytes of a secret beside it are replaced, too.
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
_CONTEXT = 4  # bytes already returned that are searched again: an ellipsis and a space
_FEW_DIGITS = 10_000_000  # a number below has fewer digits than any secret has bytes
Found = tuple[int, int, bytes]  # begin, end and marker


@dataclass(frozen=True, slots=True)
class Scan:
    found: list[Found]  # secrets and parts of them, by begin, the longest first
    upto: int  # start of a possible secret that the end of the data cuts; else the length of the data
    begun: bytes  # its marker


class Redaction:
    """Replaces all forms of the secrets ``values``, which are given by name. Usable from any thread."""

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
        """Build the search now instead of at its first use. It takes a tenth of a second for large keys."""
        self._forms  # noqa: B018 - access builds it

    def __repr__(self) -> str:
        return f"Redaction({len(self._forms.forms)} forms)"

    def stream(self) -> RedactedStream:
        """Return a redactor for bytes that come in pieces."""
        return RedactedStream(self)

    def data(self, data: bytes, *, cut: bool = False) -> bytes:
        """Return ``data`` without secrets. ``cut``: it may end within one, so the beginning of one is replaced too."""
        stream = RedactedStream(self)
        return stream.feed(data) + stream.finish(cut=cut)

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        kept = self.data(text.encode("utf-8", "surrogatepass"))
        try:
            return kept.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # a secret in UTF-16 ended within a character of UTF-8
            return kept.decode("utf-8", "replace")

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets in its texts, keys and numbers."""
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
        """Return ``item`` without secrets. If ``key`` is a binary media type, also search the bytes of its base64."""
        if isinstance(key, str) and isinstance(item, str) and _BINARY.match(key):
            with contextlib.suppress(ValueError):
                if found := self.scan(base64.b64decode(item)).found:
                    return found[0][2].decode()
        return self.value(item)

    def scan(self, data: bytes) -> Scan:
        """Find secrets in ``data``, parts of them at ellipses, and the beginning of one at its end."""
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
        """Yield parts of secrets before and after ellipses. Ends are found as beginnings in the reversed data."""
        forms, mirror, size = self._forms, self._forms.mirror, len(data)
        for begin, end, number in forms.pieces(data, seen.heads, seen.cuts):
            yield begin, end, forms.markers[number]
        mirrored, cuts = data[::-1], [(size - end, size - begin) for begin, end in reversed(seen.cuts)]
        for begin, end, number in mirror.pieces(mirrored, mirror.heads_in(mirrored), cuts):
            if not _is_new_line(data, size - end):
                yield size - end, size - begin, mirror.markers[number]

    def _find_beginnings(self, data: bytes, seen: Matches) -> Iterator[tuple[int, int]]:
        """Yield the start and form of each secret, or part of one at an ellipsis, that may go on after ``data``."""
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
    """Takes bytes and returns them without secrets. Holds back a possible beginning of one until more bytes come."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._kept = b""  # data to search again: what is held back, and the bytes just before
        self._done = 0  # bytes of it that were returned, or replaced by a marker
        self.has_found = False  # whether any secret was found so far

    def feed(self, data: bytes) -> bytes:
        """Return what can be handed on now."""
        if self._kept:
            data = self._kept + data
        scan = self._redaction.scan(data)
        return self._handed_on(data, scan.upto, scan.found)

    def finish(self, *, cut: bool = False) -> bytes:
        """Return the rest. ``cut``: the stream would have gone on, so a possible beginning of a secret, of four bytes
        or more, is replaced too."""
        data, scan = self._kept, self._redaction.scan(self._kept)
        is_begun = cut and len(data) - scan.upto >= SHORTEST_PIECE
        rest = self._handed_on(data, scan.upto if is_begun else len(data), scan.found)
        if is_begun and self._kept[self._done :] == data[scan.upto :]:  # no marker has replaced it already
            rest += scan.begun
            self.has_found = True
        self._kept, self._done = b"", 0
        return rest

    def _handed_on(self, data: bytes, upto: int, found: list[Found]) -> bytes:
        """Return ``data[:upto]`` with markers. Whatever begins before ``upto`` is final: it cannot go on."""
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
    """Whether a line ends at ``at``. The rest of a text that was cut in its middle follows in the same line."""
    return data[at : at + 1] in (b"\n", b"\r")


def _first_longest(found: Found) -> tuple[int, int]:
    return found[0], -found[1]
