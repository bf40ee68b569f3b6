"""Events: what the rows of the record say has happened, by name. Pure.

They are made of rows and of nothing else, so nobody is told of what is not on record, and whoever was away finds all of
it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from casemate.audit.reading import AuditRow

NAMES: Final = (
    "execution.started", "execution.completed", "execution.failed", "execution.timeout",
    "session.created", "session.killed",
    "package.installed",
    "egress.requested", "egress.approved", "egress.denied",
    "vault.accessed",
    "resource.exceeded",
    "queue.backpressure",
)  # fmt: skip
_MOST_OF_A_ROW = 16  # events: cursors are numbers of rows, times this
_RESOURCES = {
    "timeout", "memory_limit", "cpu_limit", "process_limit", "output_limit", "disk_limit", "inode_limit",
    "open_files_limit",
}  # fmt: skip
_ENDS = {"ok": "execution.completed", "timeout": "execution.timeout"}


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that happened. ``name``: such as ``"execution.started"``; ``time``: Unix time; ``run``: the execution,
    or the session, that it is about, or empty; ``detail``: of its row. ``cursor``: to go on after it."""

    name: str
    cursor: int
    time: float
    namespace: str
    run: str
    detail: dict[str, Any] = field(default_factory=dict)


def events_in(row: AuditRow) -> Iterator[AuditEvent]:
    """What a row says has happened, in order; most say one thing, some nothing that has a name."""
    for number, name in enumerate(_names(row.kind, row.detail)):
        cursor = row.sequence * _MOST_OF_A_ROW + number
        yield AuditEvent(name, cursor, row.time, row.namespace, row.run, row.detail)


def row_before(cursor: int) -> int:
    """The number of the last row that has nothing after ``cursor``."""
    return max(0, cursor // _MOST_OF_A_ROW - 1)


def _names(kind: str, detail: Mapping[str, Any]) -> Iterator[str]:
    match kind:
        case "intent":
            yield "execution.started"
            if detail.get("secrets"):
                yield "vault.accessed"
        case "outcome":
            yield from _of_outcome(detail)
        case "session":
            yield "session.created" if detail.get("action") == "opened" else "session.killed"
        case "request" if detail.get("kind") == "egress":
            yield "egress.requested"
        case "decision" if detail.get("kind") == "egress":
            yield _decided(detail)
        case "crossing" if "host" in detail:
            yield _decided(detail)
        case "queue":
            yield "queue.backpressure"


def _of_outcome(detail: Mapping[str, Any]) -> Iterator[str]:
    if detail.get("cause") in _RESOURCES:
        yield "resource.exceeded"
    yield _ENDS.get(str(detail.get("status")), "execution.failed")
    if detail.get("installation") == "installed":
        yield "package.installed"


def _decided(detail: Mapping[str, Any]) -> str:
    return "egress.approved" if detail.get("decision") == "allowed" else "egress.denied"
