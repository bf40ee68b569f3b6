"""Replaces the secrets of a run in everything that comes out of it. Pure; loads its search when it is made.

What is found is `[secret:NAME]` afterwards. Overlapping occurrences are replaced as one, so nothing of the longer of
two secrets is left over, and an occurrence that comes in pieces is found.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from casemate.redaction.forms import forms_of, lines_of

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

_ANCHOR = 16  # bytes at the beginning of a form by which it is looked for; the rest is compared
_LEFT_OVER = 3  # bytes of a secret that may be left at a cut
_BINARY = re.compile(
    r"(image/(?!svg)|audio/|video/|font/|application/(pdf|zip|gzip|octet-stream|vnd\.))"
)  # media types
_ELLIPSIS = re.compile("(…|\\.\\.\\.)".encode())
_LONGEST_CUT = 4096  # bytes of a text that somebody has cut for people to read
_WORTH_A_TABLE = 1 << 20  # bytes searched, after which the time to make a faster search is soon won back
_FEW_DIGITS = 10_000_000  # a number below has fewer digits than any secret has bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """What is in some bytes. ``found``: begin, end and marker of secrets, the first and longest first;
    ``upto``: where at the end one begins that may go on, and ``begun`` its marker; else their length."""

    found: list[tuple[int, int, bytes]]
    upto: int
    begun: bytes


class Redaction:
    """Knows all ``forms`` of the secrets ``values``, which are given by name. Usable from any thread."""

    def __init__(self, values: Mapping[str, str]) -> None:
        given = tuple(values.items())
        lines = tuple((name, line) for name, value in given for line in lines_of(value))
        names = {form: name for name, value in reversed(given + lines) for form in forms_of(value)}
        self._know(tuple(names), tuple(f"[secret:{name}]".encode() for name in names.values()))
        self._mirror: Redaction | None = None  # made when something was cut

    def _know(self, forms: tuple[bytes, ...], markers: tuple[bytes, ...]) -> None:
        self.forms, self._markers = forms, markers
        anchors: dict[bytes, list[int]] = {}
        for number, form in enumerate(forms):
            anchors.setdefault(form[:_ANCHOR], []).append(number)
        self._anchors = tuple(anchors)
        self._anchored = tuple(anchors.values())
        self._beginnings = {
            anchor[:length]: numbers[0] for anchor, numbers in anchors.items() for length in range(1, len(anchor))
        }
        self._search = _search_for(self._anchors, "LeftmostLongest")
        self._search_all: BytesAhoCorasick | None = None  # made when something is found
        self._slow_for = _WORTH_A_TABLE

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
        """``text`` without the secrets; where an ellipsis says that it was cut, without what is left of one either."""
        data = text.encode("utf-8", "surrogatepass")
        parts = _ELLIPSIS.split(data) if len(data) <= _LONGEST_CUT else [data]  # text and ellipses in turn
        for number in range(0, len(parts), 2):
            whole = self._without_rest(parts[number]) if number else parts[number]
            parts[number] = self.data(whole, cut=number < len(parts) - 1)
        return b"".join(parts).decode("utf-8", "surrogatepass")

    def _without_rest(self, data: bytes) -> bytes:
        """``data`` without the end of a secret at its beginning: the search for beginnings, seen in a mirror."""
        if self._mirror is None:
            mirror = Redaction({})
            mirror._know(tuple(form[::-1] for form in self.forms), self._markers)
            self._mirror = mirror
        mirrored = self._mirror.scan(data[::-1])
        left = len(data) - mirrored.upto
        return mirrored.begun + data[left:] if left > _LEFT_OVER else data

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
        """Look for secrets in ``data``, and for the beginning of one at its end."""
        found: list[tuple[int, int, int]] = []
        upto, begun = len(data), b""
        for at, number in self._anchors_in(data):
            form = self.forms[number]
            if data.startswith(form, at):
                found.append((at, at + len(form), number))
            elif at < upto and len(form) > len(data) - at and form.startswith(data[at:]):
                upto, begun = at, self._markers[number]
        found.sort(key=_first_longest)
        for length in range(min(_ANCHOR - 1, len(data)), len(data) - upto, -1):
            if (known := self._beginnings.get(data[-length:])) is not None:
                upto, begun = len(data) - length, self._markers[known]
                break
        return Scan([(begin, end, self._markers[number]) for begin, end, number in found], upto, begun)

    def _anchors_in(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where a form may begin, and which."""
        if self._slow_for > 0:
            self._slow_for -= len(data)
            if self._slow_for <= 0:
                self._search = _search_for(self._anchors, "LeftmostLongest", table=True)
        if not self._search.find_matches_as_indexes(data):
            return
        if self._search_all is None:
            self._search_all = _search_for(self._anchors, "Standard")
        for anchor, at, _ in self._search_all.find_matches_as_indexes(data, overlapping=True):
            for number in self._anchored[anchor]:
                yield at, number


class RedactedStream:
    """Bytes in, bytes without secrets out. What may be the beginning of one is held back until more has come."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._held = b""
        self._covered = 0  # bytes of what is held that a marker has already taken the place of
        self.has_found = False  # whether there was any secret so far

    def feed(self, data: bytes) -> bytes:
        """What can be handed on now."""
        if self._held:
            data = self._held + data
        scan = self._redaction.scan(data)
        self._held = data[scan.upto :]
        if not scan.found and not self._covered:
            return data[: scan.upto]
        return self._replaced(data, scan.upto, scan.found)

    def finish(self, *, cut: bool = False) -> bytes:
        """The rest: nothing more will come. ``cut``: something would have, so what may be the beginning of a secret,
        and is longer than three bytes, is replaced as well."""
        rest, self._held = self._held, b""
        scan = self._redaction.scan(rest)
        if cut and len(rest) - scan.upto > _LEFT_OVER:
            kept = self._replaced(rest, scan.upto, scan.found)
            kept, self._covered = (kept if self._covered else kept + scan.begun), 0
            return kept
        kept = self._replaced(rest, len(rest), scan.found)
        self._covered = 0
        return kept

    def _replaced(self, data: bytes, upto: int, found: list[tuple[int, int, bytes]]) -> bytes:
        """``data[:upto]`` with markers. Whatever ends before ``upto`` is final: nothing that begins there can go on."""
        parts: list[bytes] = []
        at = self._covered
        for begin, end, marker in found:
            if begin >= upto:
                break
            if begin >= at:
                parts += (data[at:begin], marker)
                self.has_found = True
            at = max(at, end)
        if at < upto:
            parts.append(data[at:upto])
        self._covered = max(0, at - upto)
        return b"".join(parts)


def _first_longest(found: tuple[int, int, int]) -> tuple[int, int]:
    return found[0], -found[1]


def _search_for(forms: tuple[bytes, ...], kind: str, *, table: bool = False) -> BytesAhoCorasick:
    """Aho and Corasick's search (Communications of the ACM 18, 1975): its time grows with the data and no worse.

    ``table``: several times faster where many forms begin alike, and ten times slower to make.
    """
    from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

    implementation = Implementation.DFA if table else Implementation.ContiguousNFA
    return BytesAhoCorasick(list(forms), matchkind=getattr(MatchKind, kind), implementation=implementation)
