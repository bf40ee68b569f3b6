"""What tests ask of the audit record."""

from __future__ import annotations

from casemate.audit.log import AuditLog


def unfinished(log: AuditLog) -> list[str]:
    """Executions with an intent and no outcome: running now, or casemate died meanwhile."""
    rows = log.tail(1 << 40)
    ended = {row.execution_id for row in rows if row.kind == "outcome"}
    return [row.execution_id for row in rows if row.kind == "intent" and row.execution_id not in ended]
