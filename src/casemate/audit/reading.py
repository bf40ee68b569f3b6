"""``sandbox.audit``: the record, read beside its writers, as rows and as events.

Each reading has a connection of its own, which only reads and is closed at its end: in SQLite's write-ahead log readers
and writers do not wait for each other (https://www.sqlite.org/wal.html). A reading takes a bounded time.

Events are made of rows and of nothing else, so nobody learns of what is not on record, and whoever was away finds all
of it there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from casemate.audit.chain import AuditRow, Row, Verdict
from casemate.audit.database import COLUMNS, head_in, open_for_reading, transaction
from casemate.audit.retention import RowRetention
from casemate.audit.summary import MOST_MINUTES, Minute, ProgramUses, chart_of, uses_by_program
from casemate.errors import InvalidArgument, NotFound
from casemate.model.operation import caller
from casemate.policy.proposal import Proposal, propose_rules
from casemate.visible import is_plain

if TYPE_CHECKING:
    from casemate.audit.log import AuditLog

T = TypeVar("T")
NAMES: Final = (
    "execution.started", "execution.completed", "execution.failed", "execution.timeout",
    "session.created", "session.killed",
    "package.installed",
    "egress.requested", "egress.approved", "egress.denied",
    "vault.accessed",
    "resource.exceeded",
    "queue.backpressure",
    "artifact.signed",
)  # fmt: skip
_MOST_OF_A_ROW = 16  # events: cursors are numbers of rows, times this
_RESOURCES = {
    "timeout", "memory_limit", "cpu_limit", "process_limit", "output_limit", "disk_limit", "inode_limit",
    "open_files_limit",
}  # fmt: skip
_ENDS = {"ok": "execution.completed", "timeout": "execution.timeout"}
_OF_SESSIONS = {"opened": "session.created", "closed": "session.killed"}  # by action; others leave it open


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that happened.

    Attributes:
        name: Such as ``"execution.started"``.
        time: Unix time.
        run: The execution, or the session, that it is about, or empty.
        detail: Of its row.
        cursor: To go on after it.
    """

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


MOST_ROWS = 1000  # of one answer
FORMATS = ("jsonl", "ocsf")
_MOST_BYTES = 4 << 20  # of their details
_EVENTS_AT_ONCE = 500  # rows
_MOST_ABOUT, _MOST_BYTES_ABOUT = 20_000, 32 << 20  # rows about one run or session, and of their details
_LOOK_AGAIN = 1.0  # seconds; other processes write into the same record and tell nobody here


class Audit:
    """The record of one ``namespace``. Every method may be called from any thread."""

    def __init__(self, log: AuditLog, namespace: str) -> None:
        self._log = log
        self._namespace = namespace

    async def tail(
        self, limit: int = 50, *, since: float | None = None, kind: str | None = None, run: str | None = None
    ) -> list[AuditRow]:
        """The newest rows of the sandbox's namespace, the newest first; fewer where they are large.

        Args:
            limit: How many, at most 1000.
            since: Only those from then on, in Unix time.
            kind: Only these.
            run: Only those about one execution, by its id.

        Raises:
            InvalidArgument: An argument cannot be used.
            RecordUnavailable: The record cannot be read or written.
        """
        if type(limit) is not int or not 1 <= limit <= MOST_ROWS:
            raise InvalidArgument("limit", f"{limit!r} is not a whole number from 1 to {MOST_ROWS}")
        asked: list[tuple[str, str | float]] = [("namespace = ?", self._namespace)]
        if since is not None:
            asked.append(("wall / 1e9 >= ?", _seconds(since)))  # as `AuditRow.time` is made
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
        """All rows about a run, or about a session and its steps, oldest first, as they are kept. Blocks.

        Raises ``NotFound``, ``InvalidArgument`` for more than can be shown, and ``RecordUnavailable``.
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
        """Those of the namespace. Raises ``InvalidArgument`` for more than can be shown after ``count`` others."""
        found, size = [], 0
        for row in (Row(*one) for one in rows):
            if row.namespace == self._namespace:
                found.append(row)
                size += len(row.detail)
            if count + len(found) > _MOST_ABOUT or size > _MOST_BYTES_ABOUT:
                raise InvalidArgument("of", "has too many rows on record; ask for single runs")
        return found

    async def events(self, *, after: int | None = None) -> AsyncGenerator[AuditEvent]:
        """What happens in the sandbox's namespace, as it comes to be on record, in order and each once; it ends with
        the sandbox.

        Events are read from the record when they are asked for: whoever is slow keeps nobody waiting and loses nothing.

        Args:
            after: The ``cursor`` of the last event that was had, 0 for all there are; without one only what happens
                from the first step of this on.

        Raises:
            InvalidArgument: An argument cannot be used.
            RecordUnavailable: The record cannot be read or written.
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
        """The namespace's rows after ``row``, the number of the last one looked at, and whether these are all."""
        query = (
            f"SELECT {COLUMNS} FROM record WHERE namespace = ? AND sequence > ?"  # noqa: S608 - constants
            " ORDER BY sequence LIMIT ?"
        )
        with self._open_database() as database, transaction(database, "BEGIN"):
            (last,) = database.execute("SELECT count FROM head").fetchone() or (row,)
            found, is_all = _read_bounded(database.execute(query, (self._namespace, row, most)))
        is_all = is_all and len(found) < most
        return found, last if is_all else found[-1].sequence, is_all

    async def verify(self, head: str | None = None, anchor: str | None = None) -> Verdict:
        """Whether every row of the whole record, of all namespaces, is as it was written, and none is missing: by their
        hashes, and by the heads that were signed beside the record.

        Args:
            head: The hash of a last row (``verify().head.last``) that was noted elsewhere, and must be there still.
            anchor: The text of a file of anchors that was kept elsewhere, which the record must agree with.

        Raises:
            InvalidArgument: The head is no hash.
            RecordUnavailable: The record cannot be read or written.
        """
        if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
            raise InvalidArgument("head", "is no hash of a row: 64 hexadecimal digits")
        return await asyncio.to_thread(self._log.verify, head, anchor)

    async def export(self, *, after: int = 0, limit: int = MOST_ROWS, format: str = "jsonl") -> list[dict[str, Any]]:  # noqa: A002 - as the command calls it
        """Rows of the sandbox's namespace, the oldest first, as JSON; call again after the last one for the rest.

        Args:
            after: The number of the last row that was had.
            limit: How many, at most 1000.
            format: ``"jsonl"`` for the rows themselves, ``"ocsf"`` for events of that schema.

        Raises:
            InvalidArgument: An argument cannot be used.
            RecordUnavailable: The record cannot be read.
        """
        if format not in FORMATS:
            raise InvalidArgument("format", f"{format!r} is none of {', '.join(FORMATS)}")
        rows, _, _ = await asyncio.to_thread(self._after, after, limit)
        if format == "ocsf":
            from casemate.audit.ocsf import event_of

            return [event_of(row) for row in rows]
        return [asdict(row) for row in rows]

    async def crossings(self, *, since: float = 0.0) -> list[ProgramUses]:
        """Which hosts, tools, packages and commands programs used, and which they were refused: by program, the one
        that did so last first.

        Args:
            since: Only what is on record from then on, in Unix time.

        Raises:
            InvalidArgument: An argument cannot be used.
            RecordUnavailable: The record cannot be read.
        """
        return await asyncio.to_thread(self._summarize, uses_by_program, _seconds(since))

    async def propose(self, run: str) -> Proposal:
        """Rules for a policy file that allow exactly what a run, or a session in all its steps, was allowed. What it
        was refused stands in comments.

        Args:
            run: Its id.

        Raises:
            NotFound: The record has no such run or session.
            RecordUnavailable: The record cannot be read.
        """
        rows = await asyncio.to_thread(self.rows_about, run)
        return await asyncio.to_thread(propose_rules, [(row.kind, _read_row(row).detail) for row in rows])

    async def chart(self, minutes: int = 60) -> list[Minute]:
        """How much went on in each of the last minutes: executions by status, how long they took, what crossed.

        Args:
            minutes: How many, at most 1440.

        Raises:
            InvalidArgument: An argument cannot be used.
            RecordUnavailable: The record cannot be read.
        """
        if type(minutes) is not int or not 1 <= minutes <= MOST_MINUTES:
            raise InvalidArgument("minutes", f"{minutes!r} is not a whole number from 1 to {MOST_MINUTES}")
        return await asyncio.to_thread(self._summarize, chart_of, (time.time() // 60 - minutes + 1) * 60, minutes)

    def _summarize(self, summarize: Callable[..., T], *given: object) -> T:
        with self._open_database() as database:
            return summarize(database, self._namespace, *given)

    async def prune(self, *, max_age: float | None = None, max_size: int | None = None) -> int:
        """Drop the oldest rows of the whole record, and say how many; what is left stays provable.

        Args:
            max_age: Seconds after which rows are dropped.
            max_size: Bytes that the rest may take.

        Raises:
            RecordUnavailable: The record is not whole, or cannot be signed.
        """
        return await asyncio.to_thread(self._log.prune, RowRetention(max_age, max_size), self._namespace, caller())

    def _end(self) -> int:
        """The number of the last row."""
        with self._open_database() as database:
            return head_in(database).count

    @contextmanager
    def _open_database(self) -> Iterator[sqlite3.Connection]:
        """With all rows in it that were written until now."""
        self._log.fold()
        with open_for_reading(self._log.path) as database:
            yield database


def _seconds(since: object) -> float:
    try:
        time = math.nan if isinstance(since, bool) or not isinstance(since, int | float) else float(since)
    except OverflowError:
        time = math.inf
    if not math.isfinite(time):
        raise InvalidArgument("since", "is not a time in seconds since the epoch")
    return time


def _read_bounded(rows: sqlite3.Cursor) -> tuple[list[AuditRow], bool]:
    """The rows, fewer where they are large, and whether these are all."""
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
    try:
        detail = json.loads(row.detail)
    except (ValueError, RecursionError):
        detail = None
    kept = detail if isinstance(detail, dict) else {"unreadable": str(row.detail)[:1000]}
    return AuditRow(
        row.sequence, row.wall / 1e9, row.kind, row.execution_id, row.namespace, row.hash, row.previous, kept
    )
