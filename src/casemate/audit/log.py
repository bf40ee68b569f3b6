"""The record on disk: an append-only SQLite file with a hash chain, made safely.

An execution has an *intent* row, written before anything starts, and an *outcome* row, written however it ended. Both
survive the death of the process at any moment (SIGKILL, out of memory); after a loss of power or a crash of the kernel
the last rows may be missing, since nothing waits for the disk (``synchronous=NORMAL``). Then, too, the chain is whole,
only shorter. An intent without outcome means that casemate died meanwhile: what the execution did is unknown.

It is closed as lost when the record is next opened by somebody alone.

Several threads and processes may write at once. Every failure is :class:`casemate.RecordUnavailable`: what cannot be
recorded is not run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from casemate.audit.chain import EMPTY, GENESIS, Head, Row, Verdict, bound_detail, hash_of, verify
from casemate.audit.noted import NotedHead
from casemate.errors import Fault, RecordUnavailable, Unavailable
from casemate.files.user_folders import make_private_folders, user_folder

_APPLICATION = 0x63736D74  # marks the file as ours: "csmt"
_VERSION = 1
_REFUSE = "BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END"
_SCHEMA = (
    """CREATE TABLE record (
  sequence INTEGER PRIMARY KEY, wall INTEGER NOT NULL, monotonic INTEGER NOT NULL,
  kind TEXT NOT NULL, execution_id TEXT NOT NULL, namespace TEXT NOT NULL,
  detail TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL
)""",
    "CREATE UNIQUE INDEX once ON record (execution_id, kind) WHERE kind IN ('intent', 'outcome')",
    "CREATE TABLE head (count INTEGER NOT NULL, last TEXT NOT NULL)",
    f"INSERT INTO head VALUES (0, '{GENESIS}')",  # noqa: S608 - a constant
    f"CREATE TRIGGER no_update BEFORE UPDATE ON record {_REFUSE}",
    f"CREATE TRIGGER no_delete BEFORE DELETE ON record {_REFUSE}",
    f"CREATE TRIGGER in_order BEFORE INSERT ON record WHEN NEW.sequence IS NOT (SELECT count + 1 FROM head) {_REFUSE}",  # noqa: S608 - a constant
    f"CREATE TRIGGER head_grows BEFORE UPDATE ON head WHEN NEW.count IS NOT OLD.count + 1 {_REFUSE}",
    f"CREATE TRIGGER head_stays BEFORE DELETE ON head {_REFUSE}",
    f"CREATE TRIGGER head_alone BEFORE INSERT ON head {_REFUSE}",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
# For readers of one namespace or one execution. An older casemate makes none, and may write where there are some: they
# are no new version.
_INDEXES = {
    "of_namespace": "CREATE INDEX IF NOT EXISTS of_namespace ON record (namespace, sequence, kind, wall)",
    "of_execution": "CREATE INDEX IF NOT EXISTS of_execution ON record (execution_id)",
}
_MOST_INDEXED = 3_000_000  # rows of a record of before: indexes of these take some seconds, in which others wait
_ELSEWHERE = "or name another file as audit (CASEMATE_AUDIT)"
_REMEDIES = {
    "SQLITE_FULL": f"Free some space, {_ELSEWHERE}.",
    "SQLITE_BUSY": "Another process holds the record; wait for it, or end it.",
    "SQLITE_READONLY": f"Make the file and its folder writable, {_ELSEWHERE}.",
    "SQLITE_CANTOPEN": f"Make the file and its folder writable, {_ELSEWHERE}.",
    "SQLITE_IOERR": f"Look for a full or broken disk, {_ELSEWHERE}.",
    "SQLITE_CORRUPT": "Move the file away to keep it; a new one is begun.",
    "SQLITE_NOTADB": f"Move the file away, {_ELSEWHERE}.",
}


def unavailable(path: str, error: Exception) -> RecordUnavailable:
    """The error that says which record cannot be used, why, and what to do."""
    remedy = f"Mend it, {_ELSEWHERE}."
    if isinstance(error, sqlite3.Error):
        name = "_".join((getattr(error, "sqlite_errorname", None) or "").split("_")[:2])
        remedy = _REMEDIES.get(name, remedy)
        why = str(error)
    else:
        why = getattr(error, "strerror", None) or str(error)
    return RecordUnavailable(f"the audit record {path} cannot be used: {why}", remediation=remedy)


def open_database(path: str, max_wait: float) -> sqlite3.Connection:
    """A connection that waits ``max_wait`` seconds for others. Raises :class:`casemate.RecordUnavailable`."""
    database = None
    try:
        _make_file(path)
        database = sqlite3.connect(path, timeout=max_wait, isolation_level=None, check_same_thread=False)
        database.text_factory = text_of
        _write_ahead(database, max_wait)
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")  # it writes to the disk, which a commit must not wait for
        _prepare(database)
        _close_to_others(path)
    except (sqlite3.Error, OSError, ValueError) as error:
        if database is not None:
            database.close()
        raise unavailable(path, error) from error
    return database


def _make_file(path: str) -> None:
    """Make the folder and an empty file for us alone, before SQLite would make them for everybody.

    An existing file is only looked at: closing a descriptor of it would drop the locks that SQLite holds
    on it in this process (fcntl(2)).
    """
    make_private_folders(Path(path).parent)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise OSError(errno.EINVAL, f"what lies there is {kind}") from None


def _close_to_others(path: str) -> None:
    """A record is its owner's alone. Only once it is known to be one: the path may be a mistake."""
    status = os.lstat(path)
    if stat.S_IMODE(status.st_mode) & 0o077 and status.st_uid == os.geteuid():
        os.chmod(path, 0o600)


def _write_ahead(database: sqlite3.Connection, max_wait: float) -> None:
    """Switch to the write-ahead log; SQLite does not wait for others here by itself, so this does."""
    deadline = time.monotonic() + max_wait
    while True:
        try:
            (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise sqlite3.DatabaseError("its file system has no shared memory for the write-ahead log")
        return


def _prepare(database: sqlite3.Connection) -> None:
    """Check that the file is ours, fill it when it is new, and give it the indexes that it lacks."""
    # One transaction for all that is read, since another process may be filling the file at this moment.
    with transaction(database, "BEGIN"):
        if _is_ready(database) and not _lacks_indexes(database):
            return
    with transaction(database, "BEGIN IMMEDIATE"):
        if not _is_ready(database):
            for statement in _SCHEMA:
                database.execute(statement)
        for statement in _INDEXES.values():
            database.execute(statement)


def _lacks_indexes(database: sqlite3.Connection) -> bool:
    """Whether some are to be made: a record that is too large for that is only slower to read."""
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    (count,) = database.execute("SELECT count FROM head").fetchone() or (0,)
    return not _INDEXES.keys() <= there and count <= _MOST_INDEXED


@contextmanager
def transaction(database: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Everything in the block, or nothing of it. Raises ``sqlite3.Error``."""
    database.execute(begin)
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _is_ready(database: sqlite3.Connection) -> bool:
    """Whether the schema is there; False for an empty file. Raises when the file is somebody else's."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return False
    if application != _APPLICATION:
        raise sqlite3.DatabaseError("it is a database of another program")
    if version != _VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, and this casemate knows version {_VERSION}")
    return True


def text_of(raw: bytes) -> str:
    """Text of a column, also when somebody wrote other bytes there: verifying must not stumble over it."""
    return raw.decode("utf-8", "surrogateescape")


# Of rows about an execution, which has one intent and one outcome and any number of the others: before it starts, when
# it has ended, what was decided about a question, what crossed the wall or was refused there, and who is asked.
Kind = Literal["intent", "outcome", "decision", "crossing", "request"]
Clock = Callable[[], tuple[int, int]]
_MOST_WAITING = 10_000  # rows that wait for others, while nothing can be written and so nothing runs
_MOMENT = 0.001  # seconds: a few rows of other threads' take less
_LOST = bound_detail({"status": "lost", "reason": "casemate was killed while this ran: what it did is not known"})
_FOLD_BYTES = 8 << 20  # twice SQLite's own measure
_COLUMNS = "sequence, wall, monotonic, kind, execution_id, namespace, detail, previous, hash"


def clocks() -> tuple[int, int]:
    """Wall clock and monotonic clock in nanoseconds."""
    return time.time_ns(), time.monotonic_ns()


def default_path(environ: Mapping[str, str]) -> Path:
    """Where the record lies unless told otherwise: in the user's state folder.

    Raises :class:`casemate.RecordUnavailable` when the environment names neither that folder nor a home.
    """
    remediation = f"Set HOME, {_ELSEWHERE}."
    try:
        return user_folder(environ, "state", "the audit record has no place", remediation) / "audit.db"
    except Unavailable as error:
        raise RecordUnavailable(error.message, remediation=remediation) from None


class _Busy(Exception):
    """It would have to wait, and shall not."""


class AuditLog:
    """The record in the file ``path``, made with its folder if need be (file 0600, new folders 0700).

    Usable from any thread, not across a fork. Raises :class:`casemate.RecordUnavailable`, as every method does.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock = clocks, max_wait: float = 5.0) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._clock = clock
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._max_wait = max_wait
        self._waiting: deque[tuple[str, str, str, str]] = deque(maxlen=_MOST_WAITING)
        self._listeners: set[Callable[[], None]] = set()
        self._waits = True  # whether SQLite waits for other processes, as it was last told
        self._long_after = _FOLD_BYTES  # of the write-ahead log, which is then folded into the file
        self._database: sqlite3.Connection | None = open_database(self.path, max_wait)
        self._file = self._file_there()
        with self._open_connection() as database:
            self._noted = NotedHead(self.path, partial(has_row, database))
            try:
                self._settle(database)
                self._noted.share(max_wait)
            except BaseException:
                self._noted.close()  # else it would be alone for as long as this process lives
                raise

    def append(
        self, kind: Kind, execution_id: str, namespace: str, detail: Mapping[str, object], *, wait: bool = True
    ) -> bool:
        """Write a row about an execution. ``detail`` is stored bounded (64 KiB).

        Without ``wait`` it is False, and nothing recorded, when that would take longer than a write to memory:
        when others hold the record for longer than a millisecond, or when it is time to fold the log into its file.
        """
        return self._append(kind, execution_id, namespace, detail, wait)

    def note_soon(self, kind: str, execution_id: str, namespace: str, detail: Mapping[str, object]) -> None:
        """Record something without waiting for anybody: now, else just before the next row, or when this is closed.

        Raises nothing: where nothing can be recorded, nothing runs.
        """
        self._waiting.append((kind, execution_id, namespace, bound_detail(detail)))
        with contextlib.suppress(_Busy, RecordUnavailable):
            self._write_waiting(wait=False)

    @contextmanager
    def notify_on_write(self, written: Callable[[], None]) -> Iterator[None]:
        """Call ``written``, which must take no time, whenever a row was written here, and when this is closed; from any
        thread."""
        self._listeners.add(written)
        try:
            yield
        finally:
            self._listeners.discard(written)

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more rows."""
        return self._database is None

    def note(self, kind: str, namespace: str, detail: Mapping[str, object]) -> None:
        """Record something that is no execution, such as a change of the vault; ``kind`` names what."""
        self._append(kind, "", namespace, detail, wait=True)

    def tail(self, limit: int, namespace: str | None = None) -> list[Row]:
        """The last ``limit`` rows, oldest first; of one namespace, or of all."""
        where = "" if namespace is None else "WHERE namespace = ?"
        arguments = (max(limit, 0),) if namespace is None else (namespace, max(limit, 0))
        query = f"SELECT {_COLUMNS} FROM record {where} ORDER BY sequence DESC LIMIT ?"  # noqa: S608 - constants
        with self._open_connection() as database:
            rows = [Row(*row) for row in database.execute(query, arguments)]
        return rows[::-1]

    def rows(self, kind: str, namespace: str) -> list[Row]:
        """All rows of a kind of one namespace, oldest first."""
        query = f"SELECT {_COLUMNS} FROM record WHERE namespace = ? AND kind = ? ORDER BY sequence"  # noqa: S608 - constants
        with self._open_connection() as database:
            return [Row(*row) for row in database.execute(query, (namespace, kind))]

    def head(self) -> Head:
        """How many rows there are, and the last one's hash; note it elsewhere to verify against later."""
        with self._open_connection() as database:
            return _head(database)

    def verify(self, noted: Head | None = None) -> Verdict:
        """Whether every row is as it was written and none is missing; ``noted``: a head from earlier to find again."""
        with self._open_connection() as database, transaction(database, "BEGIN"):
            with closing(database.execute(f"SELECT {_COLUMNS} FROM record ORDER BY sequence")) as rows:  # noqa: S608
                verdict = verify((Row(*row) for row in rows), _head(database))
            if not verdict.ok or noted is None or noted == EMPTY:
                return verdict
            found = database.execute("SELECT hash FROM record WHERE sequence = ?", (noted.count,)).fetchone()
        if found == (noted.last,):
            return verdict
        return replace(verdict, first_bad=min(noted.count, verdict.head.count + 1), reason="it is not as it was noted")

    def close(self) -> None:
        """Close the file. Closing twice is fine; writing afterwards raises."""
        if self._waiting and not self.is_closed:
            with contextlib.suppress(RecordUnavailable):
                self._write_waiting(wait=True)
        with self._lock:
            if self._database is not None and self._process == os.getpid():
                with contextlib.suppress(sqlite3.Error):
                    self._settle(self._database)
                self._database.close()
                self._noted.close()
            self._database = None
        self._notify_listeners()

    def _append(self, kind: str, execution_id: str, namespace: str, detail: Mapping[str, object], wait: bool) -> bool:
        text = bound_detail(detail)
        if not wait and self._is_long():
            return False
        try:
            with self._open_connection(wait=wait) as database:
                self._let_wait(database, wait)
                self._insert_waiting(database)
                self._insert(database, kind, execution_id, namespace, text)
                if wait and self._is_long():
                    self._fold(database)
        except _Busy:
            return False
        self._notify_listeners()
        return True

    def _write_waiting(self, *, wait: bool) -> None:
        with self._open_connection(wait=wait) as database:
            self._let_wait(database, wait)
            self._insert_waiting(database)
        self._notify_listeners()

    def _insert_waiting(self, database: sqlite3.Connection) -> None:
        while self._waiting:
            self._insert(database, *self._waiting[0])
            self._waiting.popleft()

    def _notify_listeners(self) -> None:
        for written in tuple(self._listeners):
            written()

    def _let_wait(self, database: sqlite3.Connection, wait: bool) -> None:
        if wait != self._waits:
            database.execute(f"PRAGMA busy_timeout = {int(self._max_wait * 1000) if wait else 0}")
            self._waits = wait

    def _insert(self, database: sqlite3.Connection, kind: str, execution_id: str, namespace: str, text: str) -> None:
        with transaction(database, "BEGIN IMMEDIATE"):
            head = _head(database)
            wall, monotonic = self._clock()
            unsigned = Row(head.count + 1, wall, monotonic, kind, execution_id, namespace, text, head.last, "")
            row = unsigned._replace(hash=hash_of(unsigned))
            try:
                database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                raise Fault(f"execution {execution_id!r} cannot have another {kind} row: {error}") from error
            database.execute("UPDATE head SET count = ?, last = ?", (row.sequence, row.hash))
        self._noted.note(Head(row.sequence, row.hash))

    def _settle(self, database: sqlite3.Connection) -> None:
        """An outcome for each execution that has none, where nobody else has the record open: what began them was
        killed."""
        if not self._noted.is_alone():
            return
        lost = database.execute(
            "SELECT execution_id, namespace FROM record AS begun WHERE sequence > ? AND kind = 'intent' AND NOT EXISTS "
            "(SELECT 1 FROM record WHERE execution_id = begun.execution_id AND kind = 'outcome') ORDER BY sequence",
            (self._noted.settled,),
        ).fetchall()
        for execution_id, namespace in lost:
            self._insert(database, "outcome", execution_id, namespace, _LOST)
        self._noted.settle(_head(database))

    def _is_long(self) -> bool:
        """Whether the write-ahead log, which all processes share, has grown long."""
        try:
            return os.stat(f"{self.path}-wal").st_size >= self._long_after
        except OSError:
            return False

    def _fold(self, database: sqlite3.Connection) -> None:
        """Fold the log into the file, so that it begins anew. What the row says is written already: a disk that is full
        is no reason to say that it is not; then the log grows on."""
        try:
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            self._long_after += _FOLD_BYTES
            return
        self._long_after = _FOLD_BYTES if not self._is_long() else self._long_after + _FOLD_BYTES

    @contextmanager
    def _open_connection(self, *, wait: bool = True) -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=-1 if wait else _MOMENT):
            raise _Busy
        try:
            if self._database is None or self._process != os.getpid():
                why = "it was closed" if self._database is None else "it was opened before a fork"
                raise RecordUnavailable(
                    f"the audit record {self.path} cannot be used: {why}", remediation="Open a new AuditLog."
                )
            if self._file_there() != self._file:
                raise FileNotFoundError(errno.ENOENT, "its file was removed or replaced while it was open")
            yield self._database
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", None)
            if not wait and code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:
                raise _Busy from None
            raise unavailable(self.path, error) from error
        except UnicodeEncodeError as error:
            raise Fault(f"an identifier of the record is not valid Unicode: {error}") from error
        finally:
            self._lock.release()

    def _file_there(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def has_row(database: sqlite3.Connection, head: Head) -> bool:
    """Whether the record ends with this, or went on from it."""
    found = database.execute("SELECT hash FROM record WHERE sequence = ?", (head.count,)).fetchone()
    return head == EMPTY or found == (head.last,)


def _head(database: sqlite3.Connection) -> Head:
    found = database.execute("SELECT count, last FROM head").fetchone()
    if found is None:
        raise sqlite3.DatabaseError("its head is missing")
    return Head(*found)
