"""The SQLite file of the record: created safely, and protected by triggers against changed or deleted rows.

``record`` has the rows and ``head`` their end; triggers let both only grow. ``journals`` has how much of each journal
(:mod:`casemate.audit.journal`) has become rows. ``kept`` has the checkpoint up to which the oldest rows were dropped;
only rows up to a checkpoint can be.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from casemate.audit.chain import GENESIS, Head, Row
from casemate.errors import RecordUnavailable
from casemate.files.user_folders import make_private_folders, not_ours

_APPLICATION = 0x63736D74  # marks the file as ours: "csmt"
_VERSION = 2
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
)
# Additions to version 1. The indexes are for readers of one namespace or execution; some files of version 1 have them.
_SINCE_2 = (
    "CREATE TABLE journals (name TEXT PRIMARY KEY, folded INTEGER NOT NULL)",
    # `count` rows were dropped, the last with the hash `last`; every execution up to row `settled` has its outcome;
    # `anchor` is the hash of an anchor that must exist.
    """CREATE TABLE kept (
  count INTEGER NOT NULL, last TEXT NOT NULL, settled INTEGER NOT NULL, anchor TEXT NOT NULL
)""",
    f"INSERT INTO kept VALUES (0, '{GENESIS}', 0, '{GENESIS}')",  # noqa: S608 - a constant
    "DROP TRIGGER no_delete",
    f"CREATE TRIGGER no_delete BEFORE DELETE ON record WHEN OLD.sequence > (SELECT count FROM kept) {_REFUSE}",  # noqa: S608 - a constant
    f"""CREATE TRIGGER kept_grows BEFORE UPDATE OF count, last ON kept WHEN NEW.count < OLD.count
  OR NEW.last IS NOT (SELECT hash FROM record WHERE sequence = NEW.count) {_REFUSE}""",  # noqa: S608 - a constant
    f"CREATE TRIGGER kept_stays BEFORE DELETE ON kept {_REFUSE}",
    f"CREATE TRIGGER kept_alone BEFORE INSERT ON kept {_REFUSE}",
    "CREATE INDEX IF NOT EXISTS of_namespace ON record (namespace, sequence, kind, wall)",
    "CREATE INDEX IF NOT EXISTS of_execution ON record (execution_id)",
    f"PRAGMA user_version = {_VERSION}",
)
_SECONDS = 10.0  # of one reading
_STEPS = 20_000  # of SQLite's virtual machine between checks of the time
COLUMNS = ", ".join(Row._fields)
ELSEWHERE = "or name another file as audit (CASEMATE_AUDIT)"
_REMEDIES = {
    "SQLITE_FULL": f"Free some space, {ELSEWHERE}.",
    "SQLITE_BUSY": "Another process holds the record; wait for it, or end it.",
    "SQLITE_READONLY": f"Make the file and its folder writable, {ELSEWHERE}.",
    "SQLITE_CANTOPEN": f"Make the file and its folder writable, {ELSEWHERE}.",
    "SQLITE_IOERR": f"Look for a full or broken disk, {ELSEWHERE}.",
    "SQLITE_CORRUPT": "Move the file elsewhere to keep it; casemate starts a new one.",
    "SQLITE_NOTADB": f"Move the file elsewhere, {ELSEWHERE}.",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def unavailable(path: str, error: Exception) -> RecordUnavailable:
    """The error for a record that cannot be used, with the reason and the remedy."""
    remedy = f"Fix it, {ELSEWHERE}."
    if isinstance(error, sqlite3.Error):
        name = "_".join((getattr(error, "sqlite_errorname", None) or "").split("_")[:2])
        remedy = _REMEDIES.get(name, remedy)
        why = str(error)
    else:
        why = getattr(error, "strerror", None) or str(error)
        remedy = _REMEDIES["SQLITE_FULL"] if getattr(error, "errno", 0) in _FULL else remedy
    is_denied = getattr(error, "errno", 0) in (errno.EACCES, errno.EPERM) or remedy == _REMEDIES["SQLITE_READONLY"]
    if is_denied and (whose := not_ours(path)):
        why, remedy = f"{why}; {whose}", f"Run casemate as that user, or give it the folder (chown), {ELSEWHERE}."
    return RecordUnavailable(f"the audit record {path} cannot be used: {why}", remediation=remedy)


def open_database(path: str, max_wait: float) -> sqlite3.Connection:
    """A connection that waits ``max_wait`` seconds for locks. Raises :class:`casemate.RecordUnavailable`."""
    database = None
    try:
        _make_file(path)
        database = sqlite3.connect(path, timeout=max_wait, isolation_level=None, check_same_thread=False)
        database.text_factory = text_of
        _write_ahead(database, max_wait)
        database.execute("PRAGMA synchronous = NORMAL")  # `sync_to_disk` syncs many commits together
        _prepare(database)
        _close_to_others(path)
    except (sqlite3.Error, OSError, ValueError) as error:
        if database is not None:
            database.close()
        raise unavailable(path, error) from error
    return database


def _make_file(path: str) -> None:
    """Make the folder and an empty file that only this user can read, before SQLite makes them for everyone.

    An existing file is not opened: closing a descriptor of it would drop this process's SQLite locks (fcntl(2)).
    """
    make_private_folders(Path(path).parent)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise OSError(errno.EINVAL, f"it is {kind}") from None
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it is read-only") from None


def _close_to_others(path: str) -> None:
    """Make it private to its owner. Only after it is known to be a record: the path may be a mistake."""
    status = os.lstat(path)
    if stat.S_IMODE(status.st_mode) & 0o077 and status.st_uid == os.geteuid():
        os.chmod(path, 0o600)


def _write_ahead(database: sqlite3.Connection, max_wait: float) -> None:
    """Switch to the write-ahead log. SQLite does not wait for locks here, so this does."""
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
    """Check that the file is ours, and set it up if it is new, or of version 1."""
    # All reads are in one transaction, since another process may be setting up the file.
    with transaction(database, "BEGIN"):
        if _version(database) == _VERSION:
            return
    with transaction(database, "BEGIN IMMEDIATE"):
        for statement in ((*_SCHEMA, *_SINCE_2), _SINCE_2, ())[_version(database)]:
            database.execute(statement)


def oddity_in(database: sqlite3.Connection) -> str:
    """Why the database may hide rows from readers, or change those that are written; empty if it does not.

    An index may lack rows, and a foreign trigger or view may change or hide rows.
    """
    schema = "SELECT type, name, tbl_name, sql FROM sqlite_master"
    with closing(sqlite3.connect(":memory:")) as ours:
        for statement in (*_SCHEMA, *_SINCE_2):
            ours.execute(statement)
        strange = {*database.execute(schema)} - {*ours.execute(schema)}
    if strange:
        return f"the database has a {min(strange)[0]} that is not casemate's: {min(strange)[1]!r}"
    (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    return "" if found == "ok" else f"the database is inconsistent: {found}"


@contextmanager
def transaction(database: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commit the block as a whole, or roll it back. Raises ``sqlite3.Error``."""
    database.execute(begin)
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _version(database: sqlite3.Connection) -> int:
    """The schema's version; 0 for an empty file. Raises ``sqlite3.DatabaseError`` for another program's file."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != _APPLICATION:
        raise sqlite3.DatabaseError("it is a database of another program")
    if not 0 < version <= _VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, and this casemate knows version {_VERSION}")
    return int(version)


def text_of(raw: bytes) -> str:
    """Text of a column, even with invalid bytes: verification must be able to read a changed file."""
    return raw.decode("utf-8", "surrogateescape")


@contextmanager
def open_for_reading(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that reads for a bounded time. Raises :class:`casemate.RecordUnavailable`."""
    ends = time.monotonic() + _SECONDS
    try:
        with closing(
            sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_SECONDS, isolation_level=None)
        ) as database:
            database.text_factory = text_of
            database.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
            yield database
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise RecordUnavailable(
                f"reading the audit record {path} took longer than {_SECONDS:g} s",
                remediation="Ask for fewer rows, or only since some time.",
            ) from None
        raise unavailable(path, error) from error


def sync_to_disk(path: str) -> None:
    """Wait until everything committed so far is on disk. Raises ``OSError``."""
    try:
        fd = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)  # SQLite holds no lock on this file
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def head_in(database: sqlite3.Connection) -> Head:
    """The end of the record. Raises ``sqlite3.Error``."""
    found = database.execute("SELECT count, last FROM head").fetchone()
    if found is None:
        raise sqlite3.DatabaseError("its head is missing")
    return Head(*found)
