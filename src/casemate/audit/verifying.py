"""Verification of the record: by its chain, its head, its anchors, and copies elsewhere."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from casemate.audit.anchors import Anchor, check, lines_in
from casemate.audit.chain import EMPTY, GENESIS, Head, Verdict, verify_after
from casemate.audit.database import COLUMNS, oddity_in, open_for_reading, text_of, transaction, unavailable
from casemate.evidence.dsse import PublicKey

_Ends = tuple[Head, Head, Head, str]
_BATCH = 2000  # rows per read
_CUT = "the record was cut or replaced, or the machine lost power"


def verify(
    path: str, keys: Mapping[str, PublicKey] | None, *, head: str | None = None, anchors: str | None = None
) -> Verdict:
    """Verify the record at ``path``. ``keys``: trusted keys; None if none are known. Raises what reading raises."""
    ends, lines = _moment(path)
    verdict = _verify(path, ends, lines, keys, head, anchors)
    if not verdict.ok and _ends(path)[2] != ends[2]:  # rows were dropped while they were read
        return verify(path, keys, head=head, anchors=anchors)
    return verdict


def _verify(
    path: str,
    moment: _Ends,
    lines: list[str],
    keys: Mapping[str, PublicKey] | None,
    head: str | None,
    anchors: str | None,
) -> Verdict:
    ends, last, kept, noted = moment
    signed, problem = check(lines, keys)
    if not problem and noted not in (
        GENESIS,
        *(one.hash for one in signed[-1:]),
        *(one.previous for one in signed[-1:]),
    ):
        problem = "the last lines of the anchors are missing" if signed else "the anchors are missing"
    if not problem and kept != EMPTY and keys and all(one.checkpoint != kept for one in signed):
        problem = f"no anchor says that the rows up to {kept.count} may be dropped"
    copies, trouble = check((anchors or "").splitlines(), keys, may_miss=True)
    if anchors is not None and not copies:
        trouble = trouble or "there are no lines"
    verdict = verify_rows(path, kept, last, [*signed, *copies])
    if verdict.ok:
        verdict = verify_after((), verdict.head, ends)
    if verdict.ok and (problem or trouble):
        vouched = (signed if problem else copies)[-1:]
        row = min(vouched[0].head.count if vouched else kept.count, verdict.rows - 1) + 1
        verdict = replace(verdict, first_bad=row, reason=problem or f"{trouble}, in the copy")
    if verdict.ok and (why := _lacks(path, verdict, head, kept)):
        verdict = replace(verdict, first_bad=verdict.rows + 1, reason=why)
    if verdict.ok and (why := _oddity_in(path)):
        verdict = replace(verdict, first_bad=kept.count + 1, reason=why)
    return replace(verdict, signed=signed[-1].head.count if keys and signed else 0, dropped=kept.count)


def verify_rows(path: str, good: Head, last: Head, anchors: list[Anchor]) -> Verdict:
    """Verify the rows after ``good`` up to ``last``. All ``anchors`` that are not older than ``good`` must match."""
    expected = deque(sorted((one for one in anchors if one.head.count >= good.count), key=lambda one: one.head.count))
    vouched, hashes, verdict = good, {good.count: good.last}, Verdict(good)
    while True:
        while expected and expected[0].head.count <= good.count:
            one = expected.popleft()
            if hashes[one.head.count] != one.head.last:
                when = datetime.fromtimestamp(one.time, UTC).isoformat()
                why = f"up to row {one.head.count} they are not the rows that were signed at {when}"
                return Verdict(vouched, vouched.count + 1, why)
            vouched = one.head
        if not verdict.ok or good.count >= last.count:
            break
        query = f"SELECT {COLUMNS} FROM record WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT {_BATCH}"  # noqa: S608 - constants
        rows = _read_rows(path, query, (good.count, last.count))
        verdict = (
            verify_after(rows, good) if rows else Verdict(good, good.count + 1, f"row {good.count + 1} is missing")
        )
        good, hashes = verdict.head, {good.count: good.last, **{row[0]: row[8] for row in rows}}
    if verdict.ok and expected:
        why = f"{expected[-1].head.count} rows were signed, {good.count} are left: {_CUT}"
        return Verdict(good, good.count + 1, why)
    return verdict


def _read_rows(path: str, query: str, bounds: tuple[int, int]) -> list[tuple[Any, ...]]:
    with open_for_reading(path) as database:
        database.text_factory = str  # twice as fast, but fails on invalid bytes
        try:
            return database.execute(query, bounds).fetchall()
        except sqlite3.OperationalError:
            database.text_factory = text_of
            return database.execute(query, bounds).fetchall()


def _moment(path: str) -> tuple[_Ends, list[str]]:
    """The result of :func:`_ends`, and the anchors of the same moment: another process may sign in between."""
    while True:
        ends = _ends(path)
        lines = [*lines_in(Path(f"{path}.anchors"))]
        if _ends(path) == ends:
            return ends, lines


def _ends(path: str) -> _Ends:
    """The head, the last row, the last dropped row, and the last anchor, read in one transaction."""
    with open_for_reading(path) as database, transaction(database, "BEGIN"):
        head = database.execute("SELECT count, last FROM head").fetchone()
        last = database.execute("SELECT sequence, hash FROM record ORDER BY sequence DESC LIMIT 1").fetchone()
        kept = database.execute("SELECT count, last, anchor FROM kept").fetchone()
    if head is None or kept is None:
        raise unavailable(path, sqlite3.DatabaseError("its head is missing"))
    dropped = Head(*kept[:2])
    return Head(*head), dropped if last is None else Head(*last), dropped, kept[2]


def _oddity_in(path: str) -> str:
    with open_for_reading(path) as database:
        database.set_progress_handler(None, 0)  # it reads every row and every index
        return oddity_in(database)


def _lacks(path: str, verdict: Verdict, head: str | None, kept: Head) -> str:
    if head in (None, GENESIS, kept.last, verdict.head.last):
        return ""
    with open_for_reading(path) as database:
        found = database.execute("SELECT 1 FROM record WHERE hash = ?", (head,)).fetchone()
    return "" if found else f"no row has the hash {head}"
