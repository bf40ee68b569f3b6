"""The record: rows go to a journal, and a background thread moves them into a chained database, and signs it.

An execution has an *intent* row, written before anything starts, and an *outcome* row, written however it ended. After
:meth:`AuditLog.append` returns, the row survives the death of the process (SIGKILL, out of memory). A moment later it
is in the database, on disk, and signed, in one transaction and with one signature for all rows of that moment. Until
then a loss of power may lose it, unless ``sync`` is "row". A reader first moves all journals into the database,
including those of other processes, living and dead.

An intent without an outcome means that casemate died in between: the effects of the execution are unknown. It is closed
as lost the next time that a single process opens the record.

Several threads and processes may write at once. Every failure is :class:`casemate.RecordUnavailable`: what cannot be
recorded does not run. If the database cannot take rows, nothing new starts until it can; running executions still write
to the journal.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

from casemate.audit.chain import Head, Row, Verdict, bound_detail, hash_of
from casemate.audit.database import COLUMNS, ELSEWHERE, head_in, open_database, sync_to_disk, transaction, unavailable
from casemate.audit.journal import Journal, is_abandoned, names_in, pending, rows_after
from casemate.audit.retention import FOREVER, RowRetention
from casemate.errors import RecordUnavailable, Unavailable
from casemate.files.user_folders import user_folder
from casemate.telemetry.rows import observe

if TYPE_CHECKING:
    from casemate.audit.anchors import Anchors
    from casemate.audit.outside import Outside
    from casemate.evidence.dsse import PublicKey
    from casemate.evidence.keys import Signer

Sync = Literal["grouped", "row"]
Clock = Callable[[], tuple[int, int]]
_ONCE = ("intent", "outcome")  # an execution has one row of each of these kinds
_LOST = bound_detail({"status": "lost", "reason": "casemate was killed while this ran: what it did is not known"})
_GONE = "a file of it was removed or replaced while it was open"
_MOMENT = 0.1  # seconds of rows that share one transaction and one signature
_PAUSE = 0.5  # seconds before it starts, to not delay the first program; a short process signs once, at its end
_BETWEEN = 3600.0  # seconds between checks for rows to drop
_LONG = 1 << 20  # bytes of a journal before a new one starts


def clocks() -> tuple[int, int]:
    """Wall clock and monotonic clock, in nanoseconds."""
    return time.time_ns(), time.monotonic_ns()


def default_path(environ: Mapping[str, str]) -> Path:
    """The default place of the record: in the user's state folder.

    Raises :class:`casemate.RecordUnavailable` if the environment names neither that folder nor a home.
    """
    remediation = f"Set HOME, {ELSEWHERE}."
    try:
        return user_folder(environ, "state", "there is no folder for the audit record", remediation) / "audit.db"
    except Unavailable as error:
        raise RecordUnavailable(error.message, remediation=remediation) from None


_living: WeakSet[AuditLog] = WeakSet()


def _leave_to_parent() -> None:
    """After a fork, in the child: neither use nor close what belongs to the parent."""
    for log in _living:
        log.of_parent, log._database = log._database, None
        log._lock, log._turn = threading.Lock(), threading.RLock()


os.register_at_fork(after_in_child=_leave_to_parent)


class AuditLog:
    """The record in the file ``path``, which is created with its folder if needed (file 0600, new folders 0700).

    ``signer``: None to sign nothing. ``outside``: more places for anchors. ``sync``: whether each row waits for the
    disk. ``retention``: which rows are dropped, from time to time. Usable from any thread, not across a fork. Raises
    :class:`casemate.RecordUnavailable`, as all methods do.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = clocks,
        max_wait: float = 5.0,
        signer: Signer | Callable[[], Signer] | None = None,
        outside: Outside | None = None,
        sync: Sync = "grouped",
        retention: RowRetention = FOREVER,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._clock, self._sync = clock, sync == "row"
        self._signer, self._outside, self._retention = signer, outside, retention
        self._max_wait = max_wait
        self._prune_at = 0.0  # by the monotonic clock
        self._folder = Path(f"{self.path}.rows")
        self._lock = threading.Lock()  # of the journal; held only for the time of a write
        self._turn = threading.RLock()  # of the database; acquire it before `_lock`
        self._ends = threading.Event()
        self._rest = threading.Lock()  # released to wake the thread: faster than setting an event
        self._rest.acquire()
        self._is_resting = True
        self._thread: threading.Thread | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._problem: RecordUnavailable | None = None  # why rows stay in the journal
        self._unsigned = "" if signer else "nothing is signed here"
        self._full: list[Journal] = []  # journals to remove once they are folded
        self._folded: dict[str, int] = {}
        self._database: sqlite3.Connection | None = open_database(self.path, max_wait)
        self.of_parent: sqlite3.Connection | None = None  # kept, so that it is not closed
        self._file = self._file_there()
        try:
            with self._open_connection() as database:
                self._begin(database)
        except BaseException:
            self._database.close()
            raise

        _living.add(self)

    def append(self, kind: str, execution_id: str, namespace: str, detail: Mapping[str, object]) -> None:
        """Write a row about an execution. ``detail`` is bounded to 64 KiB. Does not wait for other writers."""
        row = self._row(kind, execution_id, namespace, bound_detail(detail))
        if self._problem is not None and kind == "intent":
            self._retry(self._problem)
        try:
            with self._lock:
                if self._database is None:
                    self._check_open()
                if kind == "intent" and not os.access(self.path, os.F_OK):
                    raise FileNotFoundError(errno.ENOENT, _GONE)
                self._journal.write(row, sync=self._sync)
                if self._is_resting:
                    self._is_resting = False
                    self._rest.release()
        except OSError as error:
            raise unavailable(self.path, error) from error
        if self._thread is None:
            self._begin_thread()
        if self._listeners:
            self._notify_listeners()
        observe(kind, execution_id, namespace, detail)

    def append_if_possible(self, kind: str, execution_id: str, namespace: str, detail: Mapping[str, object]) -> None:
        """Write a row, and ignore failures: if nothing can be recorded, nothing runs."""
        with contextlib.suppress(RecordUnavailable):
            self.append(kind, execution_id, namespace, detail)

    @contextmanager
    def notify_on_write(self, written: Callable[[], None]) -> Iterator[None]:
        """Call ``written``, which must be fast, from any thread, whenever a row is written here, and on close."""
        self._listeners.add(written)
        try:
            yield
        finally:
            self._listeners.discard(written)

    def signer(self) -> Signer:
        """The signer, loaded on first use. Raises ``Unavailable`` if there is no place for keys."""
        if callable(self._signer):
            self._signer = self._signer()
        assert self._signer is not None
        return self._signer

    @property
    def is_closed(self) -> bool:
        return self._database is None

    def tail(self, limit: int, namespace: str | None = None) -> list[Row]:
        """The last ``limit`` rows, oldest first; of one namespace, or of all."""
        where = "" if namespace is None else "WHERE namespace = ?"
        arguments = (max(limit, 0),) if namespace is None else (namespace, max(limit, 0))
        query = f"SELECT {COLUMNS} FROM record {where} ORDER BY sequence DESC LIMIT ?"  # noqa: S608 - constants
        return self._select(query, arguments)[::-1]

    def rows(self, kind: str, namespace: str) -> list[Row]:
        """All rows of a kind in one namespace, oldest first."""
        query = f"SELECT {COLUMNS} FROM record WHERE namespace = ? AND kind = ? ORDER BY sequence"  # noqa: S608 - constants
        return self._select(query, (namespace, kind))

    def head(self) -> Head:
        """The number of rows, and the hash of the last one. Keep it elsewhere to verify against later."""
        with self._open_connection() as database:
            self._fold(database)
            return head_in(database)

    def fold(self) -> None:
        """Move all rows written so far, by any process, into the database. Call it before reading the record."""
        if not self.is_closed:
            with self._open_connection() as database:
                self._fold(database)

    def verify(self, head: str | None = None, anchors: str | None = None) -> Verdict:
        """Whether every row is as it was written and signed, and none is missing.

        Args:
            head: The hash of an earlier last row, kept elsewhere, which must still exist.
            anchors: Lines of a copy of the anchors, kept elsewhere, which must agree.
        """
        self._settle()
        try:
            keys = self._keys() if self._signer else None
        except Unavailable as error:
            keys, self._unsigned = {}, error.message
        from casemate.audit.verifying import verify

        verdict = verify(self.path, keys, head=head, anchors=anchors)
        is_all = verdict.signed >= verdict.head.count
        return verdict if is_all or not verdict.ok else replace(verdict, reason=self._unsigned)

    def prune(self, retention: RowRetention, namespace: str = "", by: str = "") -> int:
        """Drop old rows, and return how many. The row about it is in ``namespace``, and names the caller, ``by``."""
        if retention == FOREVER:
            return 0
        if self._signer is None:
            raise RecordUnavailable(f"no rows of the audit record {self.path} are dropped: nothing is signed here")
        from casemate.audit.retention import prune

        with self._open_connection() as database:
            self._fold(database)

            def write(kind: str, namespace: str, detail: str) -> None:
                with transaction(database, "BEGIN IMMEDIATE"):
                    self._insert(database, self._row(kind, "", namespace, detail))

            def note(dropped: int) -> None:
                detail = {"dropped": dropped, **retention._asdict(), "caller": by or None}
                known = {name: value for name, value in detail.items() if value is not None}
                write("pruned", namespace, bound_detail(known))

            try:
                return prune(database, self.path, self._anchors(), self._keys(), retention, write, note)
            except Unavailable as error:
                raise RecordUnavailable(error.message, remediation=error.remediation) from None

    def close(self) -> None:
        """Close the file. Can be called twice; writing afterwards raises."""
        self._ends.set()
        with self._lock:
            if self._is_resting:
                self._is_resting = False
                self._rest.release()
        if self._thread is not None:
            self._thread.join()
        with self._turn:
            if self._database is not None:
                try:
                    self._settle(is_last=True)
                    if self._journal.size > self._folded.get(self._journal.name, 0):  # a place refused the last anchor
                        self.fold()
                except RecordUnavailable:  # the next process folds the journals
                    for journal in (*self._full, self._journal):
                        journal.close()
                else:
                    self._journal.remove()
                self._database.close()
            self._database = None
        self._notify_listeners()

    def _row(self, kind: str, execution_id: str, namespace: str, detail: str) -> Row:
        return Row(0, *self._clock(), kind, execution_id, namespace, detail)

    def _begin_thread(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="casemate-record", daemon=True)
                self._thread.start()

    def _retry(self, problem: RecordUnavailable) -> None:
        """Resume if the cause that kept rows out of the database is gone. Does not wait."""
        if not self._turn.acquire(blocking=False):
            raise problem.with_traceback(None)
        try:
            with self._open_connection() as database:
                database.execute("PRAGMA busy_timeout = 0")
                try:
                    self._fold(database)
                finally:
                    database.execute(f"PRAGMA busy_timeout = {int(self._max_wait * 1000)}")
        finally:
            self._turn.release()
        self._problem = None

    # -- in the background

    def _work(self) -> None:
        self._ends.wait(_PAUSE)
        if self._signer is not None:
            with contextlib.suppress(Unavailable):
                self._keys()  # loads its modules while the first program runs
        # `close` sets `_ends`, then reads `_is_resting`; this thread does it in reverse, so one of them sees the other.
        while not self._ends.is_set() and self._rest.acquire() and not self._ends.wait(_MOMENT):
            self._is_resting = True
            try:
                self._settle()
                self._prune_in_turn()
            except RecordUnavailable as error:
                self._problem = error
            else:
                self._problem = None

    def _prune_in_turn(self) -> None:
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + _BETWEEN
            try:
                self.prune(self._retention)
            except RecordUnavailable as error:
                self.append_if_possible("retention", "", "", {"problem": error.message})

    def _settle(self, *, is_last: bool = False) -> None:
        line = ""
        with self._open_connection() as database:
            self._fold(database)
            if is_last:
                with transaction(database, "BEGIN IMMEDIATE"):
                    self._close_lost(database)
            if is_durable := self._sync or not is_last:
                sync_to_disk(self.path)  # at the end SQLite does, if no other process has it open
            if self._signer is not None:
                line = self._anchor(database, is_durable=is_durable)
        if line and self._outside is not None:
            self._outside.send(line, lambda detail: self.append_if_possible("anchor", "", "", detail))

    def _anchor(self, database: sqlite3.Connection, *, is_durable: bool) -> str:
        """Sign the head, if it is not signed, and return the line."""
        try:
            with transaction(database, "BEGIN IMMEDIATE"):
                line = self._anchors().sign_head(database, self._keys(), sync=is_durable)
        except Unavailable as error:
            self._unsigned = error.message
            return ""
        self._unsigned = ""
        return line

    def _keys(self) -> dict[str, PublicKey]:
        return {key.id: key for key in self.signer().public_keys()}

    def _anchors(self) -> Anchors:
        from casemate.audit.anchors import Anchors

        return Anchors(self.path, self.signer().sign)

    def _begin(self, database: sqlite3.Connection) -> None:
        """Fold the journals of dead processes, and if no other process lives, close what they never ended."""
        with transaction(database, "BEGIN IMMEDIATE"):
            self._journal = Journal(self._folder)
            try:
                self._fold_into(database)
                abandoned = self._close_lost(database)
            except BaseException:
                self._journal.remove()
                raise
        for journal in abandoned:
            journal.unlink(missing_ok=True)

    def _close_lost(self, database: sqlite3.Connection) -> list[Path]:
        """Write the outcome of executions of dead processes, if no other process lives. Returns their journals."""
        others = [self._folder / name for name in names_in(self._folder) if name != self._journal.name]
        abandoned = [journal for journal in others if is_abandoned(journal)]
        if len(abandoned) < len(others):
            return abandoned
        (settled,) = database.execute("SELECT settled FROM kept").fetchone()
        lost = database.execute(
            "SELECT execution_id, namespace FROM record AS begun WHERE sequence > ? AND kind = 'intent' AND NOT EXISTS "
            "(SELECT 1 FROM record WHERE execution_id = begun.execution_id AND kind = 'outcome') ORDER BY sequence",
            (settled,),
        ).fetchall()
        for execution_id, namespace in lost:
            self._insert(database, self._row("outcome", execution_id, namespace, _LOST))
        if (head := head_in(database)).count != settled:
            database.execute("UPDATE kept SET settled = ?", (head.count,))
        return abandoned

    def _fold(self, database: sqlite3.Connection) -> None:
        if not self._journal.is_there():
            raise FileNotFoundError(errno.ENOENT, _GONE)
        if not any(pending(self._folder, self._folded)):
            return
        with transaction(database, "BEGIN IMMEDIATE"):
            if self._journal.size > _LONG:
                fresh = Journal(self._folder)
                with self._lock:
                    self._journal, full = fresh, self._journal
                self._full.append(full)
            self._folded = self._fold_into(database)
        while self._full:
            self._full.pop().remove()

    def _fold_into(self, database: sqlite3.Connection) -> dict[str, int]:
        folded = dict(database.execute("SELECT name, folded FROM journals"))
        if waiting := [*pending(self._folder, folded)]:
            gone = folded.keys() - {*names_in(self._folder)}
            database.executemany("DELETE FROM journals WHERE name = ?", [(name,) for name in gone])
        found: list[list[Row]] = []
        for name in waiting:
            rows, folded[name] = rows_after(self._folder / name, folded.get(name, 0))
            found.append(rows)
            database.execute("INSERT OR REPLACE INTO journals VALUES (?, ?)", (name, folded[name]))
        for row in heapq.merge(*found, key=lambda row: row.monotonic):
            self._insert(database, row)
        return folded

    def _insert(self, database: sqlite3.Connection, row: Row) -> None:
        head = head_in(database)
        row = row._replace(sequence=head.count + 1, previous=head.last)
        row = row._replace(hash=hash_of(row))
        try:
            database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            if row.kind not in _ONCE:
                raise
            twice = bound_detail({"kind": row.kind, "detail": row.detail})
            self._insert(database, row._replace(kind="repeated", detail=twice))
            return
        database.execute("UPDATE head SET count = ?, last = ?", (row.sequence, row.hash))

    # -- shared

    def _notify_listeners(self) -> None:
        for written in tuple(self._listeners):
            written()

    def _select(self, query: str, arguments: tuple[object, ...]) -> list[Row]:
        with self._open_connection() as database:
            self._fold(database)
            return [Row(*row) for row in database.execute(query, arguments)]

    @contextmanager
    def _open_connection(self) -> Iterator[sqlite3.Connection]:
        with self._turn:
            try:
                self._check_open()
                assert self._database is not None
                yield self._database
            except (sqlite3.Error, OSError) as error:
                raise unavailable(self.path, error) from error

    def _check_open(self) -> None:
        if self._database is None:
            raise RecordUnavailable(
                f"the audit record {self.path} cannot be used: it was closed, or opened before a fork",
                remediation="Open a new AuditLog.",
            )
        if self._file_there() != self._file:
            raise FileNotFoundError(errno.ENOENT, _GONE)

    def _file_there(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino
