"""Retention: old rows are dropped, and the rest can still be verified.

A signed checkpoint replaces the dropped rows: how many there were, and the hash of the last. Rows are dropped only if
they are intact; otherwise a change would be dropped with them. Rows from the first execution without an outcome on
stay. Rows that bind the policy's rules to tool definitions are written again.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from casemate.audit.chain import Head
from casemate.audit.database import head_in, transaction
from casemate.errors import RecordUnavailable

if TYPE_CHECKING:
    from casemate.audit.anchors import Anchors
    from casemate.evidence.dsse import PublicKey

_AT_ONCE = 20_000  # rows per transaction, so that other writers do not wait long


class RowRetention(NamedTuple):
    max_age: float | None = None  # seconds; None for no bound
    max_size: int | None = None  # bytes; None for no bound


FOREVER = RowRetention()


def prune(
    database: sqlite3.Connection,
    path: str,
    anchors: Anchors,
    keys: Mapping[str, PublicKey],
    retention: RowRetention,
    write: Callable[[str, str, str], None],
    note: Callable[[int], None],
) -> int:
    """Drop old rows, and return how many. ``write``: writes a row, given its kind, namespace and detail. ``note``:
    records how many rows are about to be dropped.

    Raises as the record does, and ``Unavailable`` if signing fails.
    """
    from casemate.audit.anchors import check, lines_in
    from casemate.audit.verifying import verify_rows

    kept = Head(*database.execute("SELECT count, last FROM kept").fetchone())
    last = _last_to_drop(database, kept.count, retention)
    if last <= kept.count:
        return 0
    dropped = _head_at(database, last)
    signed, problem = check(lines_in(anchors.path), keys)
    verdict = verify_rows(path, kept, dropped, [one for one in signed if one.head.count <= last])
    if problem or not verdict.ok:
        raise RecordUnavailable(
            f"no rows of the audit record {path} are dropped, because it is not intact: {problem or verdict.reason}",
            remediation="Run casemate audit verify for details. Move the record elsewhere to start a new one.",
        )
    bound: dict[tuple[str, str], tuple[int, str]] = {}
    query = "SELECT sequence, namespace, detail FROM record WHERE kind = 'definition' ORDER BY sequence"
    for sequence, namespace, detail in database.execute(query):
        bound[namespace, json.loads(detail)["rule"]] = sequence, detail
    for (namespace, _), (sequence, detail) in bound.items():
        if sequence <= last:
            write("definition", namespace, detail)
    note(last - kept.count)
    for end in (*range(kept.count + _AT_ONCE, last, _AT_ONCE), last):
        checkpoint = _head_at(database, end)
        with transaction(database, "BEGIN IMMEDIATE"):
            anchors.sign_head(database, keys, checkpoint)
            database.execute("UPDATE kept SET count = ?, last = ?", (checkpoint.count, checkpoint.last))
            database.execute("DELETE FROM record WHERE sequence <= ?", (checkpoint.count,))
        with transaction(database, "BEGIN IMMEDIATE"):  # so that no other process writes anchors
            anchors.drop_before(checkpoint)
    return last - kept.count


def _last_to_drop(database: sqlite3.Connection, kept: int, retention: RowRetention) -> int:
    count, last = head_in(database).count, kept
    if retention.max_age is not None:
        oldest = max(0, time.time_ns() - int(retention.max_age * 1e9))
        found = database.execute("SELECT sequence FROM record WHERE wall >= ? ORDER BY sequence LIMIT 1", (oldest,))
        last = next((sequence - 1 for (sequence,) in found), count)
    if retention.max_size is not None:
        pages, free, each = (
            int(database.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        size = (pages - free) * each
        if size > retention.max_size:
            last = max(last, kept + round((count - kept) * (1 - retention.max_size / size)))
    unfinished = database.execute(
        "SELECT sequence FROM record AS begun WHERE sequence <= ? AND kind = 'intent' AND NOT EXISTS "
        "(SELECT 1 FROM record WHERE execution_id = begun.execution_id AND kind = 'outcome') ORDER BY sequence LIMIT 1",
        (last,),
    )
    return next((sequence - 1 for (sequence,) in unfinished), last)


def _head_at(database: sqlite3.Connection, sequence: int) -> Head:
    (last,) = database.execute("SELECT hash FROM record WHERE sequence = ?", (sequence,)).fetchone()
    return Head(sequence, last)
