"""The hash chain of the record. Pure: it reads no clock, file or database.

Each row carries the hash of the row before it. The head (how many rows, and the last one's hash) is
kept beside them, so that a cut at the end is noticed too. Whoever can rewrite the whole file can
rewrite the chain as well: note a head elsewhere and verify against it to notice that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

GENESIS = "0" * 64
_FORMAT = "casemate-record-1"


class Row(NamedTuple):
    """One row of the record, its fields in the order of the table. ``wall`` and ``monotonic`` are nanoseconds;
    ``detail`` is canonical JSON."""

    sequence: int
    wall: int
    monotonic: int
    kind: str
    execution_id: str
    namespace: str
    detail: str
    previous: str
    hash: str


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the record: ``count`` rows, the last with the hash ``last``."""

    count: int
    last: str


EMPTY = Head(0, GENESIS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``head``: of the good rows. ``first_bad``: sequence number of the first that is not, and the ``reason``."""

    head: Head
    first_bad: int | None = None
    reason: str = ""

    @property
    def rows(self) -> int:
        """How many good rows there are, from the first on."""
        return self.head.count

    @property
    def ok(self) -> bool:
        """Whether every row is as it was written and none is missing."""
        return self.first_bad is None


def canonical(row: Row) -> bytes:
    """The bytes of a row that are hashed: everything but its own hash, unambiguous, ASCII."""
    fields = [
        _FORMAT,
        row.sequence,
        row.wall,
        row.monotonic,
        row.kind,
        row.execution_id,
        row.namespace,
        row.detail,
        row.previous,
    ]
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"), default=repr).encode("ascii")


def hash_of(row: Row) -> str:
    """The SHA-256 that a row must carry, in hex."""
    return hashlib.sha256(canonical(row)).hexdigest()


def verify(rows: Iterable[Row], head: Head | None = None) -> Verdict:
    """Whether ``rows``, in the order they are kept, form an unbroken chain from the first row on, up to ``head``."""
    return verified(rows, EMPTY, head)


def verified(rows: Iterable[Row], good: Head, head: Head | None = None) -> Verdict:
    """The same for rows that follow ``good``, which was verified before."""
    for row in rows:
        reason = _problem(row, good)
        if reason:
            return Verdict(good, good.count + 1, reason)
        good = Head(row.sequence, row.hash)
    if head is None or head == good:
        return Verdict(good)
    return _ends_wrong(good, head)


def _problem(row: Row, before: Head) -> str:
    if row.sequence != before.count + 1:
        return f"row {before.count + 1} is missing; {row.sequence!r} follows {before.count}"
    if row.previous != before.last:
        return "it does not carry the hash of the row before it"
    if row.hash != hash_of(row):
        return "it was changed: its hash does not match"
    return ""


def _ends_wrong(good: Head, head: Head) -> Verdict:
    if good.count < head.count:
        return Verdict(good, good.count + 1, f"the end is missing: there were {head.count} rows, {good.count} are left")
    if good.count > head.count:
        return Verdict(good, head.count + 1, f"there are {good.count} rows, but the head counts {head.count}")
    return Verdict(good, max(good.count, 1), "the last row is not the one that the head names")
