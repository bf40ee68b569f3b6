"""``sandbox.audit``: the record, read as rows and as events, while it is written.

Each reading has its own read-only connection, which it closes at the end: in SQLite's write-ahead log readers and
writers do not wait for each other (https://www.sqlite.org/wal.html). A reading takes a bounded time.

Events are made only from rows: they contain nothing that is not on record, and a reader that comes later finds all of
them there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from casemate.audit.chain import AuditRow, Row, Verdict
from casemate.audit.database import COLUMNS, head_in, open_for_reading, transaction
from casemate.audit.retention import RowRetention
from casemate.audit.summary import MOST_MINUTES, Minute, ProgramUses, chart_of, detail_of, uses_by_program
from casemate.errors import InvalidArgument, NotFound
from casemate.model.kinds import Cursor
from casemate.model.operation import Between, Most, caller, operation
from casemate.policy.proposal import Proposal, propose_rules
from casemate.visible import is_plain

if TYPE_CHECKING:
    from casemate.audit.log import AuditLog

T = TypeVar("T")
_MOST_OF_A_ROW = 16  # events; a cursor is a row's number times this, plus the event's number in the row
_RESOURCES = {
    "timeout", "memory_limit", "cpu_limit", "process_limit", "output_limit", "disk_limit", "inode_limit",
    "open_files_limit",
}  # fmt: skip
_ENDS = {"ok": "execution.completed", "timeout": "execution.timeout"}
_OF_SESSIONS = {"opened": "session.created", "closed": "session.killed"}  # by action; other actions leave it open


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that happened.

    Attributes:
        name: Such as ``"execution.started"``.
        time: Unix time.
        run: The execution or session that it is about, or empty.
        detail: Of its row.
        cursor: Pass it to continue after this event.
    """

    name: str
    cursor: int
    time: float
    namespace: str
    run: str
    detail: dict[str, Any] = field(default_factory=dict)


def events_in(row: AuditRow) -> Iterator[AuditEvent]:
    """The events of a row, in order. Most rows have one, some have none."""
    for number, name in enumerate(_names(row.kind, row.detail)):
        cursor = row.sequence * _MOST_OF_A_ROW + number
        yield AuditEvent(name, cursor, row.time, row.namespace, row.run, row.detail)


def row_before(cursor: int) -> int:
    """The number of the row before the one that ``cursor`` is in."""
    return max(0, cursor // _MOST_OF_A_ROW - 1)


def _names(kind: str, detail: Mapping[str, Any]) -> Iterator[str]:
    match kind:
        case "intent":
            yield "execution.started"
            if detail.get("secrets"):
                yield "vault.accessed"
        case "outcome":
            yield from _of_outcome(detail)
        case "session" if (name := _OF_SESSIONS.get(str(detail.get("action")))) is not None:
            yield name
        case "request" if detail.get("kind") == "egress":
            yield "egress.requested"
        case "decision" if detail.get("kind") == "egress":
            yield _egress_event_name(detail)
        case "crossing" if "host" in detail:
            yield _egress_event_name(detail)
        case "queue":
            yield "queue.backpressure"
        case "signature" if detail.get("artifacts"):
            yield "artifact.signed"


def _of_outcome(detail: Mapping[str, Any]) -> Iterator[str]:
    if detail.get("cause") in _RESOURCES:
        yield "resource.exceeded"
    yield _ENDS.get(str(detail.get("status")), "execution.failed")
    if detail.get("installation") == "installed":
        yield "package.installed"


def _egress_event_name(detail: Mapping[str, Any]) -> str:
    return "egress.approved" if detail.get("decision") == "allowed" else "egress.denied"


MOST_ROWS = 1000  # in one answer
Rows = Annotated[int, Between(1, MOST_ROWS)]
Time = Annotated[float, Between(0, 2**40)]  # in seconds
_MOST_BYTES = 4 << 20  # of the details in one answer
_EVENTS_AT_ONCE = 500  # rows
_MOST_ABOUT, _MOST_BYTES_ABOUT = 20_000, 32 << 20  # rows about one run or session, and bytes in their details
_LOOK_AGAIN = 1.0  # seconds between polls: other processes write to the record, too, and send no notice


class Audit:
    """One ``namespace``'s record, for any thread. Methods raise ``RecordUnavailable`` and ``InvalidArgument``."""

    def __init__(self, log: AuditLog, namespace: str) -> None:
        self._log = log
        self._namespace = namespace

    async def tail(
        self, limit: int = 50, *, since: float | None = None, kind: str | None = None, run: str | None = None
    ) -> list[AuditRow]:
        """The newest rows of the sandbox's namespace, newest first; fewer if they are large.

        Args:
            limit: How many, at most 1000.
            since: Only rows from this Unix time on.
            kind: Only rows of this kind.
            run: Only rows about one execution, by its id.
        """
        if type(limit) is not int or not 1 <= limit <= MOST_ROWS:
            raise InvalidArgument("limit", f"{limit!r} is not a whole number from 1 to {MOST_ROWS}")
        asked: list[tuple[str, str | float]] = [("namespace = ?", self._namespace)]
        if since is not None:
            asked.append(("wall / 1e9 >= ?", _seconds(since)))  # the same division as for `AuditRow.time`
        for name, column, value in (("kind", "kind", kind), ("run", "execution_id", run)):
            if value is not None and (not isinstance(value, str) or not is_plain(value)):
                raise InvalidArgument(name, f"{value!r} is not a plain text")
            if value is not None:
                asked.append((f"{column} = ?", value))
        return await asyncio.to_thread(self._tail, limit, asked)

    def _tail(self, limit: int, asked: list[tuple[str, str | float]]) -> list[AuditRow]:
        where = " AND ".join(condition for condition, _ in asked)
        query = f"SELECT {COLUMNS} FROM record WHERE {where} ORDER BY sequence DESC LIMIT ?"  # noqa: S608 - constants
        with self._open_database() as database:
            return _read_bounded(database.execute(query, [v for _, v in asked] + [limit]))[0]

    def rows_about(self, of: str) -> list[Row]:
        """All rows about a run, or about a session and its steps, oldest first, unchanged. Blocks.

        Raises ``NotFound``, ``InvalidArgument`` if they are too many, and ``RecordUnavailable``.
        """
        query = f"SELECT {COLUMNS} FROM record WHERE execution_id"  # noqa: S608 - constants
        steps = "kind = 'intent' AND json_valid(detail) AND json_extract(detail, '$.session') = ?"
        of_steps = f"{query} IN (SELECT execution_id FROM record WHERE namespace = ? AND {steps})"  # noqa: S608
        with self._open_database() as database:
            found = self._rows_within_bounds(database.execute(f"{query} = ?", (of,)), 0)
            if any(row.kind == "session" for row in found):
                found += self._rows_within_bounds(database.execute(of_steps, (self._namespace, of)), len(found))
        if not of or not found:
            raise NotFound("run", f"the record has no run or session {of[:100]!r}")
        return sorted(found)

    def _rows_within_bounds(self, rows: Iterable[Any], count: int) -> list[Row]:
        """The rows of the namespace. Raises ``InvalidArgument`` if they and ``count`` earlier rows are too many."""
        found, size = [], 0
        for row in (Row(*one) for one in rows):
            if row.namespace == self._namespace:
                found.append(row)
                size += len(row.detail)
            if count + len(found) > _MOST_ABOUT or size > _MOST_BYTES_ABOUT:
                raise InvalidArgument("of", "has too many rows on record; ask for single runs")
        return found

    async def events(self, *, after: int | None = None) -> AsyncGenerator[AuditEvent]:
        """Stream the events of the sandbox's namespace as they are recorded, in order and each once. The stream ends
        with the sandbox.

        Each event is read from the record on demand: a slow reader delays no writer and loses nothing.

        Args:
            after: The ``cursor`` of the last event that the caller has; 0 for all on record; None for events from the
                start of this stream on.
        """
        if after is not None and (type(after) is not int or after < 0):
            raise InvalidArgument("after", f"{after!r} is not the cursor of an event")
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(news.set)

        with self._log.notify_on_write(notify):
            row = await asyncio.to_thread(self._end) if after is None else row_before(after)
            while True:
                news.clear()
                is_over = self._log.is_closed
                rows, row, is_all = await asyncio.to_thread(self._after, row)
                for event in (event for one in rows for event in events_in(one)):
                    if after is None or event.cursor > after:
                        yield event
                if is_over and is_all:
                    return
                if is_all:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_AGAIN):
                            await news.wait()

    def _after(self, row: int, most: int = _EVENTS_AT_ONCE) -> tuple[list[AuditRow], int, bool]:
        """Read the namespace's rows after ``row``. Returns them, the last row's number, and whether they are all."""
        query = (
            f"SELECT {COLUMNS} FROM record WHERE namespace = ? AND sequence > ?"  # noqa: S608 - constants
            " ORDER BY sequence LIMIT ?"
        )
        with self._open_database() as database, transaction(database, "BEGIN"):
            (last,) = database.execute("SELECT count FROM head").fetchone() or (row,)
            found, is_all = _read_bounded(database.execute(query, (self._namespace, row, most)))
        is_all = is_all and len(found) < most
        return found, last if is_all else found[-1].sequence, is_all

    @operation(while_draining=True)
    async def verify(
        self,
        head: Annotated[str, Most(64)] | None = None,
        anchor: Annotated[str, Most(4 << 20)] | None = None,
    ) -> Verdict:
        """Whether every row of the whole record, of all namespaces, is as it was written, and none is missing. It
        checks the hashes, and the signed heads beside the record.

        Args:
            head: The hash of a last row noted earlier (``verify().head.last``). The record must still have it.
            anchor: The text of a copy of the anchors, kept elsewhere, with which the record must agree.
        """
        if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
            raise InvalidArgument("head", "is not the hash of a row: give 64 hexadecimal digits")
        return await asyncio.to_thread(self._log.verify, head, anchor)

    @operation()
    async def export(
        self,
        *,
        after: Cursor = 0,
        limit: Rows = MOST_ROWS,
        format: Literal["jsonl", "ocsf"] = "jsonl",  # noqa: A002 - as the command calls it
    ) -> list[dict[str, Any]]:
        """Rows of the sandbox's namespace, oldest first, as JSON. Call it again with the last row's number for the
        rest.

        Args:
            after: The number of the last row that the caller has.
            limit: How many, at most 1000.
            format: ``"jsonl"`` for the rows themselves, ``"ocsf"`` for events of that schema.
        """
        if format not in ("jsonl", "ocsf"):
            raise InvalidArgument("format", f"{format!r} is not known; choose jsonl or ocsf")
        rows, _, _ = await asyncio.to_thread(self._after, after, limit)
        if format == "ocsf":
            from casemate.audit.ocsf import event_of

            return [event_of(row) for row in rows]
        return [asdict(row) for row in rows]

    @operation()
    async def crossings(self, *, since: Time = 0.0) -> list[ProgramUses]:
        """The hosts, tools, packages and commands that programs used or were denied, by program. The most recent
        program comes first.

        Args:
            since: Only what was recorded from this Unix time on.
        """
        return await asyncio.to_thread(self._summarize, uses_by_program, _seconds(since))

    async def propose(self, run: str) -> Proposal:
        """Rules for a policy file that allow exactly what a run, or all steps of a session, was allowed. Comments list
        what was denied.

        Args:
            run: Its id.

        Raises:
            NotFound: The record has no such run or session.
        """
        rows = await asyncio.to_thread(self.rows_about, run)
        return await asyncio.to_thread(propose_rules, [(row.kind, _read_row(row).detail) for row in rows])

    @operation()
    async def chart(self, minutes: Annotated[int, Between(1, MOST_MINUTES)] = 60) -> list[Minute]:
        """The activity of each of the last minutes: executions by status, their durations, and what crossed.

        Args:
            minutes: How many, at most 1440.
        """
        if type(minutes) is not int or not 1 <= minutes <= MOST_MINUTES:
            raise InvalidArgument("minutes", f"{minutes!r} is not a whole number from 1 to {MOST_MINUTES}")
        return await asyncio.to_thread(self._summarize, chart_of, (time.time() // 60 - minutes + 1) * 60, minutes)

    def _summarize(self, summarize: Callable[..., T], *given: object) -> T:
        with self._open_database() as database:
            return summarize(database, self._namespace, *given)

    @operation()
    async def prune(
        self, *, max_age: Time | None = None, max_size: Annotated[int, Between(0, 2**62)] | None = None
    ) -> int:
        """Drop the oldest rows of the whole record, of all namespaces; return how many. The rest can still be verified.

        Args:
            max_age: Seconds after which rows are dropped.
            max_size: Bytes that the rest may take.

        Raises:
            RecordUnavailable: The record is not intact, or cannot be signed.
        """
        return await asyncio.to_thread(self._log.prune, RowRetention(max_age, max_size), self._namespace, caller())

    def _end(self) -> int:
        with self._open_database() as database:
            return head_in(database).count

    def _open_database(self) -> AbstractContextManager[sqlite3.Connection]:
        """The database, with all rows written so far."""
        self._log.fold()
        return open_for_reading(self._log.path)


def _seconds(since: object) -> float:
    with contextlib.suppress(OverflowError):
        if isinstance(since, int | float) and not isinstance(since, bool) and math.isfinite(since):
            return float(since)
    raise InvalidArgument("since", "is not a time in seconds since the epoch")


def _read_bounded(rows: sqlite3.Cursor) -> tuple[list[AuditRow], bool]:
    """Read rows until they are too large. Returns them, and whether they are all."""
    found: list[AuditRow] = []
    size = 0
    with closing(rows):
        for row in map(Row._make, rows):
            size += len(row.detail)
            if found and size > _MOST_BYTES:
                return found, False
            found.append(_read_row(row))
    return found, True


def _read_row(row: Row) -> AuditRow:
    detail = detail_of(row.detail)
    kept = {"unreadable": str(row.detail)[:1000]} if detail is None else detail
    return AuditRow(
        row.sequence, row.wall / 1e9, row.kind, row.execution_id, row.namespace, row.hash, row.previous, kept
    )
