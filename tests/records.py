"""Queries of the audit record for tests."""

from __future__ import annotations

import json
from pathlib import Path

from casemate.audit.log import AuditLog


def unfinished(log: AuditLog) -> list[str]:
    """Executions with an intent and no outcome: they still run, or casemate died during them."""
    rows = log.tail(1 << 40)
    ended = {row.execution_id for row in rows if row.kind == "outcome"}
    return [row.execution_id for row in rows if row.kind == "intent" and row.execution_id not in ended]


def rows(audit: Path) -> list[tuple[str, dict[str, object]]]:
    """The kind and the detail of each row of a record, which is whole."""
    log = AuditLog(audit)
    try:
        assert log.verify().ok
        return [(row.kind, json.loads(row.detail)) for row in log.tail(1000)]
    finally:
        log.close()
