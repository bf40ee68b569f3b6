"""Queries of the audit record for tests."""

from __future__ import annotations

from casemate.audit.log import AuditLog


def unfinished(log: AuditLog) -> list[str]:
    """Executions with an intent and no outcome: they still run, or casemate died during them."""
    rows = log.tail(1 << 40)
    ended = {row.execution_id for row in rows if row.kind == "outcome"}
    return [row.execution_id for row in rows if row.kind == "intent" and row.execution_id not in ended]
