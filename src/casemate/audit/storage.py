"""The file of the record: made safely, opened as SQLite, and what is wrong when it cannot be."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from casemate.audit.chain import GENESIS
from casemate.errors import RecordUnavailable

_APPLICATION = 0x63736D74  # marks the file as ours: "csmt"
_VERSION = 1
_SCHEMA = """
CREATE TABLE record (
  sequence INTEGER PRIMARY KEY, wall INTEGER NOT NULL, monotonic INTEGER NOT NULL,
  kind TEXT NOT NULL, execution_id TEXT NOT NULL, namespace TEXT NOT NULL,
  detail TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE UNIQUE INDEX once ON record (execution_id, kind) WHERE kind IN ('intent', 'outcome');
CREATE TABLE head (count INTEGER NOT NULL, last TEXT NOT NULL);
INSERT INTO head VALUES (0, 'GENESIS');
CREATE TRIGGER no_update BEFORE UPDATE ON record BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON record BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END;
CREATE TRIGGER in_order BEFORE INSERT ON record WHEN NEW.sequence IS NOT (SELECT count + 1 FROM head)
  BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END;
CREATE TRIGGER head_grows BEFORE UPDATE ON head WHEN NEW.count IS NOT OLD.count + 1
  BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END;
CREATE TRIGGER head_stays BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END;
CREATE TRIGGER head_alone BEFORE INSERT ON head BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END;
PRAGMA application_id = APPLICATION;
PRAGMA user_version = VERSION;
"""
# For readers of one namespace or one execution. An older casemate makes none, and may write where there are some: they
# are no new version.
_INDEXES = {
    "of_namespace": "CREATE INDEX IF NOT EXISTS of_namespace ON record (namespace, sequence, kind, wall)",
    "of_execution": "CREATE INDEX IF NOT EXISTS of_execution ON record (execution_id)",
}
_MOST_INDEXED = 3_000_000  # rows of a record of before: indexes of these take some seconds, in which others wait
_ELSEWHERE = "or name another file: Sandbox(audit='/path/to/audit.db')"
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


def open_database(path: str, patience: float) -> sqlite3.Connection:
    """A connection that waits ``patience`` seconds for others. Raises :class:`casemate.RecordUnavailable`."""
    database = None
    try:
        _make_file(path)
        database = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        database.text_factory = text_of
        _write_ahead(database, patience)
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
    _make_folders(os.path.dirname(path))
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


def _make_folders(folder: str) -> None:
    """As os.makedirs, but every folder that is made is 0700."""
    missing = []
    while not os.path.isdir(folder) and folder != "/":
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise OSError(errno.ENOTDIR, f"{path} is not a folder") from None


def _write_ahead(database: sqlite3.Connection, patience: float) -> None:
    """Switch to the write-ahead log; SQLite does not wait for others here by itself, so this does."""
    deadline = time.monotonic() + patience
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
            for statement in _statements():
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


def _statements() -> list[str]:
    """The schema's statements one by one: executescript would commit by itself."""
    statements, text = [], ""
    constants = {"GENESIS": GENESIS, "APPLICATION": str(_APPLICATION), "VERSION": str(_VERSION)}
    schema = re.sub("|".join(constants), lambda found: constants[found[0]], _SCHEMA)
    for line in schema.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    return statements


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
