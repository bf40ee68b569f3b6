"""The rows of the record as a hash chain, and their details as bounded JSON.

Each row has the hash of the row before it. The head (the number of rows, and the hash of the last) is stored
separately, so that a cut at the end is noticed, too. With access to the whole file, the chain can be rewritten as well:
so heads are signed (:mod:`casemate.audit.anchors`).

Details are data: JSON escapes control characters, quotes and line separators, and is plain ASCII here. A text that is
too long becomes its beginning, its full length in bytes and its SHA-256, and so does a whole detail that is too large.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

GENESIS = "0" * 64
_FORMAT = "casemate-record-1"
_quoted = json.encoder.encode_basestring_ascii


class Row(NamedTuple):
    """One row of the record, with the columns of the table in order."""

    sequence: int  # 0 before the row is in the chain
    wall: int  # nanoseconds, as `monotonic`
    monotonic: int
    kind: str
    execution_id: str
    namespace: str
    detail: str  # canonical JSON
    previous: str = ""
    hash: str = ""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the record.

    Attributes:
        time: Unix time.
        kind: ``"intent"``, ``"outcome"``, ``"decision"``, ``"crossing"`` or another one.
        run: The execution that it is about, or empty.
        detail: JSON values.
        hash: Of everything else in the row, including ``previous``, the hash of the row before it.
    """

    sequence: int
    time: float
    kind: str
    run: str
    namespace: str
    hash: str
    previous: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the record: ``count`` rows, the last with the hash ``last``."""

    count: int
    last: str


EMPTY = Head(0, GENESIS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the record is intact.

    Attributes:
        head: The hash of the last good row, and how many rows there are up to it.
        first_bad: The sequence number of the first bad row.
        reason: What is wrong with it.
        signed: The last row that a signature covers; if a good record is not fully signed, ``reason`` says why.
        dropped: How many of the oldest rows were dropped after their retention time.
    """

    head: Head
    first_bad: int | None = None
    reason: str = ""
    signed: int = 0
    dropped: int = 0

    @property
    def rows(self) -> int:
        """How many good rows there are, from the first."""
        return self.head.count

    @property
    def ok(self) -> bool:
        """Whether every row is as it was written and none is missing."""
        return self.first_bad is None


def canonical(row: Row | tuple[Any, ...]) -> bytes:
    """The bytes of a row that are hashed: everything but its own hash, unambiguous, ASCII."""
    sequence, wall, monotonic, kind, execution_id, namespace, detail, previous, _ = row
    try:
        if type(sequence) is type(wall) is type(monotonic) is int:
            return (
                f'["{_FORMAT}",{sequence},{wall},{monotonic},{_quoted(kind)},{_quoted(execution_id)},'
                f"{_quoted(namespace)},{_quoted(detail)},{_quoted(previous)}]"
            ).encode("ascii")
    except TypeError:  # a column that was changed to another type
        pass
    return json.dumps([_FORMAT, *row[:-1]], ensure_ascii=True, separators=(",", ":"), default=repr).encode("ascii")


def hash_of(row: Row | tuple[Any, ...]) -> str:
    """The SHA-256 of a row, in hex."""
    return hashlib.sha256(canonical(row)).hexdigest()


def verify_after(rows: Iterable[Row | tuple[Any, ...]], good: Head, head: Head | None = None) -> Verdict:
    """Whether ``rows``, as stored, continue the chain from ``good``, which is verified, to ``head``."""
    count, last = good.count, good.last
    for row in rows:
        if row[0] != count + 1 or row[7] != last or row[8] != hash_of(row):
            return Verdict(Head(count, last), count + 1, _problem(Row(*row), Head(count, last)))
        count, last = row[0], row[8]
    good = Head(count, last)
    return Verdict(good) if head is None or head == good else _ends_wrong(good, head)


def _problem(row: Row, before: Head) -> str:
    if row.sequence != before.count + 1:
        return f"row {before.count + 1} is missing; {row.sequence!r} follows {before.count}"
    if row.previous != before.last:
        return "it does not carry the hash of the row before it"
    return "it was changed: its hash does not match"


def _ends_wrong(good: Head, head: Head) -> Verdict:
    if good.count < head.count:
        return Verdict(good, good.count + 1, f"the end is missing: there were {head.count} rows, {good.count} are left")
    if good.count > head.count:
        return Verdict(good, head.count + 1, f"there are {good.count} rows, but the head counts {head.count}")
    return Verdict(good, max(good.count, 1), "the last row is not the one that the head names")


LARGEST = 64 * 1024
_STRING_BOUNDS = (8192, 1024, 128)
_ITEM_BOUNDS = (1000, 100, 20)
_DEEPEST = 8
_SHORT = 2000  # characters: too few for a long string or a thousand items
_DEEP = "[" * (_DEEPEST + 1)


def bound_detail(detail: Mapping[str, object], largest: int = LARGEST) -> str:
    """``detail`` as canonical JSON of at most ``largest`` characters, cut in steps until it fits."""
    try:
        text = _encode(detail)
        if len(text) <= _SHORT and _DEEP not in text:
            return text
    except (TypeError, ValueError, RecursionError):  # types that JSON does not have become text below
        pass
    text = ""
    for longest, most in zip(_STRING_BOUNDS, _ITEM_BOUNDS, strict=True):
        text = _encode(_cut(detail, longest, most, _DEEPEST))
        if len(text) <= largest:
            return text
    return _encode({"cut": _short(text, min(_STRING_BOUNDS))})


def _encode(value: object) -> str:
    return "".join(_chunks(value, 0))


def _unknown(value: object) -> object:
    raise TypeError(value)


# JSONEncoder.encode makes this on each call; here it is made once. The arguments are markers, default, encoder, indent,
# key and item separator, sort_keys, skipkeys, allow_nan.
_chunks = getattr(json.encoder, "c_make_encoder")(None, _unknown, _quoted, None, ":", ",", True, False, False)  # noqa: B009


def _cut(value: object, longest: int, most: int, deeper: int) -> object:
    match value:
        case None | bool() | int():
            return value if not isinstance(value, int) or value.bit_length() <= 256 else _short(hex(value), longest)
        case float():
            return value if math.isfinite(value) else repr(value)
        case str() | bytes() | bytearray():
            return _short(value, longest)
        case Mapping() if deeper:
            return _cut_mapping(value, longest, most, deeper - 1)
        case Sequence() | set() | frozenset() if deeper:
            return _cut_sequence(value, longest, most, deeper - 1)
        case Mapping() | Sequence() | set() | frozenset():
            return f"… {len(value)} deeper"
        case _:
            return _short(str(value), longest)


def _cut_mapping(value: Mapping[object, object], longest: int, most: int, deeper: int) -> object:
    cut: dict[str, object] = {}
    for key, item in islice(value.items(), most):
        short = _short(str(key), longest)
        cut[short if isinstance(short, str) else _encode(short)] = _cut(item, longest, most, deeper)
    if len(value) > most:
        cut["…"] = f"{len(value) - most} more"
    return cut


def _cut_sequence(
    value: Sequence[object] | set[object] | frozenset[object], longest: int, most: int, deeper: int
) -> object:
    items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    cut = [_cut(item, longest, most, deeper) for item in islice(items, most)]
    if len(value) > most:
        cut.append(f"… {len(value) - most} more")
    return cut


def _short(value: str | bytes | bytearray, longest: int) -> object:
    """The text, or its beginning with the length in bytes and the SHA-256 of all of it."""
    if isinstance(value, str) and len(value) <= longest:
        return value
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    # Decode only a bounded slice, since the whole may be gigabytes; backslashreplace shows invalid UTF-8.
    text = value[:longest] if isinstance(value, str) else data[:longest].decode("utf-8", "backslashreplace")
    if len(data) <= longest:
        return text
    return {"begins": text, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
