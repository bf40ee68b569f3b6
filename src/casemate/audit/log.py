"""The record: rows are written to a journal, and a thread beside makes a chain of them in a database, and signs it.

An execution has an *intent* row, written before anything starts, and an *outcome* row, written however it ended. When
:meth:`AuditLog.append` is back, the row survives the death of the process (SIGKILL, out of memory). A moment later it
is in the database, on the disk, and signed: one transaction and one signature for all rows of that moment. Until then a
loss of power may cost it, unless ``sync`` is "row". Whoever reads the record has rows made first, those of other
processes, too, living and dead.

An intent without outcome means that casemate died meanwhile: what the execution did is unknown. It is closed as lost
when the record is next opened by somebody alone.

Several threads and processes may write at once. Every failure is :class:`casemate.RecordUnavailable`: what cannot be
recorded is not run. Where the database cannot take rows, nothing new is begun until it does; what goes on is written to
the journal still.
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
from functools import partial
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
_ONCE = ("intent", "outcome")  # of an execution
_LOST = bound_detail({"status": "lost", "reason": "casemate was killed while this ran: what it did is not known"})
_GONE = "a file of it was removed or replaced while it was open"
_MOMENT = 0.1  # seconds: rows of so long become one transaction, and have one signature
_PAUSE = 0.5  # seconds, in which the first program is begun, undisturbed; a short process signs once, at its end
_BETWEEN = 3600.0  # seconds between two looks for rows to drop
_LONG = 1 << 20  # bytes of a journal; then another one is begun


def clocks() -> tuple[int, int]:
    """Wall clock and monotonic clock in nanoseconds."""
    return time.time_ns(), time.monotonic_ns()


def default_path(environ: Mapping[str, str]) -> Path:
    """Where the record lies unless told otherwise: in the user's state folder.

    Raises :class:`casemate.RecordUnavailable` when the environment names neither that folder nor a home.
    """
    remediation = f"Set HOME, {ELSEWHERE}."
    try:
        return user_folder(environ, "state", "the audit record has no place", remediation) / "audit.db"
    except Unavailable as error:
        raise RecordUnavailable(error.message, remediation=remediation) from None


_living: WeakSet[AuditLog] = WeakSet()


def _leave_to_parent() -> None:
    """After a fork, in the child: nothing here is its own, and nothing of it is closed."""
    for log in _living:
        log.of_parent, log._database = log._database, None
        log._lock, log._turn = threading.Lock(), threading.RLock()


os.register_at_fork(after_in_child=_leave_to_parent)


class AuditLog:
    """The record in the file ``path``, made with its folder if need be (file 0600, new folders 0700).

    ``signer``: None where nothing is signed. ``outside``: where anchors go besides. ``sync``: whether each row waits
    for the disk. ``retention``: what is dropped by and by. Usable from any thread, not across a fork. Raises
    :class:`casemate.RecordUnavailable`, as every method does.
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
        self._lock = threading.Lock()  # of the journal; nobody has it for longer than a write takes
        self._turn = threading.RLock()  # of the database, taken before the other
        self._ends = threading.Event()
        self._rest = threading.Lock()  # the thread has it while there is nothing to do: an event takes longer to set
        self._rest.acquire()
        self._is_resting = True
        self._thread: threading.Thread | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._problem: RecordUnavailable | None = None  # why rows stay in the journal
        self._unsigned = "" if signer else "nothing is signed here"
        self._full: list[Journal] = []  # journals that are to go once they are folded
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
        """Write a row about an execution. ``detail`` is stored bounded (64 KiB). Waits for nobody."""
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
        """The same, and raise nothing: where nothing can be recorded, nothing runs."""
        with contextlib.suppress(RecordUnavailable):
            self.append(kind, execution_id, namespace, detail)

    def note(self, kind: str, namespace: str, detail: Mapping[str, object]) -> None:
        """Write a row that is about no execution, such as a change of the vault."""
        self.append(kind, "", namespace, detail)

    @contextmanager
    def notify_on_write(self, written: Callable[[], None]) -> Iterator[None]:
        """Call ``written``, which must take no time, whenever a row was written here, and when this is closed; from any
        thread."""
        self._listeners.add(written)
        try:
            yield
        finally:
            self._listeners.discard(written)

    def signer(self) -> Signer:
        """What signs here; loaded when something is signed. Raises ``Unavailable`` where there is no place for keys."""
        if callable(self._signer):
            self._signer = self._signer()
        assert self._signer is not None
        return self._signer

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more rows."""
        return self._database is None

    def tail(self, limit: int, namespace: str | None = None) -> list[Row]:
        """The last ``limit`` rows, oldest first; of one namespace, or of all."""
        where = "" if namespace is None else "WHERE namespace = ?"
        arguments = (max(limit, 0),) if namespace is None else (namespace, max(limit, 0))
        query = f"SELECT {COLUMNS} FROM record {where} ORDER BY sequence DESC LIMIT ?"  # noqa: S608 - constants
        return self._select(query, arguments)[::-1]

    def rows(self, kind: str, namespace: str) -> list[Row]:
        """All rows of a kind of one namespace, oldest first."""
        query = f"SELECT {COLUMNS} FROM record WHERE namespace = ? AND kind = ? ORDER BY sequence"  # noqa: S608 - constants
        return self._select(query, (namespace, kind))

    def head(self) -> Head:
        """How many rows there are, and the last one's hash; note it elsewhere to verify against later."""
        with self._open_connection() as database:
            self._fold(database)
            return head_in(database)

    def fold(self) -> None:
        """Make rows of all that was written until now, by whomever: before the record is read."""
        if not self.is_closed:
            with self._open_connection() as database:
                self._fold(database)

    def verify(self, head: str | None = None, anchors: str | None = None) -> Verdict:
        """Whether every row is as it was written and signed, and none is missing.

        Args:
            head: The hash of a last row that was noted elsewhere, to find again.
            anchors: Lines of a copy of the anchors that was kept elsewhere, which must agree.
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
        """Drop rows that were kept long enough, and say how many; the rest stays provable. The row that says so is of
        ``namespace``, and names who wanted it, ``by``."""
        if retention == FOREVER:
            return 0
        if self._signer is None:
            raise RecordUnavailable(f"nothing of the audit record {self.path} is dropped, for nothing is signed here")
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

            again = partial(write, "definition")
            try:
                return prune(database, self.path, self._anchors(), self._keys(), retention, again, note)
            except Unavailable as error:
                raise RecordUnavailable(error.message, remediation=error.remediation) from None

    def close(self) -> None:
        """Close the file. Closing twice is fine; writing afterwards raises."""
        self._ends.set()
        with self._lock:
            if self._is_resting:
                self._is_resting = False
                self._rest.release()
        if self._thread is not None:
            self._thread.join()
        with self._turn:
            if self._database is not None:
                with contextlib.suppress(RecordUnavailable):
                    self._settle(is_last=True)
                self._database.close()
                self._journal.remove()
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
        """Go on where what kept rows from the database is mended; waits for nobody."""
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

    # -- beside

    def _work(self) -> None:
        self._ends.wait(_PAUSE)
        if self._signer is not None:
            with contextlib.suppress(Unavailable):
                self._keys()  # what it needs is loaded while the first program runs
        # Who closes it sets `_ends`, then looks at `_is_resting`; here it is the other way round: one sees the other.
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
        """Make rows, and sign them."""
        line = ""
        with self._open_connection() as database:
            self._fold(database)
            if is_last:
                with transaction(database, "BEGIN IMMEDIATE"):
                    self._close_lost(database)
            if is_durable := self._sync or not is_last:
                sync_to_disk(self.path)  # at the end SQLite does, where nobody else has it open
            if self._signer is not None:
                line = self._anchor(database, is_durable=is_durable)
        if line and self._outside is not None:
            self._outside.send(line, lambda detail: self.append_if_possible("anchor", "", "", detail))

    def _anchor(self, database: sqlite3.Connection, *, is_durable: bool) -> str:
        """Sign the head where it is not, and give back the line."""
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
        """Take over what the dead have left: their rows, and where all are dead, what they never ended."""
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
        """Where nobody else lives, an outcome for each execution that has none: what began them was killed. Gives back
        the journals of the dead."""
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

    # -- for all of them

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
